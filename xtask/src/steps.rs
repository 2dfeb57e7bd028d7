//! Commands run one after another, each announced, timed, and the last if it fails.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use crate::failure::{Context, Failure, Result};

/// Runs `command` and says how long it took.
pub(crate) fn run(name: &str, command: &mut Command) -> Result {
    let started = Instant::now();
    run_last(name, command)?;
    report(name, started);
    Ok(())
}

/// The same for the step after which nothing may be printed: a test runner's closing lines are what people
/// and CI read at the end.
pub(crate) fn run_last(name: &str, command: &mut Command) -> Result {
    announce(name, command);
    let status = command.status().context(&shown(command))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{name} failed ({status})"))) }
}

/// The same for a command whose standard output is needed: it is passed on line by line, and returned.
pub(crate) fn run_and_read(name: &str, command: &mut Command) -> Result<String> {
    let started = Instant::now();
    announce(name, command);
    let mut child = command.stdout(Stdio::piped()).spawn().context(&shown(command))?;
    let mut text = String::new();
    // It is there, since it was asked for; a child without one would have nothing to say.
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.context(&shown(command))?;
        println!("{line}");
        text.push_str(&line);
        text.push('\n');
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(Failure::new(format!("{name} failed ({status})")));
    }
    report(name, started);
    Ok(text)
}

/// Whether a command exists and succeeds; what it prints is nobody's business.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// What a command prints, without the line's end.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command.output().context(&shown(command))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("{} failed ({}): {}", shown(command), output.status, reason.trim())))
}

/// Cargo, as it called us, at the root of the workspace.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(args);
    command
}

/// The root of the workspace: the folder above this crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

fn announce(name: &str, command: &Command) {
    eprintln!("\n==> {name}: {}", shown(command));
}

fn report(name: &str, started: Instant) {
    eprintln!("    {name}: {:.1} s", started.elapsed().as_secs_f64());
}

/// A command as one would type it, or nearly.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    command.get_args().fold(name, |line, arg| format!("{line} {}", arg.to_string_lossy()))
}
