mod broken;
mod claims;
mod connect;
mod ground;
mod inside;
mod outbox;
mod private;
