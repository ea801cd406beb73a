//! Processes that play the ranks of a case.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Part;
use crate::record::{Ending, Verdict};

/// How much of what a process said last is worth keeping.
const WORDS_MAX: usize = 400;
const TICK: Duration = Duration::from_millis(5);
/// How long the other ranks may go on when one has failed. They may well wait for it, and what they say then helps nobody.
const GRACE: Duration = Duration::from_secs(2);

/// How the ranks of a case ended, taken together.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) words: String,
    pub(super) seconds: f64,
}

/// Processes that belong together. Those that still run when this is dropped are killed.
#[derive(Debug, Default)]
pub(super) struct Group {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    part: Part,
    child: Child,
    /// None while it runs.
    status: Option<ExitStatus>,
}

/// What processes need that talk to each other on one machine and nowhere else, unless the user says otherwise.
pub(super) fn on_this_machine(command: &mut Command, environment: &[(String, String)]) {
    let lo = ("NCCL_SOCKET_IFNAME".to_owned(), "lo".to_owned());
    for (name, value) in environment.iter().chain([&lo]) {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
}

impl Group {
    pub(super) fn start(&mut self, part: &Part, command: &mut Command) -> io::Result<()> {
        let said = File::create(part.said())?;
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let child = command.spawn()?;
        self.members.push(Member { part: part.clone(), child, status: None });
        Ok(())
    }

    /// Waits until all have ended, and kills those that do not in time, or not soon after one has failed.
    pub(super) fn ended(mut self, limit: Duration, killed: Option<usize>) -> Report {
        let began = Instant::now();
        let mut until = began + limit;
        let mut has_failed = false;
        // All are asked each time, as whoever has ended may have failed.
        while self.members.iter_mut().fold(false, |any, member| member.runs() | any) && Instant::now() < until
        {
            if !has_failed && self.members.iter().any(Member::has_failed) {
                has_failed = true;
                until = until.min(Instant::now() + GRACE);
            }
            thread::sleep(TICK);
        }
        let took = began.elapsed();
        let endings: Vec<(usize, Ending)> =
            self.members.iter().map(|member| (member.part.rank, member.ending(took, killed))).collect();
        together(&endings)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.status.is_none()) {
            // What has ended meanwhile cannot be killed.
            drop(member.child.kill());
            drop(member.child.wait());
        }
    }
}

