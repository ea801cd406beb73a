//! Runs a measuring program and reads its output line by line.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The time without output after which a program counts as hung.
const SILENCE_MAX: Duration = Duration::from_secs(600);
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The maximum length in bytes of the error output in a record.
const REASON_MAX: usize = 300;

/// The error of a measuring program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    #[error("cannot start: {0}")]
    Start(io::Error),
    #[error("cannot be watched: {0}")]
    Watch(io::Error),
    #[error("no output for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("{status}: {stderr}")]
    Status { status: ExitStatus, stderr: String },
}

/// Runs a program, and calls `line` with every line of its output.
pub(crate) fn run<E>(
    command: &mut Command,
    line: impl FnMut(&str) -> Result<(), E>,
) -> Result<Result<(), ProcessError>, E> {
    run_within(command, SILENCE_MAX, line)
}

fn run_within<E>(
    command: &mut Command,
    silence_max: Duration,
    mut line: impl FnMut(&str) -> Result<(), E>,
) -> Result<Result<(), ProcessError>, E> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(ProcessError::Start(error))),
    };
    let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(Err(ProcessError::Watch(io::ErrorKind::BrokenPipe.into())));
    };
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        // After a read error, the text so far is used.
        drop(stderr.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(text) => {
                if let Err(error) = line(&text) {
                    terminate(&mut child);
                    return Err(error);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                terminate(&mut child);
                return Ok(Err(ProcessError::Silent(silence_max)));
            }
        }
    }
    Ok(match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(ProcessError::Status { status, stderr: tail(&errors.join().unwrap_or_default()) }),
        Err(error) => Err(ProcessError::Watch(error)),
    })
}

/// Sends SIGTERM, which launchers forward to their ranks, and SIGKILL after the grace period.
fn terminate(child: &mut Child) {
    // Errors mean that the process has already exited.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(50));
    }
    drop(child.kill());
    drop(child.wait());
}

/// Returns the end of a text on one line.
fn tail(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start = words.len().saturating_sub(REASON_MAX);
    words.char_indices().find(|(at, _)| *at >= start).map_or(String::new(), |(at, _)| words[at..].to_owned())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn shell(script: &str, silence_max: Duration) -> (Vec<String>, Result<(), ProcessError>) {
        let mut lines = Vec::new();
        let ended = run_within::<Infallible>(Command::new("sh").args(["-c", script]), silence_max, |line| {
            lines.push(line.to_owned());
            Ok(())
        });
        (lines, ended.unwrap())
    }

    #[test]
    fn all_lines_are_passed_on() {
        let (lines, ended) = shell("echo one; echo two; echo chatter >&2", SILENCE_MAX);
        assert_eq!(lines, ["one", "two"]);
        assert!(ended.is_ok(), "{ended:?}");
    }

    #[test]
    fn the_error_of_a_failed_program_has_its_error_output() {
        let (lines, ended) = shell("echo one; echo out of luck >&2; exit 3", SILENCE_MAX);
        assert_eq!(lines, ["one"]);
        let error = ended.unwrap_err().to_string();
        assert!(error.contains('3') && error.ends_with("out of luck"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_terminated() {
        let started = Instant::now();
        let (lines, ended) = shell("echo one; exec sleep 60", Duration::from_millis(200));
        assert_eq!(lines, ["one"]);
        assert!(matches!(ended, Err(ProcessError::Silent(_))), "{ended:?}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let ended = run::<Infallible>(&mut Command::new("no-such-program"), |_| Ok(())).unwrap();
        assert!(matches!(ended, Err(ProcessError::Start(_))), "{ended:?}");
    }

    #[test]
    fn only_the_end_of_a_long_text_is_kept() {
        let kept = tail(&format!("{} the end\n", "\u{e9}".repeat(REASON_MAX)));
        assert!(kept.ends_with("the end") && kept.len() <= REASON_MAX, "{kept}");
        assert_eq!(tail(""), "");
    }
}
