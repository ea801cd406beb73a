//! Tests with real processes; one is stopped or killed after each step of its part in a collective
//! on allocated memory: between any two pieces that it sends, receives, or writes into the memory
//! of another rank. The others give up, and from then on their memory belongs to them alone.
#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use comm::shm::{RendezvousConfig, SharedMemoryFabric, SharedMemoryTransport};
use comm::tcp::{StoreConfig, TcpStore};
use comm::{Comm, Membership, ReduceOp, RingCommunicator, RingConfig};
use comm_core::{ChannelId, ChannelKind, Fabric, Result, Transport, Until};
use comm_sim::{Alteration, AlteredFabric, AlteredTransport};
use common::process::{self, Rank};
use common::{JOB, each};
use rustix::process::{Pid, Signal, getpid, kill_process};

/// The timeout of the call in which a rank stops.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The timeout of everything else.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of elements.
const LEN: usize = 300_001;
/// The largest number of bytes that a rank writes or receives in one step.
const PIECE: usize = 64 << 10;
/// The value of all elements that a survivor writes after its call.
const OWN: u32 = 0x5a5a_5a5a;
/// The step after which the rank stops, and the signal.
const STOP_AFTER: &str = "COMM_TEST_STOP_AFTER";
const SIGNAL: &str = "COMM_TEST_SIGNAL";

/// The steps of this process, which stops after one of them.
struct Steps {
    done: AtomicUsize,
    /// The number of steps that wrote into the memory of another rank.
    puts: AtomicUsize,
    stop_after: AtomicUsize,
}

impl Steps {
    const fn new() -> Self {
        Self {
            done: AtomicUsize::new(0),
            puts: AtomicUsize::new(0),
            stop_after: AtomicUsize::new(usize::MAX),
        }
    }

    /// Counts steps from here on, and stops after that many.
    fn begin(&self, stop_after: usize) {
        self.puts.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.stop_after.store(stop_after, Ordering::Relaxed);
    }

    /// Counts a step if it moved bytes.
    fn count(&self, bytes: usize) {
        if bytes == 0
            || self.done.fetch_add(1, Ordering::Relaxed) + 1 != self.stop_after.load(Ordering::Relaxed)
        {
            return;
        }
        let is_killed = std::env::var(SIGNAL).unwrap() == "KILL";
        kill_process(getpid(), if is_killed { Signal::KILL } else { Signal::STOP }).unwrap();
        // Another thread may be the one that takes the signal and stops them all.
        thread::sleep(Duration::from_millis(20));
    }
}

/// Makes a channel move small pieces, and count them.
struct Pieces(Arc<Steps>);

impl Alteration<SharedMemoryTransport> for Pieces {
    fn try_send(
        &mut self,
        inner: &mut SharedMemoryTransport,
        to: usize,
        bytes: &[IoSlice<'_>],
    ) -> Result<usize> {
        let sent = inner.try_send(to, bytes)?;
        self.0.count(sent);
        Ok(sent)
    }

    fn try_put(
        &mut self,
        inner: &mut SharedMemoryTransport,
        (to, call): (usize, u64),
        offset: usize,
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        let put = inner.try_put(to, call, offset, &bytes[..bytes.len().min(PIECE)])?;
        self.0.puts.fetch_add(usize::from(put > Some(0)), Ordering::Relaxed);
        self.0.count(put.unwrap_or(0));
        Ok(put)
    }

    fn try_recv(&mut self, inner: &mut SharedMemoryTransport, from: usize, into: &mut [u8]) -> Result<usize> {
        let len = into.len().min(PIECE);
        let received = inner.try_recv(from, &mut into[..len])?;
        self.0.count(received);
        Ok(received)
    }

    fn consume(&mut self, inner: &mut SharedMemoryTransport, from: usize, bytes: usize) -> Result<()> {
        inner.consume(from, bytes)?;
        self.0.count(bytes);
        Ok(())
    }
}

/// Connects the ranks over shared memory. The channel of collectives counts steps.
fn connect(steps: &Arc<Steps>) -> Comm {
    let number = |name| std::env::var(name).unwrap().parse::<u16>().unwrap();
    let address = ([127, 0, 0, 1], number("MASTER_PORT")).into();
    let store = TcpStore::connect(address, StoreConfig::job(JOB), PATIENCE).unwrap();
    let mut config =
        RendezvousConfig::new(Membership { rank: number("RANK").into(), size: number("WORLD_SIZE").into() });
    config.member.job = JOB;
    let fabric = SharedMemoryFabric::rendezvous(&store, &config).unwrap();
    let (counted, others) = (Arc::clone(steps), Arc::new(Steps::new()));
    let open = move |fabric: &SharedMemoryFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
        let steps = if channel.kind == ChannelKind::Collective { &counted } else { &others };
        let transport = fabric.open_among(channel, members, until)?;
        Ok(AlteredTransport { transport, alteration: Pieces(Arc::clone(steps)) })
    };
    let ring =
        RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), PATIENCE).unwrap();
    Comm::new(ring).with_timeout(PATIENCE)
}

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Some(role) = process::role() else { return };
    let steps = Arc::new(Steps::new());
    let comm = connect(&steps);
    let mut data = comm.alloc::<u32>(LEN).unwrap();
    let (rank, ranks) = (comm.rank() as u32, comm.size() as u32);
    let is_reduced = role == "all-reduce";
    // An element of the result is this multiple of 31 times its index, and the rest.
    let (factor, rest) = if is_reduced { (ranks, (0..ranks).sum::<u32>()) } else { (1, 0) };
    let call = |comm: &Comm, data: &mut [u32]| {
        data.iter_mut().enumerate().for_each(|(at, element)| *element = at as u32 * 31 + rank);
        match is_reduced {
            true => comm.all_reduce(data, ReduceOp::Sum)?,
            false => comm.broadcast(0, data)?,
        }
        assert!(data.iter().enumerate().all(|(at, found)| *found == at as u32 * 31 * factor + rest));
        Ok::<_, comm::Error>(())
    };
    let stop_after = std::env::var(STOP_AFTER).map(|steps| steps.parse().unwrap());
    // The first call shows the ranks whether all have allocated memory. A rank may still be in it
    // when another one stops.
    let outcome = call(&comm, &mut data).and_then(|()| {
        steps.begin(stop_after.clone().unwrap_or(usize::MAX));
        let comm = comm.with_timeout(TIMEOUT);
        comm.barrier()?;
        call(&comm, &mut data)
    });
    let (done, puts) = (steps.done.load(Ordering::Relaxed), steps.puts.load(Ordering::Relaxed));
    if stop_after.is_err() {
        data.fill(OWN);
    }
    println!("report: {} {done} {puts}", if outcome.is_ok() { "done" } else { "failed" });
    std::io::stdin().read_line(&mut String::new()).unwrap();
    if stop_after.is_err() {
        println!("report: {}", if data.iter().all(|own| *own == OWN) { "intact" } else { "overwritten" });
    }
}

