//! Checks of one collective, whose results are compared with the model.

use comm_core::{
    AsView, AsViewMut, Buffers, Call, CallOptions, Collective, Counts, Error, Invalid, Memory, ReduceOp,
};

use super::model::{Model, Scenario, UNWRITTEN};
use super::outcome::same_bits;
use super::{CheckResult, Failure, Features, Member};
use crate::exact::{self, Small, elements};
use crate::for_each_type;

/// The ways in which a rank passes its buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Placement {
    InPlace,
    Separate,
    /// Ranks that get no result pass no receive buffer.
    SendOnly,
}

/// Counts combinations, and selects every `step`-th one, which is the same on every rank.
struct Sampler {
    step: usize,
    seen: usize,
}

impl Sampler {
    fn is_due(&mut self) -> bool {
        self.seen += 1;
        self.seen.is_multiple_of(self.step)
    }
}

/// Checks a collective on one rank, with equal blocks and with counts per rank: all types,
/// operators, lengths, roots and algorithms, in place and with separate buffers, bit by bit. Every
/// rank must run the same check.
///
/// # Errors
/// [`Failure`], which names the call.
pub fn check<M: Member>(member: &M, collective: Collective) -> CheckResult {
    let same = |other: &Collective| other.base() == collective;
    Collective::ALL.into_iter().filter(same).try_for_each(|collective| check_one(member, collective))?;
    Ok(member.synchronize()?)
}

fn check_one<M: Member>(member: &M, collective: Collective) -> CheckResult {
    let features = member.features();
    let mut sampler = Sampler { step: features.step, seen: 0 };
    if !(features.has)(collective) {
        return refuses(member, collective);
    }
    match collective {
        Collective::Barrier | Collective::MonitoredBarrier => return barriers(member, collective),
        // Groups are created by other methods, which `splits_into_groups` checks.
        Collective::Split | Collective::NewGroup | Collective::Duplicate => return Ok(()),
        _ => {}
    }
    for_each_type!(T => each_operator::<T, M>(member, collective, &mut sampler)?);
    Ok(())
}

fn barriers<M: Member>(member: &M, collective: Collective) -> CheckResult {
    let Features { options, algorithms, .. } = member.features();
    for algorithm in [None].into_iter().chain(algorithms(collective).into_iter().map(Some)) {
        let call = if collective == Collective::Barrier { Call::Barrier } else { Call::MonitoredBarrier };
        member.communicator().run(call, &with_algorithm(&options, algorithm))?;
    }
    Ok(())
}

/// Checks that a collective that the backend lacks is rejected on every rank.
fn refuses<M: Member>(member: &M, collective: Collective) -> CheckResult {
    let counts = vec![1; member.communicator().group().size()];
    let scenario = Scenario { collective, ranks: counts.len(), root: 0, op: ReduceOp::Sum, counts: &counts };
    if scenario.model(0).is_none() {
        return Ok(());
    }
    match run::<i32, M>(member, &scenario, Placement::InPlace, &member.features().options) {
        Err(Failure::Call(Error::Invalid(Invalid::Unsupported { .. }))) => Ok(()),
        other => Err(Failure::Wrong(format!("{collective} is not refused as unsupported: {other:?}"))),
    }
}

fn each_operator<T: Small, M: Member>(
    member: &M,
    collective: Collective,
    sampler: &mut Sampler,
) -> CheckResult {
    let ranks = member.communicator().group().size();
    let features = member.features();
    if !reduces(collective) {
        return each_length::<T, M>(member, collective, ReduceOp::Sum, sampler);
    }
    for op in ReduceOp::ALL {
        let is_scan = matches!(collective, Collective::Scan | Collective::Exscan);
        let has = (features.reduces)(op, T::DTYPE) && !(is_scan && op == ReduceOp::Avg);
        if has && exact::is_exact(op, T::DTYPE, ranks) {
            each_length::<T, M>(member, collective, op, sampler)?;
        }
    }
    Ok(())
}

fn each_length<T: Small, M: Member>(
    member: &M,
    collective: Collective,
    op: ReduceOp,
    sampler: &mut Sampler,
) -> CheckResult {
    let ranks = member.communicator().group().size();
    let has_root = matches!(
        collective.base(),
        Collective::Broadcast | Collective::Gather | Collective::Reduce | Collective::Scatter
    );
    for counts in counts_of(collective, ranks, member.features().lengths) {
        for root in 0..if has_root { ranks } else { 1 } {
            if sampler.is_due() {
                each_placement::<T, M>(member, &Scenario { collective, ranks, root, op, counts: &counts })?;
            }
        }
    }
    Ok(())
}

