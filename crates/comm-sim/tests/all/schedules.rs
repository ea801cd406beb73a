//! Textbook schedules, and broken ones, for tests of the verifier.

use comm_core::{Blocks, Collective, Place, Step};
use comm_sim::verify::{Buffers, Program, Spec};

pub(crate) const OUT: Place = Place::Output;
pub(crate) const IN: Place = Place::Input;
pub(crate) const SLOT: Place = Place::Scratch { slot: 0 };

/// The steps of one rank.
pub(crate) type Schedule = fn(usize, &Spec) -> Vec<Step>;

/// The name of a schedule, its collective, its number of scratch slots for a number of blocks, and
/// its steps.
pub(crate) type Row = (&'static str, Collective, fn(usize) -> usize, Schedule);

/// All correct schedules of this file.
pub(crate) const RIGHT: [Row; 9] = [
    ("ring", Collective::AllReduce, |_| 0, ring_all_reduce),
    ("doubling", Collective::AllReduce, |blocks| blocks, doubling_all_reduce),
    ("linear", Collective::Reduce, |_| 0, linear_reduce),
    ("binomial", Collective::Broadcast, |_| 0, binomial_broadcast),
    ("ring", Collective::AllGather, |_| 0, ring_all_gather),
    ("ring", Collective::ReduceScatter, |blocks| blocks, ring_reduce_scatter),
    ("chain", Collective::Scan, |_| 0, chain_scan),
    ("chain", Collective::Exscan, |blocks| blocks, chain_exscan),
    ("linear", Collective::Barrier, |_| 0, linear_barrier),
];

pub(crate) fn with_program<T>(
    spec: Spec,
    scratch_slots: usize,
    schedule: impl Fn(usize, &Spec) -> Vec<Step>,
    then: impl FnOnce(&Program<'_>) -> T,
) -> T {
    let steps =
        |rank: usize| -> Box<dyn Iterator<Item = Step>> { Box::new(schedule(rank, &spec).into_iter()) };
    then(&Program { spec, scratch_slots, tree: None, steps: &steps })
}

pub(crate) fn spec(collective: Collective, ranks: usize, blocks: usize) -> Spec {
    Spec { collective, ranks, blocks, root: 0, buffers: Buffers::InPlace, equal: false }
}

pub(crate) fn all(spec: &Spec) -> Blocks {
    Blocks { first: 0, count: spec.blocks }
}

fn chunk(spec: &Spec, index: usize) -> Blocks {
    let count = spec.blocks / spec.ranks;
    Blocks { first: index % spec.ranks * count, count }
}

fn neighbours(rank: usize, spec: &Spec) -> (usize, usize) {
    ((rank + 1) % spec.ranks, (rank + spec.ranks - 1) % spec.ranks)
}

fn copy_in(spec: &Spec) -> Vec<Step> {
    if spec.buffers == Buffers::Separate { vec![Step::copy(OUT, IN, all(spec))] } else { vec![] }
}

/// Returns the chunks that `rank` sends and receives in a round of the ring, which starts with
/// chunk `rank + start`.
fn turn(rank: usize, spec: &Spec, start: usize, round: usize) -> (Blocks, Blocks) {
    let sent = rank + start + 2 * spec.ranks - round;
    (chunk(spec, sent), chunk(spec, sent - 1))
}

pub(crate) fn ring_all_reduce(rank: usize, spec: &Spec) -> Vec<Step> {
    let (next, prev) = neighbours(rank, spec);
    let mut steps = copy_in(spec);
    for round in 0..spec.ranks - 1 {
        let (send, recv) = turn(rank, spec, 0, round);
        steps.extend([Step::send(next, OUT, send), Step::recv_reduce(prev, OUT, OUT, recv)]);
    }
    steps.push(Step::finish(OUT, chunk(spec, rank + 1)));
    for round in 0..spec.ranks - 1 {
        let (send, recv) = turn(rank, spec, 1, round);
        steps.extend([Step::send(next, OUT, send), Step::recv(prev, OUT, recv)]);
    }
    steps
}

/// Recursive doubling through scratch. If the number of ranks is not a power of two, each rank
/// beyond the largest power sends its data to a rank below it, and gets the result back.
pub(crate) fn doubling_all_reduce(rank: usize, spec: &Spec) -> Vec<Step> {
    let (all, core) = (all(spec), 1 << spec.ranks.ilog2());
    let mut steps = copy_in(spec);
    if rank >= core {
        steps.extend([Step::send(rank - core, OUT, all), Step::recv(rank - core, OUT, all)]);
        return steps;
    }
    let extra = (rank + core < spec.ranks).then_some(rank + core);
    steps.extend(extra.map(|extra| Step::recv_reduce(extra, OUT, OUT, all)));
    let mut distance = 1;
    while distance < core {
        let peer = rank ^ distance;
        steps.extend([Step::send(peer, OUT, all), Step::recv(peer, SLOT, all), Step::reduce(OUT, SLOT, all)]);
        distance *= 2;
    }
    steps.push(Step::finish(OUT, all));
    steps.extend(extra.map(|extra| Step::send(extra, OUT, all)));
    steps
}

/// Recursive doubling that receives into the place from which it sends: without buffering, both
/// ranks wait for the receive of the other.
pub(crate) fn doubling_in_place(rank: usize, spec: &Spec) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut distance = 1;
    while distance < spec.ranks {
        let peer = rank ^ distance;
        steps.extend([Step::send(peer, OUT, all(spec)), Step::recv_reduce(peer, OUT, OUT, all(spec))]);
        distance *= 2;
    }
    steps.push(Step::finish(OUT, all(spec)));
    steps
}

pub(crate) fn linear_reduce(rank: usize, spec: &Spec) -> Vec<Step> {
    if rank != spec.root {
        return vec![Step::send(spec.root, IN, all(spec))];
    }
    let mut steps = copy_in(spec);
    let others = (0..spec.ranks).filter(|&other| other != rank);
    steps.extend(others.map(|other| Step::recv_reduce(other, OUT, OUT, all(spec))));
    steps.push(Step::finish(OUT, all(spec)));
    steps
}

pub(crate) fn binomial_broadcast(rank: usize, spec: &Spec) -> Vec<Step> {
    let n = spec.ranks;
    let (relative, real) = ((rank + n - spec.root) % n, |relative: usize| (relative + spec.root) % n);
    let mut steps = Vec::new();
    for block in 0..spec.blocks {
        let block = Blocks::one(block);
        let mut bit = n.next_power_of_two();
        if relative > 0 {
            bit = relative & relative.wrapping_neg();
            steps.push(Step::recv(real(relative - bit), OUT, block));
        }
        while bit > 1 {
            bit /= 2;
            if relative + bit < n {
                steps.push(Step::send(real(relative + bit), OUT, block));
            }
        }
    }
    steps
}

pub(crate) fn ring_all_gather(rank: usize, spec: &Spec) -> Vec<Step> {
    let (next, prev) = neighbours(rank, spec);
    let own = chunk(spec, rank);
    let mut steps = Vec::new();
    if spec.buffers == Buffers::Separate {
        steps.push(Step::copy(OUT, IN, own));
    }
    for round in 0..spec.ranks - 1 {
        let (send, recv) = turn(rank, spec, 0, round);
        steps.extend([Step::send(next, OUT, send), Step::recv(prev, OUT, recv)]);
    }
    steps
}

/// Works in scratch, where block `b` has slot `b`, because the output may hold only one chunk. Each
/// partial sum is received, combined with the rank's own contribution in place, and stored in
/// scratch.
pub(crate) fn ring_reduce_scatter(rank: usize, spec: &Spec) -> Vec<Step> {
    let (next, prev) = neighbours(rank, spec);
    let own = if spec.buffers == Buffers::Separate { IN } else { OUT };
    let each = |blocks: Blocks| (blocks.first..blocks.end()).map(Blocks::one);
    let slot = |block: Blocks| Place::Scratch { slot: block.first };
    let mut steps = if spec.ranks == 1 { copy_in(spec) } else { vec![] };
    for round in 0..spec.ranks - 1 {
        let (send, recv) = turn(rank, spec, spec.ranks - 1, round);
        for (send, recv) in each(send).zip(each(recv)) {
            let from = if round == 0 { own } else { slot(send) };
            let into = if round + 2 == spec.ranks { OUT } else { slot(recv) };
            steps.extend([Step::send(next, from, send), Step::recv_reduce(prev, into, own, recv)]);
        }
    }
    steps.push(Step::finish(OUT, chunk(spec, rank)));
    steps
}

pub(crate) fn chain_scan(rank: usize, spec: &Spec) -> Vec<Step> {
    let receive = (rank > 0).then(|| Step::recv_reduce(rank - 1, OUT, OUT, all(spec)));
    let send = (rank + 1 < spec.ranks).then(|| Step::send(rank + 1, OUT, all(spec)));
    receive.into_iter().chain(send).collect()
}

pub(crate) fn chain_exscan(rank: usize, spec: &Spec) -> Vec<Step> {
    let all = all(spec);
    let next = Some(rank + 1).filter(|&next| next < spec.ranks);
    let Some(before) = rank.checked_sub(1) else {
        return next.map(|next| Step::send(next, IN, all)).into_iter().collect();
    };
    let pass_on =
        |next| [Step::copy(SLOT, IN, all), Step::reduce(SLOT, OUT, all), Step::send(next, SLOT, all)];
    [Step::recv(before, OUT, all)].into_iter().chain(next.map(pass_on).into_iter().flatten()).collect()
}

pub(crate) fn linear_barrier(rank: usize, spec: &Spec) -> Vec<Step> {
    let all = all(spec);
    if rank > 0 {
        return vec![Step::send(0, OUT, all), Step::recv(0, OUT, all)];
    }
    let arrivals = (1..spec.ranks).map(|other| Step::recv_reduce(other, OUT, OUT, all));
    arrivals.chain((1..spec.ranks).map(|other| Step::send(other, OUT, all))).collect()
}
