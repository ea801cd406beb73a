//! `commctl top` shows ranks that run, wait and are stopped.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use comm::ReduceOp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{commctl, run};
use crate::wait::wait_for;

/// The folder in which ranks report their process ids.
pub(crate) const FOLDER: &str = "OBSERVED_FOLDER";
/// The variable with the rank that is late for every call.
const LATE: &str = "OBSERVED_LATE";

/// Makes calls until it is killed.
pub(crate) fn make_calls() {
    let comm = comm::init().unwrap();
    let late = std::env::var(LATE).ok().is_some_and(|late| late == comm.rank().to_string());
    // In this algorithm every rank waits for every other one itself.
    let comm = comm.with_algorithm("one_shot");
    comm.all_reduce(&mut [0_u8], ReduceOp::Sum).unwrap();
    let path = PathBuf::from(std::env::var_os(FOLDER).unwrap()).join(comm.rank().to_string());
    std::fs::write(path.with_extension("new"), std::process::id().to_string()).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    loop {
        sleep(Duration::from_millis(if late { 100 } else { 1 }));
        if comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).is_err() {
            return;
        }
    }
}

/// A job. Dropping it kills it with its ranks.
struct Job {
    launcher: Child,
    folder: TempDir,
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.launcher.kill());
        drop(self.launcher.wait());
    }
}

impl Job {
    fn start(ranks: usize, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = run(ranks, "calls");
        command.env(FOLDER, folder.path()).envs(variables.iter().copied());
        let job = Self { launcher: command.stderr(Stdio::null()).spawn().unwrap(), folder };
        (0..ranks).for_each(|rank| assert!(job.pid(rank).as_raw_nonzero().get() > 1));
        job
    }

    /// Waits until a rank makes calls, and returns its process.
    fn pid(&self, rank: usize) -> Pid {
        let path = self.folder.path().join(rank.to_string());
        let pid = wait_for("a rank to start", || std::fs::read_to_string(&path).ok()?.parse().ok());
        Pid::from_raw(pid).unwrap()
    }

    /// Returns the state as JSON, by the process of a rank.
    fn look(&self, rank: usize) -> Option<Value> {
        let output = top(&["--once", "--json", &self.pid(rank).to_string()]);
        serde_json::from_slice(&output.stdout).ok()
    }
}

fn top(args: &[&str]) -> Output {
    commctl().arg("top").args(args).output().unwrap()
}

#[test]
fn a_stopped_rank_is_named_by_any_rank_of_its_job_and_the_others_wait_for_it() {
    let job = Job::start(3, &[]);
    let stopped = job.pid(1);
    kill_process(stopped, Signal::STOP).unwrap();
    for asked in 0..3 {
        let view = wait_for("all to wait for rank 1", || {
            let view = job.look(asked)?;
            let summary = view["summary"].as_str()?.to_owned();
            summary.starts_with("rank 1 does not answer; all others wait for it in call ").then_some(view)
        });
        assert!(view["summary"].as_str().unwrap().ends_with(" all_reduce"), "{view:#}");
        let ranks = view["ranks"].as_array().unwrap();
        assert_eq!((&ranks[0]["rank"], &ranks[0]["state"]), (&1.into(), &"stopped".into()), "{view:#}");
        assert_eq!(ranks[0]["waited_for_by"], 2, "{view:#}");
        for waits in &ranks[1..] {
            assert_eq!(waits["state"], "in_call", "{view:#}");
            // A rank that got the last data of rank 1 is in the next call, and also waits for the
            // other one.
            assert!(waits["waiting_for"].as_array().unwrap().contains(&1.into()), "{view:#}");
            assert!(waits["seconds"].as_f64().unwrap() > 1.0, "{view:#}");
        }
    }
    let launcher = job.launcher.id().to_string();
    let text = String::from_utf8(top(&["--once", &launcher]).stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("rank 1 does not answer; all others wait for it"), "{text}");
    assert!(lines[3].contains("no answer (stopped)"), "{text}");
    kill_process(stopped, Signal::CONT).unwrap();
    wait_for("all to go on", || {
        let summary = job.look(0)?["summary"].as_str()?.to_owned();
        (summary == "3 ranks answer, and no call takes longer than 1 s").then_some(())
    });
}

#[test]
fn the_speed_and_the_lateness_of_each_rank_are_shown() {
    let job = Job::start(3, &[(LATE, "2")]);
    let mut command = commctl();
    command.args(["top", "--json", "--interval", "0.5", &job.pid(0).to_string()]).stdout(Stdio::piped());
    let mut top = command.spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    wait_for("rank 2 to be late", || {
        let view: Value = serde_json::from_str(&lines.next()?.unwrap()).unwrap();
        let ranks = view["ranks"].as_array()?;
        let latest = ranks.iter().max_by(|one, other| {
            one["late_ms"].as_f64().unwrap_or(0.0).total_cmp(&other["late_ms"].as_f64().unwrap_or(0.0))
        })?;
        assert_eq!(ranks.len(), 3, "{view:#}");
        let is_fast = |rank: &Value| {
            Some(rank["calls_per_s"].as_f64()? > 0.0 && rank["busbw_gb_per_s"].as_f64()? > 0.0)
        };
        let are_fast = ranks.iter().all(|rank| is_fast(rank).unwrap_or(false));
        (are_fast && latest["rank"] == 2 && latest["late_ms"].as_f64()? > 50.0).then_some(())
    });
    drop(job);
    // It ends with the last job.
    assert!(lines.all(|line| line.is_ok()));
    assert!(top.wait().unwrap().success());
}

#[test]
fn ranks_that_do_not_answer_by_choice_are_not_found() {
    let job = Job::start(2, &[("COMM_MONITOR", "0")]);
    let output = top(&["--once", &job.launcher.id().to_string()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("belongs to process") && stderr.contains("COMM_MONITOR"), "{stderr}");
}

#[test]
fn all_jobs_of_the_user_are_shown() {
    let (one, other) = (Job::start(1, &[]), Job::start(2, &[]));
    let output = top(&["--once", "--json"]);
    let views: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for job in [&one, &other] {
        let pid = job.pid(0).as_raw_nonzero().get();
        let shows = |view: &&Value| view["ranks"].as_array().unwrap().iter().any(|rank| rank["pid"] == pid);
        assert_eq!(views.iter().filter(shows).count(), 1, "{views:#?}");
    }
}
