//! What a command is about to change, and the consent to it.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use hapax::Code;

use crate::trouble::Trouble;

/// Shows a plan and asks for consent: `--yes` gives it beforehand, and without a terminal it must.
pub(crate) fn confirm(plan: &str, yes: bool) -> Result<(), Trouble> {
    if yes {
        return Ok(());
    }
    let refused = |message: &str| {
        Trouble::usage(
            Code::ConfirmationNeeded,
            format!("{plan}: {message}"),
            "Give --yes to do it without being asked.",
        )
    };
    if !std::io::stdin().is_terminal() {
        return Err(refused("not confirmed, since there is no terminal to ask on"));
    }
    eprint!("{plan}. Go on? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" if read.is_ok() => Ok(()),
        _ => Err(refused("not confirmed")),
    }
}
