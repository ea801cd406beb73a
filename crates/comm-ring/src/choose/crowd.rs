//! What it comes to that ranks share processors.
//!
//! Where every rank has a processor of its own, a collective takes as long as its longest chain of messages. Where
//! they share, whatever any rank does keeps others from running: it takes at least the work of all of them by the number of
//! processors; and on top of that, each wait for a message is a wait for a turn.

use comm_core::{Action, Link, LinkModel, Place, Step};

use crate::schedule::{Algorithm, Chunks, Params};

/// How long it takes until the next rank runs on a processor, in seconds.
const TURN: f64 = 1e-6;
/// Hosts with more ranks than this are taken for hosts with enough processors: their steps are too many to be counted.
const RANKS_MAX: usize = 64;

/// How long an algorithm takes on crowded processors that takes `alone` seconds on processors of its own.
pub(super) fn slowed(
    alone: f64,
    algorithm: &Algorithm,
    params: &Params,
    links: &LinkModel,
    chunk_bytes: f64,
) -> f64 {
    let crowd = links.oversubscription(params.ranks);
    if crowd == 1.0 || params.ranks.min(links.ranks_per_host) > RANKS_MAX {
        return alone;
    }
    let turns = waits(algorithm, params, links, chunk_bytes) * crowd * TURN;
    let processors = links.processors as f64;
    let idle = idle(algorithm, params, links, chunk_bytes) * (processors - 1.0);
    alone.max((work(algorithm, params, links, chunk_bytes) + idle) / processors) + turns
}

/// How long all but one rank have nothing to do at the start, in seconds: while a root stages what everybody reads.
fn idle(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let first = (algorithm.steps)(params)
        .next()
        .filter(|_| algorithm.traits.staged && algorithm.chunks == Chunks::Whole);
    first.map_or(0.0, |step| effort(&step, 1.0, links, chunk_bytes / params.segments as f64))
}

/// How many messages one waits for after another: how long it would take if only that took time.
fn waits(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let link = Link { latency: 1.0, overhead: 0.0, per_byte: 0.0 };
    let links = LinkModel { within: link, between: link, reduce: 0.0, ..*links };
    algorithm.predict(params, &links, chunk_bytes / params.segments as f64)
}

/// How long all ranks of a host work, in seconds.
fn work(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let ranks = params.ranks.min(links.ranks_per_host);
    // Segments are alike: a chunk in one of them stands for all.
    let whole = |rank| Params { rank, segments: 1, ..*params };
    let steps = (0..ranks).flat_map(|rank| (algorithm.steps)(&whole(rank)));
    let segments = params.segments as f64;
    let is_read_in_place =
        algorithm.traits.staged && links.reads_in_place(params.ranks, chunk_bytes / segments);
    let is_free = |step: &Step| is_read_in_place && matches!(step.place, Place::Scratch { .. });
    steps
        .map(|step| match step.action {
            Action::Send { .. } if is_free(&step) => segments * links.within.overhead,
            _ => effort(&step, segments, links, chunk_bytes),
        })
        .sum()
}

/// How long a rank works on a step, in seconds.
fn effort(step: &Step, segments: f64, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let bytes = step.blocks.count as f64 * chunk_bytes;
    // Between ranks of a host, the time of a byte is that of the sender's processor and of the receiver's.
    let message = segments * links.within.overhead + bytes * links.within.per_byte / 2.0;
    match step.action {
        Action::Send { .. } | Action::Recv { .. } => message,
        Action::RecvReduce { .. } => message + bytes * links.reduce,
        Action::Reduce { .. } => bytes * links.reduce,
        // Between ranks, a byte is copied twice.
        Action::Copy { .. } => bytes * links.within.per_byte / 2.0,
        Action::Finish => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use comm_core::{Collective, ReduceOrder};

    use super::*;
    use crate::choose::{CallShape, choose};
    use crate::{RingConfig, Tuning};

    fn tuning(processors: usize) -> Tuning {
        let link = Link { latency: 1e-7, overhead: 1.5e-7, per_byte: 1e-10 };
        let links = LinkModel { ranks_per_host: 64, processors, ..LinkModel::uniform(link, 1e-10) };
        RingConfig::default().tuning(links)
    }

    fn chosen(ranks: usize, bytes: usize, processors: usize) -> &'static str {
        let shape = CallShape { collective: Collective::AllReduce, ranks, bytes, order: ReduceOrder::Any };
        choose(&shape, None, &tuning(processors)).unwrap().algorithm.name
    }

    #[test]
    fn a_crowd_sends_few_messages_and_ranks_of_their_own_few_in_a_row() {
        assert_eq!(chosen(8, 4, 2), "linear");
        assert_ne!(chosen(8, 4, 8), "linear");
        assert_eq!(chosen(8, 4, 8), chosen(8, 4, 0));
    }

    #[test]
    fn the_work_is_that_of_all_ranks() {
        let linear = Algorithm::find(Collective::AllReduce, "linear").unwrap();
        let shape =
            CallShape { collective: Collective::AllReduce, ranks: 8, bytes: 0, order: ReduceOrder::Any };
        let (tuning, params) = (tuning(2), crate::choose::params(&shape, 1, &tuning(2)));
        // Seven messages to the root and seven back, each sent and received.
        let work = work(linear, &params, &tuning.links, 0.0);
        assert!((work - 28.0 * 1.5e-7).abs() < 1e-12, "{work}");
    }
}