impl Member {
    fn runs(&mut self) -> bool {
        if self.status.is_none() {
            // A process that cannot be asked counts as running, until the limit.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_none()
    }

    /// What it wrote down, once it has.
    fn wrote(&self) -> Option<Ending> {
        fs::read(self.part.outcome()).ok().and_then(|text| serde_json::from_slice(&text).ok())
    }

    /// Whether it has ended, and said that something was wrong.
    fn has_failed(&self) -> bool {
        self.status.is_some() && self.wrote().is_some_and(|wrote| wrote.verdict == Verdict::Failed)
    }

    fn ending(&self, took: Duration, killed: Option<usize>) -> Ending {
        let wrote = self.wrote();
        let is_killed = killed == Some(self.part.rank);
        let said = fs::read(self.part.said()).unwrap_or_default();
        judge(self.status, wrote, is_killed, &format!("after {took:.1?}, it {}", last_words(&said)))
    }
}

/// How a rank ended, by how its process did and what it wrote down before. `said` is for where that tells nothing.
fn judge(status: Option<ExitStatus>, wrote: Option<Ending>, is_killed: bool, said: &str) -> Ending {
    let failed = |words: String| Ending { verdict: Verdict::Failed, words, seconds: 0.0 };
    match (status, wrote) {
        (None, Some(wrote)) => failed(format!("does not end, though it is through ({:?})", wrote.verdict)),
        (None, None) => failed(format!("did not end: {said}")),
        (Some(status), None) if is_killed && status.signal() == Some(Signal::KILL.as_raw()) => {
            Ending { verdict: Verdict::Passed, words: String::new(), seconds: 0.0 }
        }
        (Some(status), None) => failed(format!("ended without a word, {status}: {said}")),
        (Some(_), Some(wrote)) if is_killed && wrote.verdict == Verdict::Passed => {
            failed("was to be killed, and was not".into())
        }
        (Some(status), Some(wrote)) if wrote.verdict == Verdict::Passed && !status.success() => {
            failed(format!("passed, and then its process failed, {status}: {said}"))
        }
        (Some(_), Some(wrote)) => wrote,
    }
}

/// All that did not pass is told. What fails on one rank fails; what cannot run on one is not run.
fn together(endings: &[(usize, Ending)]) -> Report {
    let has = |verdict| endings.iter().any(|(_, ending)| ending.verdict == verdict);
    let verdict = match (has(Verdict::Failed), has(Verdict::NotRun)) {
        (true, _) => Verdict::Failed,
        (false, true) => Verdict::NotRun,
        (false, false) => Verdict::Passed,
    };
    let told = endings.iter().filter(|(_, ending)| verdict != Verdict::Passed && ending.verdict == verdict);
    let word = |(rank, ending): &(usize, Ending)| match endings {
        [_alone] => ending.words.clone(),
        _ => format!("rank {rank}: {}", ending.words),
    };
    let words = told.map(word).collect::<Vec<_>>().join("; ");
    let seconds = endings.iter().map(|(_, ending)| ending.seconds).fold(0.0, f64::max);
    Report { verdict, words, seconds }
}

/// The end of what was said, on one line.
pub(super) fn last_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        return "said nothing".into();
    }
    let skipped = words.chars().count().saturating_sub(WORDS_MAX);
    format!("said \"{}\"", words.chars().skip(skipped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(verdict: Verdict, words: &str, seconds: f64) -> Ending {
        Ending { verdict, words: words.into(), seconds }
    }

    fn exit(code: i32) -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(code << 8))
    }

    fn killed() -> Option<ExitStatus> {
        Some(ExitStatus::from_raw(Signal::KILL.as_raw()))
    }

    #[test]
    fn a_rank_passes_only_if_it_says_so_and_ends_well() {
        let passed = || Some(ending(Verdict::Passed, "", 1.0));
        let verdict = |status, wrote, is_killed| judge(status, wrote, is_killed, "said").verdict;
        assert_eq!(verdict(exit(0), passed(), false), Verdict::Passed);
        assert_eq!(verdict(exit(1), passed(), false), Verdict::Failed);
        assert_eq!(verdict(exit(0), None, false), Verdict::Failed);
        assert_eq!(verdict(None, passed(), false), Verdict::Failed);
        assert_eq!(verdict(None, None, false), Verdict::Failed);
        assert_eq!(verdict(killed(), None, false), Verdict::Failed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::NotRun, "", 0.0)), false), Verdict::NotRun);
    }

    #[test]
    fn a_rank_that_is_to_be_killed_passes_only_if_it_was() {
        let verdict = |status, wrote| judge(status, wrote, true, "said").verdict;
        assert_eq!(verdict(killed(), None), Verdict::Passed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::Passed, "", 1.0))), Verdict::Failed);
        assert_eq!(verdict(exit(0), Some(ending(Verdict::Failed, "", 1.0))), Verdict::Failed);
        assert_eq!(verdict(exit(101), None), Verdict::Failed);
    }

    #[test]
    fn one_rank_that_fails_is_enough_and_is_named() {
        let endings = [(0, ending(Verdict::NotRun, "old", 0.1)), (1, ending(Verdict::Failed, "no", 2.0))];
        let report = together(&endings);
        assert_eq!(
            (report.verdict, report.words.as_str(), report.seconds),
            (Verdict::Failed, "rank 1: no", 2.0)
        );
        assert_eq!(together(&endings[..1]).words, "old");
        assert_eq!(together(&endings[..1]).verdict, Verdict::NotRun);
        assert_eq!(together(&[(0, ending(Verdict::Passed, "", 1.0))]).verdict, Verdict::Passed);
    }

    #[test]
    fn only_the_end_of_a_long_story_is_kept() {
        let words = last_words(format!("{}\nthe end\n", "\u{e9}".repeat(WORDS_MAX)).as_bytes());
        assert!(words.ends_with("the end\"") && words.chars().count() < WORDS_MAX + 20, "{words}");
        assert_eq!(last_words(b" \n"), "said nothing");
    }
}
