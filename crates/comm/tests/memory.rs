//! Tests of the memory of many ranks over shared memory, excluding buffers of the user.
//!
//! The proportional set size counts private pages, and an equal share of pages that several
//! processes have mapped. So a ring counts half for each of two ranks, and a buffer that is read in
//! place is divided by the number of its readers.
#![cfg(feature = "shm")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod common;

use comm::ring::schedule::{Algorithm, Chunks, Params, TABLE};
use comm::{Collective, Comm, ReduceOp};
use common::process;

const RANKS: usize = 8;
/// The limit per rank.
const BYTES_MAX: usize = 64 << 20;
/// The size of calls, as in nccl-tests.
const LONG_BYTES: usize = 64 << 20;
/// A size for algorithms that keep several times the data in scratch.
const SHORT_BYTES: usize = 4 << 20;
/// A fixed link model, so that the same algorithms are selected on every machine: two processors,
/// so that ranks wait for each other.
const LINKS: &str = "within=latency_us:0.1,overhead_us:0.15,gb_per_s:10 between=latency_us:0.1,overhead_us:0.15,gb_per_s:10 \
     reduce_gb_per_s=10 ranks_per_host=8 processors=2";
const LEN: usize = LONG_BYTES / size_of::<f32>();

/// The process of a rank that a test starts.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    match process::role().as_deref() {
        None => {}
        Some("heap") => take_beside_the_heap(),
        Some("allocated") => take_beside_allocated_buffers(),
        Some(other) => panic!("no such role: {other}"),
    }
}

