//! The executor over the in-process transport, without a communicator: small enough for Miri, which
//! checks every access to memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use comm_core::{
    Blocks, ChannelId, ChannelKind, Collective, DType, Fabric, GroupId, Layout, Partition, Place, RecvBuf,
    ReduceOp, Reduction, Step, Transport,
};
use comm_ring::__private::{Executor, Job, JobReduction, Progress, Regions, lower, mark_only_reduced};
use comm_ring::schedule::{Algorithm, Params, TABLE};
use comm_sim::in_process::{self, InProcessConfig};
use comm_sim::{Alteration, AlteredTransport, Release};

const CHANNEL: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };
/// The time limit of a world of threads, also under Miri.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The numbers of elements of a chunk: few, and more than are received in one operation.
const LENGTHS: &[usize] = if cfg!(miri) { &[5] } else { &[5, 2500] };

fn contribution(rank: usize, at: usize) -> u32 {
    (rank as u32 + 1) * 1_000_000 + at as u32
}

/// Runs a row on a rank with chunks of this length. Returns the output.
fn carry_out(row: &Algorithm, params: &Params, transport: &mut dyn Transport, length: usize) -> Vec<u32> {
    let ranks = params.ranks;
    let chunks = row.blocks(params) / params.segments;
    let elements = length * chunks;
    let partition = Partition::even(elements, chunks).segments(params.segments).element_bytes(4);
    let layout = Layout { gapless: row.traits.equal, ..Layout::uniform(&partition) };
    let data: Vec<u8> = (0..elements).flat_map(|at| contribution(params.rank, at).to_ne_bytes()).collect();
    let garbage = vec![0xa5; data.len()];
    let (input, mut output) = if params.in_place { (data.clone(), data) } else { (data, garbage) };
    let mut scratch = vec![0; (row.slots)(params) * layout.slot_bytes()];
    let sum = Reduction::new(ReduceOp::Sum, DType::U32).unwrap();
    let reduction = JobReduction::new(sum, ranks);
    // Miri has no non-temporal stores.
    let bypasses_caches = ranks <= row.traits.final_ranks_max && params.rank % 2 == 1 && !cfg!(miri);
    let job = Job {
        reduction: Some(&reduction),
        sequence: 1,
        fingerprint: 0xfeed,
        bypasses_caches,
        // Where others read results changes how they are computed, not what they are.
        is_output_read: params.rank % 2 == 1,
        has_window: false,
        results: 0..0,
        polls: 1 + params.rank as u32 % 3,
    };
    let mut executor = Executor::new(ranks, 4);
    let mut steps: Vec<_> = lower((row.steps)(params), &layout, Some(sum)).collect();
    mark_only_reduced(&mut steps);
    let mut steps = steps.iter();
    let mut buffers = Regions { input: &input, output: &mut output, scratch: &mut scratch };
    let limit = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < limit, "{} {} of {ranks} hangs", row.collective, row.name);
        match executor.progress(transport, &mut steps, &job, &mut buffers) {
            Ok(Progress::Done) => break,
            Ok(Progress::Blocked { .. }) => std::thread::yield_now(),
            Err(stop) => panic!("{} {}: {stop:?}", row.collective, row.name),
        }
    }
    output.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Returns the expected element of the output, for the collectives that define every element on
/// every rank.
fn expected(row: &Algorithm, params: &Params, length: usize, at: usize) -> Option<u32> {
    let (ranks, block) = (params.ranks, at / length);
    let sum_of = |ranks: usize| (0..ranks).map(|rank| contribution(rank, at)).sum();
    let sum = sum_of(ranks);
    match row.collective {
        Collective::AllReduce => Some(sum),
        Collective::Reduce => (params.rank == params.root).then_some(sum),
        Collective::Broadcast => Some(contribution(params.root, at)),
        Collective::AllGather => Some(contribution(block, at)),
        Collective::ReduceScatter => (block == params.rank).then_some(sum),
        Collective::Gather => (params.rank == params.root).then(|| contribution(block, at)),
        Collective::Scatter => (block == params.rank).then(|| contribution(params.root, at)),
        Collective::AllToAll => (block % ranks == params.rank).then(|| contribution(block / ranks, at)),
        Collective::Scan => Some(sum_of(params.rank + 1)),
        Collective::Exscan => (params.rank > 0).then(|| sum_of(params.rank)),
        _ => None,
    }
}

/// Whether the collective accepts an input separate from its output. For the others, the
/// communicator copies the input to the output first.
fn takes_input(collective: Collective) -> bool {
    use Collective::{AllGather, Gather, Reduce, ReduceScatter, Scatter};
    matches!(collective, AllGather | Gather | Reduce | ReduceScatter | Scatter)
}

fn check(row: &Algorithm, ranks: usize, network: &InProcessConfig) {
    for &length in LENGTHS {
        check_one(row, ranks, network, length, true);
        if takes_input(row.collective) {
            check_one(row, ranks, network, length, false);
        }
    }
}

