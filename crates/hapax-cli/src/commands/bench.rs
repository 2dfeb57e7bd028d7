//! `hapax bench`: protected against unprotected consumers, side by side.

use std::process::ExitCode;

use crate::args::Bench;
use crate::trouble::Trouble;

pub(crate) async fn run(_args: Bench) -> Result<ExitCode, Trouble> {
    Ok(ExitCode::SUCCESS)
}
