//! Sessions with processes that measure calls on request.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::speed::Request;

/// The processes of one group. Each request is sent to all of them.
#[derive(Debug)]
pub(super) struct Session {
    ranks: Vec<RankProcess>,
    limit: Duration,
}

#[derive(Debug)]
struct RankProcess {
    child: Child,
    requests: ChildStdin,
    /// Disconnected when the process exits.
    answers: Receiver<String>,
}

/// The prefixes of answers. Libraries may print other lines, which are ignored.
const WORDS: [&str; 3] = ["ready ", "measured ", "failed "];

impl Session {
    /// Starts all ranks, and waits until each is ready. Returns the libraries that they loaded.
    pub(super) fn start(
        commands: impl IntoIterator<Item = Command>,
        limit: Duration,
    ) -> Result<(Self, Vec<String>), String> {
        let ranks = commands
            .into_iter()
            .map(|command| RankProcess::start(command).map_err(|error| error.to_string()));
        // All ranks are started before waiting for any, because they connect to each other.
        let session = Self { ranks: ranks.collect::<Result<_, _>>()?, limit };
        let ready = |rank: &RankProcess| {
            let answer = rank.answer(limit)?;
            answer.strip_prefix("ready ").map(str::to_owned).ok_or(answer)
        };
        let libraries = session.ranks.iter().map(ready).collect::<Result<_, _>>()?;
        Ok((session, libraries))
    }

    /// Sends a request, and returns the seconds per call on the slowest rank.
    pub(super) fn ask(&mut self, request: &Request) -> Result<f64, String> {
        for rank in &mut self.ranks {
            let asked = writeln!(rank.requests, "{request}").and_then(|()| rank.requests.flush());
            asked.map_err(|error| format!("cannot send a request: {error}"))?;
        }
        let answers = self.ranks.iter().map(|rank| seconds(&rank.answer(self.limit)?));
        let answers: Vec<f64> = answers.collect::<Result<_, _>>()?;
        Ok(answers.into_iter().fold(0.0, f64::max))
    }
}

/// Parses a result.
fn seconds(answer: &str) -> Result<f64, String> {
    let number = answer.strip_prefix("measured ").and_then(|number| number.trim().parse::<f64>().ok());
    number.filter(|seconds| seconds.is_finite() && *seconds > 0.0).ok_or_else(|| answer.to_owned())
}

impl RankProcess {
    fn start(mut command: Command) -> io::Result<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(requests), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (sender, answers) = mpsc::channel();
        let errors = thread::spawn(move || io::read_to_string(stderr).unwrap_or_default());
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // If the process is a test, its name precedes the first line.
                let line = line.rsplit(" ... ").next().unwrap_or_default();
                if WORDS.iter().any(|word| line.starts_with(word)) {
                    drop(sender.send(line.to_owned()));
                }
            }
            // The last message is the reason for the exit.
            let errors = errors.join().unwrap_or_default();
            drop(sender.send(format!("exited: {}", super::process::output_tail(errors.as_bytes()))));
        });
        Ok(Self { child, requests, answers })
    }

    fn answer(&self, limit: Duration) -> Result<String, String> {
        self.answers.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no result within {limit:?}"),
            RecvTimeoutError::Disconnected => "it has exited".to_owned(),
        })
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // This fails only if the process has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn request() -> Request {
        Request { name: "copy".into(), bytes: 8, calls: 1 }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let script = |seconds: &str| {
            format!(
                "echo 'NCCL WARN it failed to'; echo 'test me ... ready me'; while read q; do echo measured {seconds}; done"
            )
        };
        let commands = [shell(&script("0.25")), shell(&script("0.5"))];
        let (mut session, libraries) = Session::start(commands, LIMIT).unwrap();
        assert_eq!(libraries, ["me", "me"]);
        assert_eq!(session.ask(&request()), Ok(0.5));
        assert_eq!(session.ask(&request()), Ok(0.5));
    }

    #[test]
    fn the_error_of_a_failed_process_has_its_reason() {
        let why = Session::start([shell("echo no module >&2; exit 1")], LIMIT).unwrap_err();
        assert!(why.contains("no module"), "{why}");
        let (mut session, _) =
            Session::start([shell("echo ready me; read q; echo failed to sum")], LIMIT).unwrap();
        assert_eq!(session.ask(&request()), Err("failed to sum".into()));
        let (mut silent, _) =
            Session::start([shell("echo ready me; exec sleep 60")], Duration::from_secs(2)).unwrap();
        assert!(silent.ask(&request()).unwrap_err().contains("no result within"));
    }

    #[test]
    fn invalid_times_are_errors() {
        for answer in ["measured", "measured nan", "measured -1", "measured 0", "failed 1"] {
            assert!(seconds(answer).is_err(), "{answer}");
        }
    }
}