fn each_placement<T: Small, M: Member>(member: &M, scenario: &Scenario<'_>) -> CheckResult {
    let Features { options, algorithms, .. } = member.features();
    let names = algorithms(scenario.collective).into_iter().map(Some);
    for algorithm in [None].into_iter().chain(names) {
        let options = with_algorithm(&options, algorithm);
        for placement in [Placement::InPlace, Placement::Separate, Placement::SendOnly] {
            let has_send_only = matches!(scenario.collective.base(), Collective::Reduce | Collective::Gather);
            let is_offered = match placement {
                Placement::InPlace => true,
                Placement::Separate => scenario.collective != Collective::Broadcast,
                Placement::SendOnly => has_send_only,
            };
            if is_offered {
                run::<T, M>(member, scenario, placement, &options).map_err(|failure| {
                    let Scenario { collective, ranks, root, op, counts } = scenario;
                    let algorithm = algorithm.unwrap_or("the chosen algorithm");
                    failure.during(format_args!(
                        "{collective} of {counts:?} x {} by {algorithm}, {placement:?}, operator {op}, root \
                         {root}, {ranks} ranks",
                        T::DTYPE
                    ))
                })?;
            }
        }
    }
    Ok(())
}

/// Makes one call and compares all buffers of this rank with the model.
fn run<T: Small, M: Member>(
    member: &M,
    scenario: &Scenario<'_>,
    placement: Placement,
    options: &CallOptions,
) -> CheckResult {
    let rank = member.communicator().group().rank();
    let Some(model) = scenario.model(rank) else {
        return Err(Failure::Wrong(format!("the suite has no model of {}", scenario.collective)));
    };
    let counts = OwnCounts::new(scenario, rank, placement == Placement::InPlace);
    let of = |numbers: &[i64]| elements::<T>(0..numbers.len(), |at| numbers[at]);
    if placement == Placement::InPlace {
        let mut buffer = member.buffer(&of(&model.in_place.before))?;
        call(member, scenario, &counts, Buffers::InPlace(buffer.as_view_mut()?), options)?;
        let got = member.read(&buffer)?;
        return same_bits("in place", &got[model.in_place.part], &of(&model.in_place.after));
    }
    let Model { send, recv, recv_len, .. } = model;
    let (send, untouched) = (of(&send), vec![T::of(UNWRITTEN); recv_len]);
    let (given, mut taken) = (member.buffer(&send)?, member.buffer(&untouched)?);
    let buffers = if placement == Placement::SendOnly && recv.is_none() {
        Buffers::SendOnly(given.as_view()?)
    } else {
        Buffers::Separate { send: given.as_view()?, recv: taken.as_view_mut()? }
    };
    call(member, scenario, &counts, buffers, options)?;
    same_bits("the receive buffer", &member.read(&taken)?, &recv.map_or(untouched, |recv| of(&recv)))?;
    same_bits("the send buffer", &member.read(&given)?, &send)
}

/// The counts that one rank passes.
struct OwnCounts<'a> {
    /// The lengths of all blocks, for a rank that knows them.
    known: &'a [usize],
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl<'a> OwnCounts<'a> {
    fn new(scenario: &Scenario<'a>, rank: usize, in_place: bool) -> Self {
        let Scenario { root, counts, ranks, collective, .. } = *scenario;
        // Only the root of a gather or scatter knows all counts.
        let is_known = collective.is_known_everywhere() || rank == root;
        Self {
            known: if is_known { counts } else { &[] },
            sent: (0..ranks).map(|to| scenario.between(rank, to, in_place)).collect(),
            received: (0..ranks).map(|from| scenario.between(from, rank, in_place)).collect(),
        }
    }
}