fn check_one(row: &Algorithm, ranks: usize, network: &InProcessConfig, length: usize, in_place: bool) {
    let segments = if row.traits.segmented { 2 } else { 1 };
    in_process::run(ranks, network, |fabric| {
        let mut transport = fabric.open(CHANNEL, fabric.now() + TIMEOUT).unwrap();
        let rank = fabric.group().rank();
        let root = ranks / 2;
        let params = Params::new(ranks)
            .rank(rank)
            .root(root)
            .segments(segments)
            .ranks_per_host(2)
            .in_place(in_place)
            .exposed(rank % 3 == 1);
        check_output(row, &params, length, carry_out(row, &params, &mut transport, length));
        // Returned, so that no rank closes its streams while another may still read from them.
        transport
    });
}

fn check_output(row: &Algorithm, params: &Params, length: usize, output: Vec<u32>) {
    for (at, found) in output.into_iter().enumerate() {
        if let Some(expected) = expected(row, params, length, at) {
            let Params { ranks, rank, .. } = params;
            assert_eq!(found, expected, "{} {} of {ranks}: {rank} at {at}", row.collective, row.name);
        }
    }
}

/// Shows only the header and two elements of a message, as often as this.
struct CutShort(u32);

impl<T: Transport> Alteration<T> for CutShort {
    fn fill_buf<'a>(
        &mut self,
        inner: &'a mut T,
        from: usize,
        at_most: usize,
    ) -> comm_core::Result<RecvBuf<'a>> {
        let filled = inner.fill_buf(from, at_most)?;
        let is_cut = !filled.is_empty() && self.0 > 0;
        self.0 -= u32::from(is_cut);
        Ok(if is_cut { filled.first(filled.len().min(32 + 2 * 4)) } else { filled })
    }
}

#[test]
fn a_message_of_which_a_part_has_arrived_is_reduced_once() {
    let row =
        TABLE.iter().find(|row| row.name == "recursive_doubling" && row.collective == Collective::AllReduce);
    let (row, length) = (row.unwrap(), LENGTHS[0]);
    for cuts in 0..6 {
        in_process::run(2, &InProcessConfig::default(), |fabric| {
            let transport = fabric.open(CHANNEL, fabric.now() + TIMEOUT).unwrap();
            let mut transport = AlteredTransport { transport, alteration: CutShort(cuts) };
            let params = Params::new(2).rank(fabric.group().rank()).in_place(true);
            check_output(row, &params, length, carry_out(row, &params, &mut transport, length));
            transport
        });
    }
}

/// Counts the times that a receive looks for its message.
struct CountedPolls(Arc<AtomicU32>);

impl<T: Transport> Alteration<T> for CountedPolls {
    fn fill_buf<'a>(
        &mut self,
        inner: &'a mut T,
        from: usize,
        at_most: usize,
    ) -> comm_core::Result<RecvBuf<'a>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        inner.fill_buf(from, at_most)
    }
}

/// Returns the number of times that rank 0 of three looks for messages that do not come.
fn polls_in_vain(steps: &[Step]) -> u32 {
    let layout = Layout::uniform(&Partition::even(8, 2));
    let polls = Arc::new(AtomicU32::new(0));
    in_process::run(3, &InProcessConfig::default(), |fabric| {
        let transport = fabric.open(CHANNEL, fabric.now() + TIMEOUT).unwrap();
        let mut transport = AlteredTransport { transport, alteration: CountedPolls(Arc::clone(&polls)) };
        if fabric.group().rank() == 0 {
            let job = Job {
                reduction: None,
                sequence: 1,
                fingerprint: 0xfeed,
                bypasses_caches: false,
                is_output_read: false,
                has_window: false,
                results: 0..0,
                polls: 5,
            };
            let mut buffers = Regions { input: &[], output: &mut [0; 8], scratch: &mut [] };
            let mut steps = lower(steps.iter().copied(), &layout, None);
            let progress = Executor::new(3, 4).progress(&mut transport, &mut steps, &job, &mut buffers);
            assert_eq!(progress.unwrap(), Progress::Blocked { moved: false });
        }
        transport
    });
    polls.load(Ordering::Relaxed)
}

#[test]
fn a_receive_polls_several_times_only_if_nothing_else_can_run() {
    let recv = |from, block| Step::recv(from, Place::Output, Blocks::one(block));
    // Each is tried once more in the window.
    assert_eq!(polls_in_vain(&[recv(1, 0)]), 5 + 1);
    assert_eq!(polls_in_vain(&[recv(1, 0), recv(2, 1)]), 1 + 2);
    assert_eq!(polls_in_vain(&[recv(1, 0), Step::send(2, Place::Output, Blocks::one(0))]), 5 + 1);
}

#[test]
fn every_row_is_correct_between_threads() {
    let worlds: &[usize] = if cfg!(miri) { &[1, 3] } else { &[1, 2, 3, 4, 5, 8] };
    for row in TABLE {
        for &ranks in worlds {
            check(row, ranks, &InProcessConfig::default().capacity(64));
        }
    }
}

#[test]
fn bytes_received_in_pieces_form_whole_elements() {
    let worlds: &[usize] = if cfg!(miri) { &[2] } else { &[2, 3, 5] };
    let network = InProcessConfig::default().capacity(13).release(Release::OnConsume).dribble(7);
    for row in TABLE {
        for &ranks in worlds {
            check(row, ranks, &network);
        }
    }
}
