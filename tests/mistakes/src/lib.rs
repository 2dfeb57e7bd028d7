//! What the compiler says to the mistakes that people make with handlers: see `tests/mistakes`.