/// Runs a collective in which a rank stops after some of its steps. Returns whether the survivors
/// completed it, and their largest numbers of steps and of those that wrote into another rank.
fn stop(role: &str, ranks: usize, signal: &str, (victim, after): (usize, usize)) -> (bool, usize, usize) {
    let (_store, mut processes) = process::start(role, ranks, |rank| {
        let stops = (rank == victim).then(|| (STOP_AFTER, after.to_string()));
        stops.into_iter().chain([(SIGNAL, signal.to_owned())])
    });
    let context = format!("{role}, {signal} of rank {victim} of {ranks} after step {after}");
    let mut stopping = processes.remove(victim);
    let outcomes: Vec<(bool, usize, usize)> =
        processes.iter_mut().map(|rank| outcome(rank, &context)).collect();
    let ended = go_on(&mut stopping);
    // It fails or has the right result, although others have overwritten what it was reading.
    assert!(ended || signal == "KILL", "{context}: it had a wrong result");
    processes.iter_mut().for_each(Rank::resume);
    for rank in &mut processes {
        assert_eq!(rank.report().as_deref(), Some("intact"), "{context}");
    }
    outcomes.into_iter().reduce(|a, b| (a.0 && b.0, a.1.max(b.1), a.2.max(b.2))).unwrap()
}

/// Returns whether a call was completed, the number of its steps, and of those that wrote into
/// another rank.
fn outcome(rank: &mut Rank, context: &str) -> (bool, usize, usize) {
    let report = rank.report().unwrap_or_else(|| panic!("{context}: a survivor died"));
    let words: Vec<&str> = report.split(' ').collect();
    (words[0] == "done", words[1].parse().unwrap(), words[2].parse().unwrap())
}

/// Lets a stopped rank go on until its call has ended. On a busy machine, it may stop only now.
/// Returns false if it has died instead.
fn go_on(stopping: &mut Rank) -> bool {
    let (pid, has_ended) = (Pid::from_child(&stopping.child), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                let _ = kill_process(pid, Signal::CONT);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let ended = stopping.report().is_some();
        has_ended.store(true, Ordering::Relaxed);
        ended
    })
}

/// Stops a rank after each step. Returns the number of steps that wrote into another rank.
fn stop_in_every_step(role: &str, ranks: usize, signal: &str) -> usize {
    let (is_done, steps, puts) = stop(role, ranks, signal, (0, usize::MAX));
    assert!(is_done && steps > 2 * ranks, "{steps} steps");
    let next = AtomicUsize::new(1);
    let failed = AtomicUsize::new(0);
    each(4, |_| {
        loop {
            let after = next.fetch_add(1, Ordering::Relaxed);
            if after > steps {
                break;
            }
            // The root of a broadcast reads nothing.
            let victim = if role == "broadcast" { 1 + after % (ranks - 1) } else { after % ranks };
            let (is_done, ..) = stop(role, ranks, signal, (victim, after));
            failed.fetch_add(usize::from(!is_done), Ordering::Relaxed);
        }
    });
    // Survivors complete a call without a rank that has done its part.
    let failed = failed.into_inner();
    assert!(failed * 4 > steps, "{failed} of {steps} calls failed");
    puts
}

#[test]
fn nobody_writes_into_memory_after_its_owner_has_given_up() {
    for ranks in [2, 3] {
        let puts = ["STOP", "KILL"].map(|signal| stop_in_every_step("all-reduce", ranks, signal));
        assert!(puts.iter().all(|puts| *puts > 2), "{puts:?}");
    }
}

#[test]
fn what_its_owner_has_overwritten_after_giving_up_does_not_count_as_received() {
    stop_in_every_step("broadcast", 2, "STOP");
}
