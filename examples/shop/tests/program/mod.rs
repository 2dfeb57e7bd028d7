//! Runs the shop as a user does.

use std::path::Path;
use std::process::Command;

/// An order's status, the cents paid for it, its e-mails, and the cents that were booked.
pub(crate) type Order = (String, i64, i64, i64);

/// How it is read.
pub(crate) const ORDERS: &str =
    "SELECT status, paid_cents, emails, booked_cents FROM shop_orders ORDER BY id";

/// The three orders of a run in which every payment took effect so many times.
pub(crate) fn paid(times: i64) -> Vec<Order> {
    [2500, 990, 129_900].map(|cents| ("paid".to_owned(), times * cents, times, times * cents)).to_vec()
}

/// What it prints, run in a folder with these arguments and variables.
pub(crate) fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_shop"))
        .current_dir(folder)
        .args(args)
        .env_remove("HAPAX_STORE")
        .env_remove("HAPAX_BROKER")
        .envs(variables.iter().copied())
        .output()
        .expect("the shop is built with its tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}
