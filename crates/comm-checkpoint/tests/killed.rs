//! A process that is killed while it saves leaves a checkpoint that can be loaded.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use comm_checkpoint::{Checkpoints, Options, State};

const FOLDER: &str = "COMM_TEST_CHECKPOINTS";
const ELEMENTS: usize = 60_000;

fn element(step: u64, at: usize) -> u32 {
    (step as u32).wrapping_mul(0x9e37_79b9) ^ at as u32
}

/// Saves steps until the process is killed, and prints each step that is on disk.
#[test]
#[ignore = "the process that `a_kill_at_any_time_leaves_a_valid_checkpoint` kills"]
fn child() {
    let Ok(folder) = env::var(FOLDER) else { return };
    comm::threads::run(2, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, &folder, Options::default().keep(2)).unwrap();
        let first = checkpoints.load_latest().unwrap().map_or(0, |found| found.step()) + 1;
        for step in first.. {
            let data: Vec<u32> =
                (0..ELEMENTS / 2).map(|at| element(step, comm.rank() * ELEMENTS / 2 + at)).collect();
            let mut state = State::new();
            state.shard("data", &[ELEMENTS], comm.rank() * ELEMENTS / 2, &data).unwrap();
            state.tensor("step", &[], &step).unwrap();
            checkpoints.save(step, &state).unwrap();
            if comm.rank() == 0 {
                println!("saved {step}");
            }
        }
    })
    .unwrap();
}

/// Returns the step of the newest checkpoint, whose data are verified.
fn load(folder: &Path) -> u64 {
    let steps = comm::threads::run(3, |comm| {
        let latest = Checkpoints::open(&comm, folder, Options::default()).unwrap().load_latest().unwrap();
        let Some(checkpoint) = latest else { return 0 };
        let (mut data, mut step) = (vec![0_u32; ELEMENTS], 0_u64);
        checkpoint.read("data", &mut data).unwrap();
        checkpoint.read("step", &mut step).unwrap();
        assert_eq!(step, checkpoint.step());
        assert!(data.iter().enumerate().all(|(at, data)| *data == element(step, at)));
        step
    });
    steps.unwrap()[0]
}

/// The number of kills is small to keep the test short; `COMM_TEST_KILLS` sets another.
#[test]
fn a_kill_at_any_time_leaves_a_valid_checkpoint() {
    let kills = env::var("COMM_TEST_KILLS").map_or(15, |kills| kills.parse::<u64>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut newest = 0;
    for _ in 0..kills {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut saved = newest;
        let mut note = |line: &str| {
            saved =
                line.split_once("saved ").map_or(saved, |(_, step)| step.trim().parse().unwrap()).max(saved);
        };
        // The first saved step shows that the process is in its loop.
        while let Some(Ok(line)) = lines.next() {
            note(&line);
            if line.contains("saved ") {
                break;
            }
        }
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
        thread::sleep(Duration::from_micros(u64::from(nanos / 1000 % 30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.map_while(Result::ok).for_each(|line| note(&line));
        newest = load(folder.path());
        assert!(newest >= saved && saved > 0, "step {saved} was saved, but {newest} is the newest");
    }
}
