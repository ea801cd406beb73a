//! Tests with ranks as processes with emulated devices, configured by the environment, and of a
//! killed rank.
#![cfg(feature = "nccl")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;
#[path = "../examples/gpu.rs"]
mod example;

use std::time::{Duration, Instant};

use comm::{
    Config, DeviceBuffer, DevicePath, ElasticGroup, Error, GrowOptions, HybridCommunicator, ReduceOp, Result,
    ShrinkOptions,
};
use common::process::{self, Rank};
use gpu_emu::Control;

/// The path of the emulator's NCCL, or of no file.
fn nccl(is_there: bool) -> String {
    let path = Control::load().unwrap().path();
    if is_there { path.to_str().unwrap().to_owned() } else { "/nowhere/libnccl.so.2".into() }
}

/// Starts ranks with a device path, all on one host, with or without NCCL.
fn start(
    role: &str,
    ranks: usize,
    path: DevicePath,
    has_nccl: impl Fn(usize) -> bool,
) -> (comm::tcp::TcpStoreServer, Vec<Rank>) {
    start_on(role, (ranks, 1), path, has_nccl)
}

/// Like [`start`], on several hosts.
fn start_on(
    role: &str,
    (ranks, hosts): (usize, usize),
    path: DevicePath,
    has_nccl: impl Fn(usize) -> bool,
) -> (comm::tcp::TcpStoreServer, Vec<Rank>) {
    process::start(role, ranks, |rank| environment(rank, hosts, path, nccl(has_nccl(rank))))
}

/// Returns the environment of a rank.
fn environment(rank: usize, hosts: usize, path: DevicePath, nccl: String) -> [(&'static str, String); 5] {
    [
        ("COMM_HOSTID", (rank % hosts).to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("COMM_DEVICE_PATH", path.to_string()),
        ("COMM_NCCL_PATH", nccl),
        // Longer than the test.
        ("COMM_TIMEOUT_S", "60".into()),
    ]
}

fn sum(comm: &HybridCommunicator, len: usize) -> Result<Vec<f32>> {
    let mut buffer = DeviceBuffer::from_host(&comm.device().new_stream()?, &vec![1.0_f32; len])?;
    comm.cuda().all_reduce(&mut buffer, ReduceOp::Sum)?;
    buffer.to_vec()
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    // Before the driver is loaded.
    let control = Control::load().unwrap();
    if role == "connect" {
        std::thread::spawn(|| report_connecting(control));
    }
    if role == "again" {
        return connect_repeatedly();
    }
    if role == "elastic" {
        return come_and_go();
    }
    if role == "example" {
        return example::main().unwrap();
    }
    let comm = match comm::init_devices() {
        Ok(comm) => comm,
        Err(error) => return println!("report: {}", error.to_string().replace('\n', " ")),
    };
    let size = comm.group().size();
    assert_eq!(sum(&comm, 1000).unwrap(), vec![size as f32; 1000]);
    let mut host = [1_u32];
    comm.host().all_reduce(&mut host, ReduceOp::Sum).unwrap();
    assert_eq!(host, [size as u32]);
    println!("report: {} on device {}", comm.path(), comm.device().ordinal());
    if role == "wait" {
        wait(&comm);
    }
}

/// Creates a group and drops it, five times, in one store.
fn connect_repeatedly() {
    for time in 0..5 {
        match comm::init_devices() {
            Ok(comm) => assert_eq!(sum(&comm, 100).unwrap(), vec![comm.group().size() as f32; 100]),
            Err(error) => return println!("report: time {time}: {}", error.to_string().replace('\n', " ")),
        }
    }
    println!("report: connected five times");
}

/// Makes all-reduces on devices, in a new group after each change of the ranks.
fn come_and_go() {
    let mut group = ElasticGroup::join(&Config::from_env().unwrap()).unwrap();
    let mut may_grow = !group.is_newcomer();
    let mut devices = group.connect_devices();
    loop {
        let outcome = devices.as_ref().map_err(Error::clone).and_then(|comm| {
            let size = comm.group().size();
            assert_eq!(sum(comm, 1000)?, vec![size as f32; 1000]);
            Ok(size)
        });
        let outcome = outcome.and_then(|size| {
            if std::mem::replace(&mut may_grow, true) && group.grow(&GrowOptions::default())? > 0 {
                may_grow = false;
                devices = group.connect_devices();
                return Ok(None);
            }
            Ok(Some(size))
        });
        match outcome {
            Ok(size) => size.into_iter().for_each(|size| println!("report: sum of {size}")),
            Err(_) => {
                drop(devices);
                group.shrink(&ShrinkOptions::default()).unwrap();
                devices = group.connect_devices();
                may_grow = true;
            }
        }
    }
}

/// Waits until a rank reports sums over this number of ranks.
fn await_size(rank: &mut Rank, size: usize) {
    while rank.report().unwrap() != format!("sum of {size}") {}
}

#[test]
fn a_group_with_devices_regains_ranks() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let (store, mut ranks) = start("elastic", 2, path, |_| true);
        ranks.iter_mut().for_each(|rank| await_size(rank, 2));
        for device in [2, 3] {
            let mut newcomer = process::command("elastic", &store, (0, 4));
            newcomer.envs(environment(device, 1, path, nccl(true))).env("COMM_JOIN", "1");
            ranks.push(Rank::start(newcomer));
            ranks.iter_mut().for_each(|rank| await_size(rank, 3));
            // Rank 0 is killed.
            drop(ranks.remove(0));
            ranks.iter_mut().for_each(|rank| await_size(rank, 2));
        }
    }
}

