//! Tests of the program with real processes; some are killed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Steps of the runs that are killed: enough that none is over before it is killed.
const LONG: [&str; 6] = ["--steps", "800", "--checkpoint-every", "50", "--validate-every", "70"];

/// Each rank has parameters of its own when a checkpoint is saved.
const LOCAL: [&str; 4] = ["--diloco", "7", "--fragments", "2"];

/// Each rank also has rounding errors of its own, and a fragment on its way.
const ENCODED: [&str; 8] = ["--diloco", "7", "--fragments", "2", "--delay", "2", "--codec", "int4"];

/// A run in a folder of its own.
struct Run {
    folder: TempDir,
    ranks: &'static str,
    args: Vec<String>,
}

impl Run {
    fn new(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { folder, ranks: "3", args }
    }

    fn with_checkpoints(args: &[&str]) -> Self {
        let mut run = Self::new(args);
        let folder = run.checkpoints().to_str().unwrap().to_owned();
        run.args.extend(["--checkpoints".to_owned(), folder]);
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn checkpoints(&self) -> PathBuf {
        self.path("checkpoints")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpt"));
        command.args(["-n", self.ranks, "--tiny", "--out"]).arg(self.path("gpt.json")).args(&self.args);
        command
    }

    fn start(&self) -> Child {
        self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs to the end, and returns the printed lines.
    fn finish(&self) -> String {
        succeeded(self.command().output().unwrap()).0
    }

    fn report(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path("gpt.json")).unwrap()).unwrap()
    }

    /// Waits until a checkpoint is complete.
    fn wait_for_checkpoint(&self, child: &mut Child) {
        let has_manifest = |entry: fs::DirEntry| entry.path().join("manifest.json").exists();
        let is_complete = || -> bool {
            fs::read_dir(self.checkpoints()).is_ok_and(|found| found.flatten().any(has_manifest))
        };
        while !is_complete() {
            let ended: Option<ExitStatus> = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended without a checkpoint: {ended:?}");
            thread::yield_now();
        }
    }
}

/// Returns standard output and standard error of a run that succeeded.
fn succeeded(output: Output) -> (String, String) {
    let [printed, complaints] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{printed}\n{complaints}");
    (printed, complaints)
}

/// The losses of all steps, and of the validations, which are `f32` and so are not rounded in JSON.
fn losses(args: &[&str]) -> (Value, Value) {
    let run = Run::new(args);
    run.finish();
    (run.report()["losses"].clone(), run.report()["validation"].clone())
}

/// Returns the process of a rank that a launcher has started.
fn rank(launcher: &Child, rank: usize) -> Pid {
    let pid = launcher.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let wanted = format!("RANK={rank}");
    let has_rank = |child: &&str| {
        let environment = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let found = children.split_whitespace().find(has_rank).unwrap();
    Pid::from_raw(found.parse().unwrap()).unwrap()
}

fn wait_until_dead(process: Pid) {
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        thread::yield_now();
    }
}

#[test]
fn a_run_reports_its_losses() {
    let run = Run::new(&["--validate-every", "25"]);
    let printed = run.finish();
    let lines: Vec<&str> = printed.lines().collect();
    let [.., files, sent, trigram, validation, replicas] = lines[..] else { panic!("{printed}") };
    assert!(files.starts_with("losses: ") && sent.starts_with("sent: "), "{printed}");
    assert_eq!(replicas, "replicas bit-identical: yes");
    let bits = |line: &str, name: &str| -> f64 {
        let text = line.strip_prefix(name).unwrap().strip_suffix(" bits per byte").unwrap();
        text.parse().unwrap()
    };
    let (trigram, validation) = (bits(trigram, "trigram: "), bits(validation, "validation: "));
    assert!((2.0..4.0).contains(&trigram) && validation < 6.0, "{printed}");
    let report = run.report();
    let losses = &report["losses"];
    assert_eq!(losses["training"].as_array().unwrap().len(), 60);
    assert_eq!(losses["validated"], serde_json::json!([25, 50, 60]));
    assert!((report["validation"].as_f64().unwrap() - validation).abs() < 1e-4);
    assert!((report["trigram"].as_f64().unwrap() - trigram).abs() < 1e-4);
    let svg = fs::read_to_string(run.path("gpt.svg")).unwrap();
    assert!(svg.trim_end().ends_with("</svg>"));
}

