//! Runs the shop as a user does.

use std::path::Path;
use std::process::Command;

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