#[test]
fn the_example_sums_on_devices() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        for ranks in [1, 2] {
            let (_store, processes) = start("example", ranks, path, |_| true);
            for mut process in processes {
                assert!(process.child.wait().unwrap().success(), "{path} with {ranks} ranks");
            }
        }
    }
}

fn report_connecting(control: &Control) {
    while control.live().communicators == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("report: connecting");
}

/// The last rank never makes the second call; the others wait for it on their devices.
fn wait(comm: &HybridCommunicator) {
    if comm.group().rank() + 1 == comm.group().size() {
        std::thread::sleep(Duration::from_secs(60));
    }
    let error = sum(comm, 1000).unwrap_err();
    let named = match error.root_cause() {
        Error::PeerLost { peer, .. } => format!("rank {peer} was lost"),
        // Another waiting rank was the first to abort.
        Error::Aborted { reason, .. } => reason.clone(),
        other => format!("other: {other}"),
    };
    println!("report: {named}");
    println!("report: {}", comm.barrier().unwrap_err().root_cause());
}

#[test]
fn ranks_that_wait_for_their_devices_detect_a_killed_rank() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        // Over shared memory, over TCP, and over both.
        for (ranks, hosts) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
            let (_store, mut processes) = start_on("wait", (ranks, hosts), path, |_| true);
            for (rank, process) in processes.iter_mut().enumerate() {
                assert_eq!(process.report(), Some(format!("{path} on device {rank}")));
            }
            // The others have started their call by then, or start it later.
            std::thread::sleep(Duration::from_millis(300));
            let mut victim = processes.pop().unwrap();
            let killed = Instant::now();
            victim.child.kill().unwrap();
            let lost = format!("rank {} was lost", ranks - 1);
            for process in &mut processes {
                for side in ["device", "host"] {
                    let report = process.report().unwrap();
                    assert!(report.contains(&lost), "{side}: {report}");
                }
                assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
            }
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_nccl_connects_is_detected_immediately() {
    for (ranks, hosts, victim) in [(2, 1, 1), (2, 2, 0), (3, 1, 2), (3, 2, 1)] {
        let (_store, mut processes) = process::start("connect", ranks, |rank| {
            let [a, b, c, d, e] = environment(rank, hosts, DevicePath::Nccl, nccl(true));
            // The others wait for it in NCCL.
            let delay = if rank == victim { 60_000 } else { 0 };
            [a, b, c, d, e, ("GPU_EMU_INIT_MILLISECONDS", delay.to_string())]
        });
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("connecting"));
        }
        let mut dead = processes.remove(victim);
        let killed = Instant::now();
        dead.child.kill().unwrap();
        for process in &mut processes {
            let report = process.report().unwrap();
            assert!(report.contains(&format!("rank {victim} was lost")), "{report}");
            assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
        }
    }
}

#[test]
fn processes_connect_once_for_host_and_device() {
    for (path, taken) in
        [(DevicePath::Nccl, "nccl"), (DevicePath::Staged, "staged"), (DevicePath::Auto, "nccl")]
    {
        for ranks in [1, 2, 3] {
            let (_store, mut processes) = start("once", ranks, path, |_| true);
            for (rank, process) in processes.iter_mut().enumerate() {
                assert_eq!(process.report(), Some(format!("{taken} on device {rank}")));
            }
            assert!(processes.iter_mut().all(|process| process.child.wait().unwrap().success()));
        }
    }
}

#[test]
fn without_nccl_staging_needs_a_request() {
    let (_store, mut processes) = start("once", 2, DevicePath::Nccl, |rank| rank == 0);
    for process in &mut processes {
        let report = process.report().unwrap();
        assert!(report.contains("nccl is not available") && report.contains("rank 1: "), "{report}");
    }
    let (_store, mut processes) = start("once", 2, DevicePath::Auto, |rank| rank == 0);
    for (rank, process) in processes.iter_mut().enumerate() {
        assert_eq!(process.report(), Some(format!("staged on device {rank}")));
    }
}

#[test]
fn processes_reconnect_in_the_same_store() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        for ranks in [2, 3] {
            let (_store, mut processes) = start("again", ranks, path, |_| true);
            for process in &mut processes {
                assert_eq!(process.report().as_deref(), Some("connected five times"), "{path} {ranks}");
            }
        }
    }
}

#[test]
fn processes_with_devices_connect_through_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let url = format!("file://{}", folder.path().display());
        // No store listens at the address of the launcher.
        let (store, mut processes) = process::start("again", 3, |rank| {
            let [a, b, c, d, e] = environment(rank, 1, path, nccl(true));
            let port = ("MASTER_PORT", "1".into());
            [a, b, c, d, e, port, ("COMM_RENDEZVOUS", url.clone())]
        });
        drop(store);
        for process in &mut processes {
            assert_eq!(process.report().as_deref(), Some("connected five times"), "{path}");
        }
    }
}