/// Returns a number of KiB in a file of `/proc/self`, in bytes.
fn own(file: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// A call with a size, and the selected or a given algorithm.
#[derive(Debug, Clone, Copy)]
struct Call {
    collective: Collective,
    forced: Option<&'static Algorithm>,
    bytes: usize,
}

impl Call {
    fn name(&self) -> String {
        let algorithm = self.forced.map_or("chosen", |row| row.name);
        format!("{}/{algorithm}/{}", self.collective.name(), self.bytes)
    }

    /// Makes the call with sufficiently large buffers, out of place if possible: in place, some
    /// calls copy their input.
    fn make(&self, comm: &Comm, one: &mut [f32], two: &mut [f32]) {
        let comm = self.forced.map_or_else(|| comm.clone(), |row| comm.with_algorithm(row.name));
        let len = self.bytes / size_of::<f32>();
        let (one, two) = (&mut one[..len], &mut two[..len]);
        let share = len / comm.size();
        match self.collective {
            Collective::AllReduce => comm.all_reduce(one, ReduceOp::Max),
            Collective::Reduce => comm.reduce(0, one, ReduceOp::Max),
            Collective::Broadcast => comm.broadcast(0, one),
            Collective::AllGather => comm.all_gather(&one[..share], two),
            Collective::ReduceScatter => comm.reduce_scatter(&*one, &mut two[..share], ReduceOp::Max),
            Collective::Gather => comm.gather(0, &one[..share], two),
            Collective::Scatter => comm.scatter(0, &*one, &mut two[..share]),
            Collective::AllToAll => comm.all_to_all(&*one, two),
            Collective::Scan => comm.scan_into(&*one, two, ReduceOp::Max),
            Collective::Exscan => comm.exscan_into(&*one, two, ReduceOp::Max),
            Collective::Barrier => comm.barrier(),
            other => panic!("unknown collective: {other:?}"),
        }
        .unwrap();
    }
}

/// Returns the largest scratch of an algorithm without segmentation.
fn whole_scratch(row: &Algorithm, bytes: usize) -> usize {
    let needed = |rank| {
        let (root, segments, pass, in_place) = (0, 1, 1, false);
        let params = Params::new(RANKS)
            .rank(rank)
            .root(root)
            .segments(segments)
            .pass(pass)
            .in_place(in_place)
            .ranks_per_host(RANKS);
        let blocks = if row.chunks == Chunks::PerPair { RANKS } else { row.blocks(&params) };
        (row.slots)(&params) * bytes / blocks
    };
    (0..RANKS).map(needed).max().unwrap()
}

/// Whether an algorithm keeps all long data in scratch.
fn keeps_all(row: &Algorithm) -> bool {
    !row.traits.segmented && whole_scratch(row, LONG_BYTES) > LONG_BYTES / 4
}

/// Returns every algorithm for short data, and for long data the selected one and all that do not
/// keep it in scratch.
fn calls() -> Vec<Call> {
    let call =
        |bytes| move |row: &'static Algorithm| Call { collective: row.collective, forced: Some(row), bytes };
    let mut chosen: Vec<Call> = TABLE.iter().map(call(LONG_BYTES)).collect();
    chosen.dedup_by_key(|call| call.collective);
    chosen.iter_mut().for_each(|call| call.forced = None);
    let forced = TABLE.iter().filter(|row| !keeps_all(row)).map(call(LONG_BYTES));
    TABLE.iter().map(call(SHORT_BYTES)).chain(chosen).chain(forced).collect()
}

/// Returns the memory of this process.
fn taken() -> usize {
    own("smaps_rollup", "Pss_Anon") + own("smaps_rollup", "Pss_Shmem")
}

/// The memory of the process before it has a communicator.
struct Before {
    taken: usize,
    addresses: usize,
}

impl Before {
    fn now() -> Self {
        Self { taken: taken(), addresses: own("status", "VmSize") }
    }

    /// Makes all calls. After each, rank 0 prints the memory of all ranks, combined by `op`, and
    /// the largest growth of the address space.
    fn measure(&self, comm: &Comm, buffers: [&mut [f32]; 2], op: ReduceOp) {
        let [one, two] = buffers;
        let say = |name: &str| {
            // No rank starts another call or exits while others measure.
            comm.barrier().unwrap();
            let beside =
                [taken() as f64 - self.taken as f64, (own("status", "VmPeak") - self.addresses) as f64];
            let mut all = [0.0; 2];
            comm.all_reduce_into(&beside, &mut all, op).unwrap();
            if comm.rank() == 0 {
                println!("report: {name} {:.0} {:.0}", all[0].max(0.0), all[1]);
            }
        };
        say("init");
        for call in calls() {
            call.make(comm, one, two);
            say(&call.name());
        }
    }
}

/// Prints the maximum over the ranks.
fn take_beside_the_heap() {
    let [mut one, mut two] = [(); 2].map(|()| vec![1.0; LEN]);
    let before = Before::now();
    before.measure(&comm::init().unwrap(), [&mut one, &mut two], ReduceOp::Max);
}

/// Prints the average over the ranks, because readers share the buffers.
fn take_beside_allocated_buffers() {
    let mut before = Before::now();
    let comm = comm::init().unwrap();
    let [mut one, mut two] = [(); 2].map(|()| comm.alloc::<f32>(LEN).unwrap());
    one.fill(1.0);
    two.fill(1.0);
    before.taken += 2 * LONG_BYTES;
    before.measure(&comm, [&mut one, &mut two], ReduceOp::Avg);
}

#[track_caller]
fn assert_little(role: &str) {
    let (_store, mut ranks) =
        process::start(role, RANKS, |_| [("COMM_TRANSPORT", "shm".into()), ("COMM_LINKS", LINKS.into())]);
    let mut calls = 0;
    while let Some(report) = ranks[0].report() {
        let words: Vec<&str> = report.split(' ').collect();
        let bytes: Vec<usize> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
        println!("{}: {} KiB, {} KiB of addresses", words[0], bytes[0] >> 10, bytes[1] >> 10);
        assert!(bytes[0] <= BYTES_MAX, "{}: {} bytes", words[0], bytes[0]);
        calls += 1;
    }
    assert!(calls > TABLE.len(), "only {calls} calls were made");
    assert!(ranks.iter_mut().all(|rank| rank.child.wait().unwrap().success()));
}

#[test]
fn a_rank_uses_little_memory_besides_buffers_on_the_heap() {
    assert_little("heap");
}

#[test]
fn a_rank_uses_little_memory_besides_allocated_buffers() {
    assert_little("allocated");
}