#[test]
fn equal_runs_have_equal_losses_and_other_seeds_have_others() {
    let short = |seed| losses(&["--steps", "8", "--seed", seed]);
    assert_eq!(short("1"), short("1"));
    assert_ne!(short("1"), short("2"));
}

/// Kills a job after its first checkpoint, and compares its losses with another job's that is not
/// killed and saves no checkpoints.
fn killed_and_continued(args: &[&str]) {
    let run = Run::with_checkpoints(args);
    let mut job = run.start();
    run.wait_for_checkpoint(&mut job);
    let ranks = [0, 1, 2].map(|number| rank(&job, number));
    // The kernel kills the ranks with their launcher.
    job.kill().unwrap();
    job.wait().unwrap();
    ranks.into_iter().for_each(wait_until_dead);
    assert!(!run.path("gpt.json").exists(), "the run was over before it was killed");
    let printed = run.finish();
    assert!(printed.contains("continuing after step "), "{printed}");
    assert_eq!((run.report()["losses"].clone(), run.report()["validation"].clone()), losses(args));
}

#[test]
fn a_job_that_is_killed_continues_with_the_losses_of_one_that_is_not() {
    killed_and_continued(&LONG);
}

#[test]
fn a_job_that_is_killed_between_outer_steps_continues_with_the_same_losses() {
    killed_and_continued(&[&LONG[..], &LOCAL].concat());
}

#[test]
fn a_job_that_is_killed_while_encoded_fragments_are_sent_continues_with_the_same_losses() {
    killed_and_continued(&[&LONG[..], &ENCODED].concat());
}

#[test]
fn outer_steps_send_less_and_leave_equal_replicas() {
    let run = Run::new(&LOCAL);
    let printed = run.finish();
    assert!(printed.ends_with("replicas bit-identical: yes\n"), "{printed}");
    let number = |name: &str| run.report()[name].as_f64().unwrap();
    // All parameters are sent once in seven steps, and once at the end of the sixty.
    let expected = (60 / 7 + 1) as f64 / 60.0;
    let share = number("bytes_per_step") / number("data_parallel_bytes_per_step");
    assert!((share - expected).abs() < 0.01, "{share} instead of {expected}");
    assert!(number("validation") < 6.0, "{printed}");
}

#[test]
fn a_job_restarts_by_itself_after_a_rank_was_killed() {
    let run = Run::with_checkpoints(&[&LONG[..], &["--max-restarts", "1"]].concat());
    let mut job = run.start();
    run.wait_for_checkpoint(&mut job);
    kill_process(rank(&job, 1), Signal::KILL).unwrap();
    let (printed, complaints) = succeeded(job.wait_with_output().unwrap());
    assert!(complaints.contains("was killed by SIGKILL: restart 1 of 1"), "{complaints}");
    assert!(printed.contains("continuing after step "), "{printed}");
    assert_eq!((run.report()["losses"].clone(), run.report()["validation"].clone()), losses(&LONG));
}

#[test]
fn another_number_of_ranks_continues_a_run() {
    let mut run = Run::with_checkpoints(&["--steps", "20", "--checkpoint-every", "20"]);
    run.finish();
    let before = run.report();
    // The run is over, so the ranks only validate the model.
    run.ranks = "2";
    let printed = run.finish();
    assert!(printed.contains("continuing after step 20"), "{printed}");
    let (after, bits) = (run.report(), |report: &Value| report["validation"].as_f64().unwrap());
    assert_eq!(after["losses"], before["losses"]);
    assert!((bits(&after) - bits(&before)).abs() < 1e-5);
}

#[test]
fn a_checkpoint_of_other_settings_is_refused() {
    let run = Run::with_checkpoints(&["--steps", "4"]);
    run.finish();
    let output = run.command().args(["--seed", "5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(complaints.contains("the checkpoint is of a run with other settings"), "{complaints}");
}

#[test]
fn a_batch_that_ranks_cannot_share_is_refused() {
    let output = Run::new(&["--batch", "7"]).command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaints = String::from_utf8(output.stderr).unwrap();
    assert!(complaints.contains("7 windows per step cannot be shared by 3 ranks equally"), "{complaints}");
}
