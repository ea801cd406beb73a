//! The time of a collective on hosts with fewer processors than ranks.
//!
//! If every rank has a processor, a collective takes as long as its longest chain of messages. If
//! ranks share processors, the work of any rank delays others: the collective takes at least the
//! total work divided by the number of processors, and each wait for a message adds a context
//! switch.

use comm_core::{Action, Link, LinkModel, Place, Step};

use crate::schedule::{Algorithm, Chunks, Params};

/// The time of a context switch to the next rank on a processor, in seconds.
const TURN: f64 = 1e-6;
/// The time to copy a byte within the memory of a rank, divided by the time to send it in a
/// message, if the data of the call stay in the caches of the rank's processor. With this value,
/// the selected algorithms of 3 to 8 ranks on two processors come closer to the fastest ones
/// (`commctl perf --algorithm`) than with others.
const CACHED_COPY: f64 = 0.1;
/// The largest data of a call that stay there.
const CACHED_BYTES: f64 = (1 << 20) as f64;
/// The largest number of ranks per host whose steps are counted. Hosts with more are treated as if
/// they had enough processors.
const RANKS_MAX: usize = 64;

/// Returns the time of an algorithm on oversubscribed processors, if it takes `alone` seconds when
/// every rank has a processor.
pub(super) fn slowed_time(
    alone: f64,
    algorithm: &Algorithm,
    params: &Params,
    links: &LinkModel,
    chunk_bytes: f64,
) -> f64 {
    let oversubscription = links.oversubscription(params.ranks);
    if oversubscription == 1.0 || params.ranks.min(links.ranks_per_host) > RANKS_MAX {
        return alone;
    }
    let turns = waits(algorithm, params, links, chunk_bytes) * oversubscription * TURN;
    let processors = links.processors as f64;
    let idle = idle(algorithm, params, links, chunk_bytes) * (processors - 1.0);
    alone.max((work(algorithm, params, links, chunk_bytes) + idle) / processors) + turns
}

/// Returns the time in seconds for which all ranks but the root are idle at the start, while it
/// stages the data that they read.
fn idle(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    if !algorithm.traits.staged || algorithm.chunks != Chunks::Whole {
        return 0.0;
    }
    // Not the time of a cached copy: with that, broadcasts of 256 KiB among 4 ranks would be
    // staged, although other algorithms are faster (`commctl perf broadcast --algorithm`).
    chunk_bytes / params.segments as f64 * links.within.per_byte / 2.0
}

/// Returns the length of the longest chain of messages: the predicted time if only latencies took
/// time.
fn waits(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let link = Link { latency: 1.0, overhead: 0.0, per_byte: 0.0 };
    let links = LinkModel { within: link, between: link, reduce: 0.0, ..*links };
    algorithm.predict(params, &links, chunk_bytes / params.segments as f64)
}

/// Returns the total work of all ranks of a host, in seconds.
fn work(algorithm: &Algorithm, params: &Params, links: &LinkModel, chunk_bytes: f64) -> f64 {
    let ranks = params.ranks.min(links.ranks_per_host);
    // All segments take the same steps, so one of them represents all.
    let whole = |rank| Params { rank, segments: 1, ..*params };
    let steps = (0..ranks).flat_map(|rank| (algorithm.steps)(&whole(rank)));
    let efforts = Efforts::new(algorithm, params, links, chunk_bytes);
    let is_read_in_place =
        algorithm.traits.staged && links.reads_in_place(params.ranks, chunk_bytes / efforts.segments);
    let is_shared = |step: &Step| is_read_in_place && matches!(step.place, Place::Scratch { .. });
    // What staging and reading take more, or less, than half of the time per byte.
    let more = |step: &Step, share: f64| {
        efforts.of(step) + step.blocks.count as f64 * chunk_bytes * links.within.per_byte * (share - 0.5)
    };
    steps
        .map(|step| match step.action {
            Action::Send { .. } if is_shared(&step) => efforts.segments * links.within.overhead,
            Action::Copy { .. } if is_shared(&step) && !efforts.are_cached => {
                more(&step, 1.0 - LinkModel::READ_IN_PLACE)
            }
            Action::Recv { .. } | Action::RecvReduce { .. } if is_read_in_place => {
                more(&step, LinkModel::READ_IN_PLACE)
            }
            _ => efforts.of(&step),
        })
        .sum()
}

/// The work of a rank on the steps of a call.
struct Efforts<'a> {
    segments: f64,
    chunk_bytes: f64,
    /// Whether the data of the call stay in the caches of the rank's processor.
    are_cached: bool,
    /// The time to copy a byte from one place of the rank to another.
    copy: f64,
    links: &'a LinkModel,
}

impl<'a> Efforts<'a> {
    fn new(algorithm: &Algorithm, params: &Params, links: &'a LinkModel, chunk_bytes: f64) -> Self {
        let are_cached = chunk_bytes * algorithm.chunks.count(params.ranks) as f64 <= CACHED_BYTES;
        // A message within a host copies each byte twice, so one copy takes half its time.
        let copy = links.within.per_byte * if are_cached { CACHED_COPY } else { 0.5 };
        Self { segments: params.segments as f64, chunk_bytes, are_cached, copy, links }
    }

    /// Returns the work on a step of all segments, in seconds.
    fn of(&self, step: &Step) -> f64 {
        let bytes = step.blocks.count as f64 * self.chunk_bytes;
        let Link { overhead, per_byte, .. } = self.links.within;
        // Within a host, the time per byte includes the work of both the sender's and the
        // receiver's processor.
        let message = self.segments * overhead + bytes * per_byte / 2.0;
        match step.action {
            Action::Send { .. } | Action::Recv { .. } => message,
            Action::RecvReduce { .. } => message + bytes * self.links.reduce,
            Action::Reduce { .. } => bytes * self.links.reduce,
            Action::Copy { .. } => bytes * self.copy,
            Action::Finish => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use comm_core::Collective;

    use super::*;
    use crate::choose::{CallShape, choose};
    use crate::{RingConfig, Tuning};

    fn tuning(processors: usize) -> Tuning {
        let link = Link { latency: 1e-7, overhead: 1.5e-7, per_byte: 1e-10 };
        let links = LinkModel { ranks_per_host: 64, processors, ..LinkModel::uniform(link, 1e-10) };
        RingConfig::default().tuning(links)
    }

    fn chosen(ranks: usize, bytes: usize, processors: usize) -> &'static str {
        let shape = CallShape::new(Collective::AllReduce).ranks(ranks).bytes(bytes);
        choose(&shape, None, &tuning(processors)).unwrap().algorithm.name
    }

    #[test]
    fn oversubscribed_ranks_send_few_messages_and_others_short_chains() {
        assert_eq!(chosen(8, 4, 2), "linear");
        assert_ne!(chosen(8, 4, 8), "linear");
        assert_eq!(chosen(8, 4, 8), chosen(8, 4, 0));
    }

    #[test]
    fn work_is_the_total_of_all_ranks() {
        let linear = Algorithm::find(Collective::AllReduce, "linear").unwrap();
        let shape = CallShape::new(Collective::AllReduce).ranks(8);
        let (tuning, params) = (tuning(2), crate::choose::params(&shape, 1, &tuning(2)));
        // Seven messages to the root and seven back, each sent and received.
        let work = work(linear, &params, &tuning.links, 0.0);
        assert!((work - 28.0 * 1.5e-7).abs() < 1e-12, "{work}");
    }
}
