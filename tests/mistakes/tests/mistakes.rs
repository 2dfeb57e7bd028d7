//! The mistakes that people make with handlers, and what the compiler says to them.

#[test]
fn a_wrong_handler_gets_a_readable_error() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
