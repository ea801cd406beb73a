//! Ranks as real processes, which are killed and stopped.
//!
//! The test is rank 0. As rank 1 it starts its own binary with the ignored test `rank`, which plays
//! a part.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

use std::fmt::Display;
use std::io::{BufRead, BufReader, IoSlice};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SOON, WORLD, config, store};
use comm_core::{Armed, Error, Fabric, Interest, Loss, Result, Transport};
use comm_shm::{SharedMemoryFabric, SharedMemoryTransport};
use comm_tcp::FileStore;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const PART: &str = "COMM_SHM_TEST_PART";
const STORE: &str = "COMM_SHM_TEST_STORE";
/// Far from a multiple of the ring, which holds less.
const RING: usize = 64 * 1024;
const LAST: usize = 60_001;
/// Far more than the ring holds.
const LARGE: usize = 5_000_001;

/// A child process that runs a rank. It is killed with the test, so that a failure leaks nothing.
struct Rank {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Rank {
    fn start(part: &str, store: &FileStore) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(STORE, store.folder())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits for the next report of the part.
    fn report(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some((_, report)) = line.split_once("report: ") {
                return report.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Ok(part) = std::env::var(PART) else { return };
    let store = FileStore::open(std::env::var_os(STORE).unwrap()).unwrap();
    if part == "wait after the rendezvous" {
        let _fabric = SharedMemoryFabric::rendezvous(&store, &config(1, 2, RING)).unwrap();
        report_and_wait("connected");
    }
    let (fabric, mut channel) = open(1, &store);
    match part.as_str() {
        "send the last" => {
            assert_eq!(channel.try_send(0, &[IoSlice::new(&pattern(0, LAST))]).unwrap(), LAST);
            report_and_wait("sent");
        }
        "export the last" => {
            let mut memory = fabric.allocate(LARGE).unwrap();
            memory.bytes_mut().copy_from_slice(&pattern(0, LARGE));
            assert_eq!(channel.try_send(0, &[IoSlice::new(memory.bytes())]).unwrap(), LARGE);
            report_and_wait("exported");
        }
        "register the last" => {
            let memory = pattern(0, LARGE);
            channel.register(&[&memory]);
            await_byte(&mut channel);
            report_and_wait(channel.try_send(0, &[IoSlice::new(&memory)]).unwrap());
        }
        "send registered memory" => send_registered(&mut channel),
        "read nothing" => report_and_wait("here"),
        "stream" => stream(&mut channel),
        "put" => put(&mut channel),
        "allocate without descriptors" => allocate_with_limit(&fabric, Resource::Nofile),
        "allocate without long files" => allocate_with_limit(&fabric, Resource::Fsize),
        "echo" => echo(&mut channel),
        other => panic!("no such part: {other}"),
    }
}

/// Reports to the test, and waits to be killed.
fn report_and_wait(text: impl Display) {
    println!("report: {text}");
    thread::sleep(SOON);
}

fn open(rank: usize, store: &FileStore) -> (SharedMemoryFabric, SharedMemoryTransport) {
    let mut config = config(rank, 2, RING);
    (config.shm.zero_copy_bytes, config.shm.single_copy_bytes) = (1, Some(0));
    let fabric = SharedMemoryFabric::rendezvous(store, &config).unwrap();
    let channel = fabric.open(WORLD, Instant::now() + SOON).unwrap();
    (fabric, channel)
}

/// Returns bytes of a stream, beginning at a position.
fn pattern(position: usize, len: usize) -> Vec<u8> {
    (position..position + len)
        .map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0])
        .collect()
}

fn interest(recv: &[usize], send: &[usize]) -> Interest {
    let mut interest = Interest::default();
    recv.iter().for_each(|peer| interest.add_recv(*peer));
    send.iter().for_each(|peer| interest.add_send(*peer));
    interest
}

/// Sleeps until something moves, as a communicator does.
fn wait(channel: &mut SharedMemoryTransport, interest: &Interest, time: Duration) -> Result<bool> {
    if channel.arm(interest)? == Armed::Ready {
        return Ok(true);
    }
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let descriptor = channel.descriptor();
    Ok(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).unwrap() > 0)
}

