//! The processes of the ranks of a case.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::CaseSpec;
use crate::record::{RankResult, Verdict};

/// The maximum length of the output in a message.
const WORDS_MAX: usize = 400;
const TICK: Duration = Duration::from_millis(5);
/// The time that the other ranks have to exit after one has failed. They may be waiting for it, and
/// their errors would only be consequences.
const GRACE: Duration = Duration::from_secs(2);

/// The combined result of all ranks.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) message: String,
    pub(super) seconds: f64,
}

/// The processes of a group. Dropping it kills those that are still running.
#[derive(Debug, Default)]
pub(super) struct Group {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    spec: CaseSpec,
    child: Child,
    /// `None` while it runs.
    status: Option<ExitStatus>,
}

/// Sets the variables that keep NCCL on this machine, unless the user has set them.
pub(super) fn set_environment(command: &mut Command, environment: &[(String, String)]) {
    let lo = ("NCCL_SOCKET_IFNAME".to_owned(), "lo".to_owned());
    for (name, value) in environment.iter().chain([&lo]) {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

impl Group {
    pub(super) fn start(&mut self, spec: &CaseSpec, command: &mut Command) -> io::Result<()> {
        let output = File::create(spec.output_path())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn()?;
        self.members.push(Member { spec: spec.clone(), child, status: None });
        Ok(())
    }

    /// Waits for all processes, and kills those that exceed the limit, or the grace period after a
    /// failure.
    pub(super) fn wait(mut self, limit: Duration, killed: Option<usize>) -> Report {
        let began = Instant::now();
        let mut until = began + limit;
        let mut has_failed = false;
        // Polls all of them, without short-circuiting, because any may have failed.
        while self.members.iter_mut().fold(false, |any, member| member.is_running() | any)
            && Instant::now() < until
        {
            if !has_failed && self.members.iter().any(Member::has_failed) {
                has_failed = true;
                until = until.min(Instant::now() + GRACE);
            }
            thread::sleep(TICK);
        }
        let took = began.elapsed();
        let endings: Vec<(usize, RankResult)> =
            self.members.iter().map(|member| (member.spec.rank, member.ending(took, killed))).collect();
        combine(&endings)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.status.is_none()) {
            // This fails only if the process has already exited.
            drop(member.child.kill());
            drop(member.child.wait());
        }
    }
}

impl Member {
    fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            // A process whose state is unknown counts as running, until the limit.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// Returns the result that the rank has written, if any.
    fn written_result(&self) -> Option<RankResult> {
        fs::read(self.spec.result_path()).ok().and_then(|text| serde_json::from_slice(&text).ok())
    }

    /// Returns whether the rank has exited and reported a failure.
    fn has_failed(&self) -> bool {
        self.status.is_some() && self.written_result().is_some_and(|wrote| wrote.verdict == Verdict::Failed)
    }

    fn ending(&self, took: Duration, killed: Option<usize>) -> RankResult {
        let wrote = self.written_result();
        let is_killed = killed == Some(self.spec.rank);
        let output = fs::read(self.spec.output_path()).unwrap_or_default();
        rank_result(self.status, wrote, is_killed, &format!("after {took:.1?}, {}", output_tail(&output)))
    }
}

/// Returns the result of a rank, from the exit status of its process and the result that it wrote.
fn rank_result(
    status: Option<ExitStatus>,
    wrote: Option<RankResult>,
    is_killed: bool,
    output: &str,
) -> RankResult {
    let failed = |message: String| RankResult { verdict: Verdict::Failed, message, seconds: 0.0 };
    match (status, wrote) {
        (None, Some(wrote)) => failed(format!("does not exit after its result ({:?})", wrote.verdict)),
        (None, None) => failed(format!("did not exit: {output}")),
        (Some(status), None) if is_killed && status.signal() == Some(Signal::KILL.as_raw()) => {
            RankResult { verdict: Verdict::Passed, message: String::new(), seconds: 0.0 }
        }
        (Some(status), None) => failed(format!("exited without a result, {status}: {output}")),
        (Some(_), Some(wrote)) if is_killed && wrote.verdict == Verdict::Passed => {
            failed("was not killed as planned".into())
        }
        (Some(status), Some(wrote)) if wrote.verdict == Verdict::Passed && !status.success() => {
            failed(format!("passed, but its process failed, {status}: {output}"))
        }
        (Some(_), Some(wrote)) => wrote,
    }
}

/// Combines the results. If any rank failed, the case failed; otherwise, if any rank was not run,
/// neither was the case.
fn combine(endings: &[(usize, RankResult)]) -> Report {
    let has = |verdict| endings.iter().any(|(_, ending)| ending.verdict == verdict);
    let verdict = match (has(Verdict::Failed), has(Verdict::NotRun)) {
        (true, _) => Verdict::Failed,
        (false, true) => Verdict::NotRun,
        (false, false) => Verdict::Passed,
    };
    let named = endings.iter().filter(|(_, ending)| verdict != Verdict::Passed && ending.verdict == verdict);
    let word = |(rank, ending): &(usize, RankResult)| match endings {
        [_alone] => ending.message.clone(),
        _ => format!("rank {rank}: {}", ending.message),
    };
    let message = named.map(word).collect::<Vec<_>>().join("; ");
    let seconds = endings.iter().map(|(_, ending)| ending.seconds).fold(0.0, f64::max);
    Report { verdict, message, seconds }
}

/// Returns the end of the output on one line.
pub(super) fn output_tail(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return "no output".into();
    }
    let skipped = words.chars().count().saturating_sub(WORDS_MAX);
    format!("output \"{}\"", words.chars().skip(skipped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(verdict: Verdict, words: &str, seconds: f64) -> RankResult {
        RankResult { verdict, message: words.into(), seconds }
    }

    fn exit(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn killed() -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(Signal::KILL.as_raw()))
    }

    #[test]
    fn a_rank_passes_only_with_a_result_and_a_successful_exit() {
        let passed = || Some(ending(Verdict::Passed, "", 1.0));
        let verdict = |status, wrote, is_killed| rank_result(status, wrote, is_killed, "output").verdict;
        assert_eq!(verdict(exit(0), passed(), false), Verdict::Passed);
        assert_eq!(verdict(exit(1), passed(), false), Verdict::Failed);
        assert_eq!(verdict(exit(0), None, false), Verdict::Failed);
        assert_eq!(verdict(None, passed(), false), Verdict::Failed);
        assert_eq!(verdict(None, None, false), Verdict::Failed);
        assert_eq!(verdict(killed(), None, false), Verdict::Failed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::NotRun, "", 0.0)), false), Verdict::NotRun);
    }

    #[test]
    fn a_rank_with_a_planned_kill_passes_only_if_it_was_killed() {
        let verdict = |status, wrote| rank_result(status, wrote, true, "output").verdict;
        assert_eq!(verdict(killed(), None), Verdict::Passed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::Passed, "", 1.0))), Verdict::Failed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::Failed, "", 1.0))), Verdict::Failed);
        assert_eq!(verdict(exit(101), None), Verdict::Failed);
    }

    #[test]
    fn a_failed_rank_fails_the_case_and_is_named() {
        let endings = [(0, ending(Verdict::NotRun, "old", 0.1)), (1, ending(Verdict::Failed, "no", 2.0))];
        let report = combine(&endings);
        assert_eq!(
            (report.verdict, report.message.as_str(), report.seconds),
            (Verdict::Failed, "rank 1: no", 2.0)
        );
        assert_eq!(combine(&endings[..1]).message, "old");
        assert_eq!(combine(&endings[..1]).verdict, Verdict::NotRun);
        assert_eq!(combine(&[(0, ending(Verdict::Passed, "", 1.0))]).verdict, Verdict::Passed);
    }

    #[test]
    fn only_the_end_of_a_long_output_is_kept() {
        let words = output_tail(format!("{}\nthe end\n", "\u{e9}".repeat(WORDS_MAX)).as_bytes());
        assert!(words.ends_with("the end\"") && words.chars().count() < WORDS_MAX + 20, "{words}");
        assert_eq!(output_tail(b" \n"), "no output");
    }
}
