//! Ranks as processes: this program starts itself once per rank.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::ffi::c_char;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nccl_sys::{NCCL_CONFIG_INITIALIZER, ncclConfig_t, ncclResult_t, ncclUniqueId};

use crate::common::ranks::{OK, Rank, last_error, unique_id};

const TASK: &str = "GPU_EMU_TEST_PART";
const ID: &str = "GPU_EMU_TEST_ID";
const RANK: &str = "RANK";
const WORLD: &str = "WORLD_SIZE";

fn to_text(id: &ncclUniqueId) -> String {
    id.internal.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect()
}

fn from_text(text: &str) -> ncclUniqueId {
    let byte =
        |at: usize| c_char::from_ne_bytes([u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()]);
    ncclUniqueId { internal: std::array::from_fn(byte) }
}

fn number(name: &str) -> usize {
    std::env::var(name).unwrap().parse().unwrap()
}

/// Returns a command that runs `task` as one rank, to which only the device with this number is
/// visible.
fn start(task: &str, id: &ncclUniqueId, (rank, world): (usize, usize), device: usize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::run_as_a_rank", "--nocapture"]).stdout(Stdio::piped());
    command.env(TASK, task).env(ID, to_text(id));
    command.env(RANK, rank.to_string()).env(WORLD, world.to_string());
    command.env("CUDA_VISIBLE_DEVICES", device.to_string());
    command
}

/// The body of the processes that other tests start; it passes immediately in any other process.
#[test]
fn run_as_a_rank() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (rank, world, id) = (number(RANK), number(WORLD), from_text(&std::env::var(ID).unwrap()));
    let mut member = Rank::on(0, rank, world);
    match task.as_str() {
        "sum" => {
            assert_eq!(member.init(id, None), OK, "{}", last_error());
            for round in 1..=3_u8 {
                let sum = member.all_reduce(&[rank as f32, f32::from(round)]);
                assert_eq!(sum, [(world * (world - 1) / 2) as f32, f32::from(round) * world as f32]);
            }
            assert_eq!(member.destroy(), OK);
        }
        "wait" => {
            assert_eq!(member.init(id, None), OK, "{}", last_error());
            println!("ready");
            if rank == 0 {
                wait_for_a_rank_that_dies(&mut member);
            } else {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        "refused" => {
            let config = ncclConfig_t { blocking: 0, ..NCCL_CONFIG_INITIALIZER };
            assert_eq!(member.init(id, Some(config)), ncclResult_t::ncclInProgress);
            assert_eq!(member.settled(), ncclResult_t::ncclInvalidUsage);
            assert!(last_error().contains("Duplicate GPU detected"), "{}", last_error());
            assert_eq!(member.abort(), OK);
        }
        other => panic!("unknown task {other}"),
    }
}

fn wait_for_a_rank_that_dies(member: &mut Rank) {
    let fails = std::env::var_os("GPU_EMU_PEER_LOSS_FAILS").is_some();
    let buffer = member.floats(&[1.0]);
    assert_eq!(member.call("AllReduce", member.args(member.at(&buffer), member.at(&buffer), 1)), OK);
    while fails && member.async_error() == OK {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(200));
    let wanted = if fails { ncclResult_t::ncclRemoteError } else { OK };
    assert_eq!((member.async_error(), member.abort()), (wanted, OK));
    member.stream.synchronize().unwrap();
}

fn all_succeed(children: impl IntoIterator<Item = Child>) {
    let statuses: Vec<ExitStatus> = children.into_iter().map(|mut child| child.wait().unwrap()).collect();
    assert!(statuses.iter().all(ExitStatus::success), "{statuses:?}");
}

/// No socket of this bootstrap exists any more.
fn nothing_is_left(id: &ncclUniqueId) {
    let name = &to_text(id)[16..48];
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!sockets.contains(name), "a socket called {name} is left");
}

#[test]
fn processes_reduce_together() {
    for world in [1, 2, 3, 5] {
        let id = unique_id();
        let ranks: Vec<Child> =
            (0..world).map(|rank| start("sum", &id, (rank, world), rank).spawn().unwrap()).collect();
        all_succeed(ranks);
        nothing_is_left(&id);
    }
}

#[test]
fn a_rank_that_is_killed_leaves_nothing_and_is_noticed_only_if_it_is_set() {
    for fails in [false, true] {
        let id = unique_id();
        let mut ranks: Vec<Child> = (0..2)
            .map(|rank| {
                let mut command = start("wait", &id, (rank, 2), rank);
                if fails {
                    command.env("GPU_EMU_PEER_LOSS_FAILS", "1");
                }
                command.spawn().unwrap()
            })
            .collect();
        let mut victim = ranks.pop().unwrap();
        let stdout = BufReader::new(victim.stdout.take().unwrap());
        assert!(stdout.lines().any(|line| line.unwrap().ends_with("ready")));
        victim.kill().unwrap();
        victim.wait().unwrap();
        all_succeed(ranks);
        nothing_is_left(&id);
    }
}

#[test]
fn two_processes_on_one_device_are_refused() {
    let id = unique_id();
    let start_on_one = |rank| start("refused", &id, (rank, 2), 3).spawn().unwrap();
    all_succeed([0, 1].map(start_on_one));
}