/// Sends forever.
fn stream(channel: &mut SharedMemoryTransport) {
    let mut position = 0;
    loop {
        let bytes = pattern(position, 4099);
        let sent = channel.try_send(0, &[IoSlice::new(&bytes)]).unwrap();
        position += sent;
        if sent == 0 {
            wait(channel, &interest(&[], &[0]), SOON).unwrap();
        }
    }
}

/// Allocates memory where the system allows no file for it, and reports its size.
fn allocate_with_limit(fabric: &SharedMemoryFabric, resource: Resource) {
    setrlimit(resource, Rlimit { current: Some(0), ..getrlimit(resource) }).unwrap();
    let memory = fabric.allocate(LARGE).unwrap();
    report_and_wait(memory.bytes().len());
}

/// Puts bytes into the window of the test until there is none, and reports that.
fn put(channel: &mut SharedMemoryTransport) {
    for round in 0_u8.. {
        let (mut offset, bytes) = (0, vec![round; LARGE]);
        while offset < LARGE {
            match channel.try_put(0, 1, offset, &bytes[offset..]).unwrap() {
                Some(0) => drop(wait(channel, &interest(&[], &[0]), SOON)),
                Some(more) => offset += more,
                // It is not open yet.
                None if round == 0 && offset == 0 => thread::yield_now(),
                None => return report_and_wait("there is no window"),
            }
        }
    }
}

/// Sends registered memory three times, and reports that it was released.
fn send_registered(channel: &mut SharedMemoryTransport) {
    let memory = pattern(0, LARGE);
    channel.register(&[&memory]);
    for round in 1..=3 {
        let mut sent = 0;
        while sent < LARGE {
            let more = channel.try_send(0, &[IoSlice::new(&memory[sent..])]).unwrap();
            sent += more;
            if more == 0 {
                wait(channel, &interest(&[], &[0]), SOON).unwrap();
            }
        }
        while channel.released(0) < (round * LARGE) as u64 {
            wait(channel, &interest(&[], &[0]), SOON).unwrap();
        }
    }
    println!("report: released");
}

/// Receives the byte that the test sends once its side of the channel is open. Before that, the
/// test has not announced that it reads by cross-memory attach, and bytes go through the ring.
fn await_byte(channel: &mut SharedMemoryTransport) {
    while channel.try_recv(0, &mut [0]).unwrap() == 0 {
        wait(channel, &interest(&[0], &[]), SOON).unwrap();
    }
}

/// Sends every byte back.
fn echo(channel: &mut SharedMemoryTransport) {
    let mut byte = [0];
    loop {
        match channel.try_recv(0, &mut byte) {
            Ok(0) => drop(wait(channel, &interest(&[0], &[]), SOON)),
            Ok(_) => assert_eq!(channel.try_send(0, &[IoSlice::new(&byte)]).unwrap(), 1),
            Err(_) => return,
        }
    }
}

fn is_closed<T>(result: &Result<T>) -> bool {
    matches!(result, Err(Error::PeerLost { peer: 1, loss: Loss::Closed, .. }))
}

#[test]
fn bytes_of_a_killed_process_are_still_received() {
    let (_folder, store) = store();
    let mut other = Rank::start("send the last", &store);
    let (_fabric, mut channel) = open(0, &store);
    assert_eq!(other.report(), "sent");
    drop(other);
    assert_eq!(channel.arm(&interest(&[], &[])).unwrap(), Armed::Ready, "its end is reported");
    let (mut received, mut into) = (0, vec![0; LAST + 1]);
    let end = loop {
        match channel.try_recv(1, &mut into[received..]) {
            Ok(more) => received += more,
            end => break end,
        }
    };
    assert_eq!(received, LAST);
    assert!(into[..LAST] == pattern(0, LAST));
    assert!(is_closed(&end), "{end:?}");
    assert!(is_closed(&channel.try_send(1, &[IoSlice::new(&[0])])));
}