fn call<'a, M: Member>(
    member: &M,
    scenario: &Scenario<'_>,
    counts: &'a OwnCounts<'a>,
    buffers: Buffers<'a, M::Memory>,
    options: &CallOptions,
) -> CheckResult {
    let Scenario { collective, root, op, .. } = *scenario;
    let op = exact::of_rank(op, member.communicator().group().rank());
    let as_counts = |counts: &'a [usize]| {
        if collective == collective.base() { Counts::Equal } else { Counts::PerRank(counts) }
    };
    let known = as_counts(counts.known);
    let call = match collective.base() {
        Collective::AllReduce => Call::AllReduce { buffers, op },
        Collective::Reduce => Call::Reduce { root, buffers, op },
        Collective::Broadcast => Call::Broadcast { root, buffer: whole::<M::Memory>(buffers)? },
        Collective::AllGather => Call::AllGather { buffers, counts: known },
        Collective::ReduceScatter => Call::ReduceScatter { buffers, counts: known, op },
        Collective::Gather => Call::Gather { root, buffers, counts: known },
        Collective::Scatter => Call::Scatter { root, buffers, counts: known },
        Collective::AllToAll => {
            Call::AllToAll { buffers, send: as_counts(&counts.sent), recv: as_counts(&counts.received) }
        }
        Collective::Scan => Call::Scan { buffers, op },
        Collective::Exscan => Call::Exscan { buffers, op },
        other => return Err(Failure::Wrong(format!("the suite makes no call of {other}"))),
    };
    Ok(member.communicator().run(call, options)?)
}

fn whole<M: Memory>(buffers: Buffers<'_, M>) -> CheckResult<M::ViewMut<'_>> {
    match buffers {
        Buffers::InPlace(buffer) => Ok(buffer),
        _ => Err(Failure::Wrong("a broadcast has one buffer".into())),
    }
}

const fn reduces(collective: Collective) -> bool {
    matches!(
        collective.base(),
        Collective::AllReduce
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::Scan
            | Collective::Exscan
    )
}

/// Returns lists of the lengths of all ranks' blocks: equal lengths, or with counts also uneven
/// ones with empty blocks in different places.
fn counts_of(collective: Collective, ranks: usize, lengths: fn(usize) -> Vec<usize>) -> Vec<Vec<usize>> {
    if collective.base() == collective {
        return lengths(ranks).into_iter().map(|len| vec![len; ranks]).collect();
    }
    let longest = lengths(ranks).into_iter().max().unwrap_or(1);
    let only = |rank: usize| (0..ranks).map(|at| if at == rank { longest } else { 0 }).collect();
    let falling = (0..ranks).map(|rank| 3 * (ranks - 1 - rank)).collect();
    let mixed = (0..ranks).map(|rank| [5, 0, longest / 2, 1][rank % 4]).collect();
    vec![vec![0; ranks], vec![3; ranks], only(0), only(ranks - 1), falling, mixed]
}

pub(super) fn with_algorithm(options: &CallOptions, algorithm: Option<&'static str>) -> CallOptions {
    match algorithm {
        Some(name) => options.clone().algorithm(name),
        None => options.clone(),
    }
}

/// Checks that sums of fractions, which are rounded, have the same bits on every rank and in every
/// repetition.
///
/// # Errors
/// [`Failure`], which names the algorithm.
pub fn repeats_the_same_bits<M: Member>(member: &M) -> CheckResult {
    let Features { options, algorithms, .. } = member.features();
    let group = member.communicator().group();
    let ours: Vec<f32> = (0..500).map(|at| exact::fraction(group.rank(), at)).collect();
    for algorithm in [None].into_iter().chain(algorithms(Collective::AllReduce).into_iter().map(Some)) {
        let reduced = || -> CheckResult<Vec<f32>> {
            let mut buffer = member.buffer(&ours)?;
            let call =
                Call::AllReduce { buffers: Buffers::InPlace(buffer.as_view_mut()?), op: ReduceOp::Sum };
            member.communicator().run(call, &with_algorithm(&options, algorithm))?;
            Ok(member.read(&buffer)?)
        };
        let first = reduced()?;
        (0..4).try_for_each(|_| same_bits(format!("repeated by {algorithm:?}"), &reduced()?, &first))?;
        let mut roots = member.buffer(&first)?;
        member.communicator().run(Call::Broadcast { root: 0, buffer: roots.as_view_mut()? }, &options)?;
        same_bits(format!("on rank 0 by {algorithm:?}"), &member.read(&roots)?, &first)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_has_a_model_or_its_own_case() {
        let own_case = [
            Collective::Barrier,
            Collective::MonitoredBarrier,
            Collective::Split,
            Collective::NewGroup,
            Collective::Duplicate,
        ];
        for collective in Collective::ALL {
            let scenario = Scenario { collective, ranks: 1, root: 0, op: ReduceOp::Sum, counts: &[1] };
            let has_model = scenario.model(0).is_some();
            assert!(has_model || own_case.contains(&collective), "the suite must check {collective}");
        }
    }
}