#[test]
fn regions_of_a_killed_process_are_still_read() {
    let (_folder, store) = store();
    let mut other = Rank::start("export the last", &store);
    let (_fabric, mut channel) = open(0, &store);
    assert_eq!(other.report(), "exported");
    drop(other);
    assert_eq!(channel.arm(&interest(&[], &[])).unwrap(), Armed::Ready, "its end is reported");
    let mut into = vec![0; LARGE];
    assert_eq!(channel.try_recv(1, &mut into).unwrap(), LARGE);
    assert!(into == pattern(0, LARGE));
    assert!(is_closed(&channel.try_recv(1, &mut into)));
}

/// Whether the system lets this process read the memory of another one.
fn may_read(other: &Rank) -> bool {
    std::fs::File::open(format!("/proc/{}/mem", other.child.id())).is_ok()
}

#[test]
fn registered_memory_of_a_killed_process_is_lost() {
    let (_folder, store) = store();
    let mut other = Rank::start("register the last", &store);
    let (_fabric, mut channel) = open(0, &store);
    assert_eq!(channel.try_send(1, &[IoSlice::new(&[0])]).unwrap(), 1);
    let sent: usize = other.report().parse().unwrap();
    let is_readable = may_read(&other);
    assert_eq!(
        sent > RING,
        is_readable,
        "{sent} bytes were sent; memory is registered only where it can be read"
    );
    let mut into = vec![0; sent];
    let (first, rest) = into.split_at_mut(1000);
    assert_eq!(channel.try_recv(1, first).unwrap(), first.len());
    assert!(*first == pattern(0, first.len()));
    drop(other);
    match channel.try_recv(1, rest) {
        Ok(copied) => assert!(!is_readable && rest[..copied] == pattern(1000, copied)),
        lost => assert!(is_readable && is_closed(&lost), "{lost:?}"),
    }
}

#[test]
fn registered_memory_is_read_by_another_process() {
    let (_folder, store) = store();
    let mut other = Rank::start("send registered memory", &store);
    let (_fabric, mut channel) = open(0, &store);
    let mut into = vec![0; 3 * LARGE];
    let mut received = 0;
    while received < into.len() {
        match channel.try_recv(1, &mut into[received..]).unwrap() {
            0 => assert!(wait(&mut channel, &interest(&[1], &[]), SOON).unwrap(), "no wakeup"),
            more => received += more,
        }
    }
    assert_eq!(other.report(), "released");
    assert!(into.chunks(LARGE).all(|round| *round == pattern(0, LARGE)));
}

#[test]
fn a_killed_reader_releases_memory() {
    let (_folder, store) = store();
    let mut other = Rank::start("read nothing", &store);
    let (fabric, mut channel) = open(0, &store);
    assert_eq!(other.report(), "here");
    let memory = fabric.allocate(LARGE).unwrap();
    assert_eq!(channel.try_send(1, &[IoSlice::new(memory.bytes())]).unwrap(), LARGE);
    assert_eq!(channel.arm(&interest(&[], &[1])).unwrap(), Armed::Sleep);
    assert_eq!(channel.released(1), 0);
    drop(other);
    assert!(wait(&mut channel, &interest(&[], &[1]), SOON).unwrap(), "no wakeup");
    while channel.arm(&interest(&[], &[1])).unwrap() == Armed::Sleep {}
    assert_eq!(channel.released(1), LARGE as u64);
    assert!(is_closed(&channel.try_send(1, &[IoSlice::new(&[0])])));
}

#[test]
fn a_process_with_limits_on_files_allocates_ordinary_memory() {
    for part in ["allocate without descriptors", "allocate without long files"] {
        let (_folder, store) = store();
        let mut other = Rank::start(part, &store);
        let (_fabric, _channel) = open(0, &store);
        assert_eq!(other.report(), LARGE.to_string());
    }
}

/// A rank writes into a window of this one, and is stopped or killed at any moment, mostly while it
/// writes. This rank gives up, and its memory stays as it is, also when the other one goes on.
#[test]
fn a_stopped_or_killed_process_writes_nothing_into_a_window_that_was_taken_back() {
    for round in 0..16 {
        let (_folder, store) = store();
        let mut other = Rank::start("put", &store);
        let (fabric, mut channel) = open(0, &store);
        let mut memory = fabric.allocate(LARGE).unwrap();
        channel.open_window(memory.bytes_mut(), 1);
        let (mut received, enough) = (0, round * LARGE / 3 + fastrand::usize(..LARGE));
        while received < enough {
            let at = received % LARGE;
            // Without sleeping, so that the other rank has no reason to wait either.
            received += channel.try_recv(1, &mut memory.bytes_mut()[at..]).unwrap();
        }
        let is_killed = round % 4 == 0;
        other.signal(if is_killed { Signal::KILL } else { Signal::STOP });
        channel.revoke();
        let before = memory.bytes().to_vec();
        if is_killed {
            other.child.wait().unwrap();
        } else {
            other.signal(Signal::CONT);
            assert_eq!(other.report(), "there is no window");
        }
        assert!(memory.bytes() == before, "round {round}");
        memory.bytes_mut().fill(1);
        assert!(memory.bytes().iter().all(|byte| *byte == 1));
    }
}

/// The documented limit is a tenth of a second; the machine may be busy.
#[test]
fn a_killed_process_is_detected_in_the_middle_of_a_stream() {
    for kill_after in [0, 1, 10, 1000] {
        let (_folder, store) = store();
        let mut other = Rank::start("stream", &store);
        let (_fabric, mut channel) = open(0, &store);
        let (mut position, mut reads, mut is_killed) = (0, 0, false);
        let end = loop {
            if reads >= kill_after && !is_killed {
                other.child.kill().unwrap();
                is_killed = true;
            }
            let mut into = [0; 1021];
            match channel.try_recv(1, &mut into) {
                Ok(0) => assert!(wait(&mut channel, &interest(&[1], &[]), SOON).unwrap(), "no wakeup"),
                Ok(more) => {
                    assert_eq!(into[..more], pattern(position, more));
                    position += more;
                    reads += 1;
                }
                end => break end,
            }
        };
        assert!(is_killed && is_closed(&end), "{end:?}");
    }
}

#[test]
fn a_process_that_exits_before_a_channel_is_opened_is_not_waited_for() {
    let (_folder, store) = store();
    let mut other = Rank::start("wait after the rendezvous", &store);
    let fabric = SharedMemoryFabric::rendezvous(&store, &config(0, 2, RING)).unwrap();
    assert_eq!(other.report(), "connected");
    let opened = thread::scope(|scope| {
        let opening = scope.spawn(|| fabric.open(WORLD, Instant::now() + SOON).map(drop));
        thread::sleep(Duration::from_millis(50));
        drop(other);
        opening.join().unwrap()
    });
    assert!(matches!(opened, Err(Error::PeerLost { peer: 1, .. })), "{opened:?}");
}

#[test]
fn a_stopped_process_is_waited_for() {
    let (_folder, store) = store();
    let other = Rank::start("echo", &store);
    let (_fabric, mut channel) = open(0, &store);
    for round in 0..3 {
        other.signal(Signal::STOP);
        // The signal takes effect after a moment.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(channel.try_send(1, &[IoSlice::new(&[round])]).unwrap(), 1);
        while wait(&mut channel, &interest(&[1], &[]), Duration::from_millis(200)).unwrap() {
            assert_eq!(channel.try_recv(1, &mut [0]).unwrap(), 0, "a stopped process has answered");
        }
        other.signal(Signal::CONT);
        let mut byte = [9];
        while channel.try_recv(1, &mut byte).unwrap() == 0 {
            assert!(wait(&mut channel, &interest(&[1], &[]), SOON).unwrap(), "no wakeup");
        }
        assert_eq!(byte, [round]);
    }
}
