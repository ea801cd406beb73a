//! Selects the algorithm of a call.

mod oversubscription;

use comm_core::{Collective, Invalid, Partition, ReduceOrder, Result};

use crate::Tuning;
use crate::schedule::{Algorithm, Chunks, Params};

/// The smallest calls from which ranks learn whether they have windows.
const LEARNING_BYTES_MIN: usize = 64 << 10;

/// The properties of a call that determine the selection. They are the same on every member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallShape {
    /// The collective.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: usize,
    /// The size of all data of the collective in bytes: the buffer of a reduction, the result of a
    /// gather, the data that one rank sends to all others in an all-to-all. 0 if only some ranks
    /// know it.
    pub bytes: usize,
    /// The order of combination that the caller requested.
    pub order: ReduceOrder,
    /// Whether all ranks are known to pass buffers into which the others of their host can write
    /// results.
    pub windows: bool,
}

/// Setters, as in `CallShape::new(Collective::AllReduce).ranks(8).bytes(1 << 20)`.
impl CallShape {
    /// Creates the shape of a collective of one rank without data, with [`ReduceOrder::Any`].
    #[must_use]
    pub const fn new(collective: Collective) -> Self {
        Self { collective, ranks: 1, bytes: 0, order: ReduceOrder::Any, windows: false }
    }

    comm_core::setters!(ranks: usize, bytes: usize, order: ReduceOrder, windows: bool);

    /// Returns whether the ranks learn from a call whether all have windows, for the next one: both
    /// of two ranks do, because each receives a message of the other.
    #[must_use]
    pub const fn learns_windows(&self) -> bool {
        self.ranks == 2
            && matches!(self.collective.base(), Collective::AllReduce)
            && self.bytes >= LEARNING_BYTES_MIN
    }
}

/// The smallest predicted speedup for which an algorithm is preferred to one above it in the table.
/// Smaller speedups are within the error of the model, and algorithms further up have simpler
/// patterns with fewer concurrent partners, which real networks favour more than the model does.
const MIN_SPEEDUP: f64 = 1.0 / 0.95;

/// The limit on temporary memory per rank in bytes. It is exceeded only if every algorithm needs
/// more, or if the caller forces one that does.
const SCRATCH_MAX: usize = 24 << 20;

/// The selected algorithm and its parameters, the same on every rank.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Selection {
    /// The algorithm.
    pub algorithm: &'static Algorithm,
    /// The number of segments of each chunk.
    pub segments: usize,
    /// The predicted time in seconds.
    pub time: f64,
    /// The size of the temporary memory of a rank in bytes.
    scratch: usize,
}

impl Selection {
    /// Returns whether this is preferred to `other` even if that is faster by up to the factor
    /// `speedup`. A selection that needs too much memory is never preferred to one that does not.
    fn is_preferred_to(&self, other: &Self, speedup: f64) -> bool {
        let (is_lean, other_is) = (self.scratch <= SCRATCH_MAX, other.scratch <= SCRATCH_MAX);
        if is_lean == other_is { self.time <= other.time * speedup } else { is_lean }
    }

    /// Returns whether staged data, if there is any, is read in place; otherwise staging only adds
    /// a copy.
    fn reads_in_place(&self, shape: &CallShape, tuning: &Tuning) -> bool {
        let block_bytes = chunk_bytes(shape, self.algorithm) as f64 / self.segments as f64;
        !self.algorithm.traits.staged || tuning.links.reads_in_place(shape.ranks, block_bytes)
    }
}

/// Selects the algorithm and the number of segments that are fastest according to the link model,
/// or the fastest segmentation of the algorithm that the caller forces. The result is the same on
/// every rank.
///
/// # Errors
/// [`Invalid::Algorithm`] if the forced algorithm does not exist for the collective, or does not
/// support the order.
pub fn choose(shape: &CallShape, forced: Option<&str>, tuning: &Tuning) -> Result<Selection> {
    let fitting = |row: &&Algorithm| is_eligible(shape, row) && forced.is_none_or(|name| row.name == name);
    let best = Algorithm::for_collective(shape.collective)
        .filter(fitting)
        .filter_map(|row| fastest_cut(shape, row, tuning))
        .filter(|choice| forced.is_some() || choice.reads_in_place(shape, tuning))
        .reduce(|best, other| if best.is_preferred_to(&other, MIN_SPEEDUP) { best } else { other });
    best.ok_or_else(|| unfit(shape, forced.unwrap_or_default()))
}

/// Returns the fastest segmentation for an algorithm; among equally fast ones, the one with fewer
/// segments.
fn fastest_cut(shape: &CallShape, row: &'static Algorithm, tuning: &Tuning) -> Option<Selection> {
    let timed = segmentations(shape, row, tuning).map(|segments| {
        let time = predict(shape, row, segments, tuning);
        Selection { algorithm: row, segments, time, scratch: scratch(shape, row, segments, tuning) }
    });
    timed.reduce(|best, other| if best.is_preferred_to(&other, 1.0) { best } else { other })
}

/// Returns the size of the temporary memory in bytes on the rank that needs the most.
fn scratch(shape: &CallShape, row: &Algorithm, segments: usize, tuning: &Tuning) -> usize {
    let params = params(shape, segments, tuning);
    let block = chunk_bytes(shape, row).div_ceil(segments);
    let slots = (0..shape.ranks).map(|rank| (row.slots)(&Params { rank, ..params }));
    slots.max().unwrap_or(0).saturating_mul(block)
}

/// Predicts the time of an algorithm with this number of segments per chunk, in seconds.
#[must_use]
pub fn predict(shape: &CallShape, algorithm: &Algorithm, segments: usize, tuning: &Tuning) -> f64 {
    let chunk_bytes = chunk_bytes(shape, algorithm) as f64;
    let params = params(shape, segments, tuning);
    let alone = algorithm.predict(&params, &tuning.links, chunk_bytes / segments as f64);
    oversubscription::slowed_time(alone, algorithm, &params, &tuning.links, chunk_bytes)
}

/// Returns the parameters of a schedule for this shape, with rank 0 and root 0.
#[must_use]
pub fn params(shape: &CallShape, segments: usize, tuning: &Tuning) -> Params {
    Params {
        ranks: shape.ranks,
        rank: 0,
        root: 0,
        segments,
        pass: tuning.segments_per_pass,
        in_place: true,
        ranks_per_host: tuning.links.ranks_per_host,
        exposed: shape.windows,
    }
}

/// Returns the partition of the data of all ranks into equal counts of bytes. Simulators need it in
/// addition to the steps.
#[must_use]
pub fn sizes(shape: &CallShape, algorithm: &Algorithm, p: &Params) -> Partition {
    let data = match algorithm.chunks {
        // `bytes` is the size of one rank's row of the matrix of all pairs.
        Chunks::PerPair => shape.bytes.saturating_mul(shape.ranks),
        _ => shape.bytes,
    };
    Partition::even(data, algorithm.blocks(p) / p.segments).segments(p.segments)
}

/// Returns an error if the algorithm does not exist or is not eligible. Called before any buffer is
/// modified.
pub(crate) fn check(shape: &CallShape, name: &str) -> Result<()> {
    let known = Algorithm::find(shape.collective, name).is_some_and(|row| is_eligible(shape, row));
    if known { Ok(()) } else { Err(unfit(shape, name)) }
}

fn is_eligible(shape: &CallShape, row: &Algorithm) -> bool {
    let reduces = matches!(
        shape.collective.base(),
        Collective::AllReduce
            | Collective::Reduce
            | Collective::ReduceScatter
            | Collective::Scan
            | Collective::Exscan
    );
    !reduces || shape.order == ReduceOrder::Any || row.traits.keeps_order
}

/// Returns the size of the largest chunk.
fn chunk_bytes(shape: &CallShape, row: &Algorithm) -> usize {
    match row.chunks {
        // `bytes` is the size of one rank's row of the matrix of all pairs.
        Chunks::PerPair => shape.bytes.div_ceil(shape.ranks),
        chunks => shape.bytes.div_ceil(chunks.count(shape.ranks)),
    }
}

/// Returns the candidate numbers of segments: one, and the number that yields segments of the
/// configured size. Chunks of more than that are not staged whole, because what is staged should
/// stay in the cache until others have read it.
fn segmentations(shape: &CallShape, row: &Algorithm, tuning: &Tuning) -> impl Iterator<Item = usize> + use<> {
    let pieces = chunk_bytes(shape, row).div_ceil(tuning.segment_bytes.max(1));
    let several = (row.traits.segmented && pieces > 1).then_some(pieces);
    let whole = (several.is_none() || !row.traits.staged).then_some(1);
    whole.into_iter().chain(several)
}

fn unfit(shape: &CallShape, name: &str) -> comm_core::Error {
    let known = Algorithm::for_collective(shape.collective).filter(|row| is_eligible(shape, row));
    let known: Vec<&str> = known.map(|row| row.name).collect();
    Invalid::Algorithm { name: name.into(), collective: shape.collective.name(), known: known.join(", ") }
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::{Link, LinkModel};

    use crate::RingConfig;

    fn tuning() -> Tuning {
        let link = Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
        RingConfig::default().tuning(LinkModel::uniform(link, 1e-10))
    }

    fn shape(collective: Collective, bytes: usize) -> CallShape {
        CallShape::new(collective).ranks(4).bytes(bytes)
    }

    #[test]
    fn small_all_reduces_take_few_rounds_and_large_ones_send_little() {
        let rounds = |bytes| {
            let choice = choose(&shape(Collective::AllReduce, bytes), None, &tuning()).unwrap();
            let params = params(&shape(Collective::AllReduce, bytes), choice.segments, &tuning());
            (choice.algorithm.cost)(&params)
        };
        assert!(rounds(4).rounds <= 2);
        let large = rounds(1 << 24);
        assert!(large.blocks <= 6 * choose_large().segments, "{large:?}");
    }

    fn choose_large() -> Selection {
        choose(&shape(Collective::AllReduce, 1 << 24), None, &tuning()).unwrap()
    }

    #[test]
    fn algorithms_avoid_slow_links_between_hosts() {
        let slow = Link { latency: 2e-5, overhead: 1e-6, per_byte: 1e-9 };
        let fast = Link { latency: 1e-6, overhead: 1e-7, per_byte: 1e-10 };
        let links = LinkModel { within: fast, ranks_per_host: 8, ..LinkModel::uniform(slow, 1e-10) };
        let tuning = RingConfig::default().tuning(links);
        let chosen = |ranks| {
            let shape = CallShape { ranks, ..shape(Collective::AllReduce, 1 << 24) };
            choose(&shape, None, &tuning).unwrap().algorithm.traits.hierarchical
        };
        assert!(chosen(16) && chosen(64) && chosen(60));
        assert!(!chosen(8));
        // A lone rank on the last host would exchange messages with all others.
        assert!(!chosen(17));
    }

    #[test]
    fn the_deterministic_order_sends_no_more_bytes_of_large_data() {
        for ranks in [4, 5, 16] {
            for collective in [Collective::AllReduce, Collective::ReduceScatter] {
                let order = ReduceOrder::Deterministic;
                let shape = CallShape { ranks, order, ..shape(collective, 1 << 24) };
                let choice = choose(&shape, None, &tuning()).unwrap();
                let cost = (choice.algorithm.cost)(&params(&shape, choice.segments, &tuning()));
                let share =
                    cost.blocks as f64 / choice.segments as f64 / choice.algorithm.chunks.count(ranks) as f64;
                let passes = if collective == Collective::AllReduce { 2.0 } else { 1.0 };
                assert!(share < passes, "{} sends {share} of the data", choice.algorithm.name);
            }
        }
    }

    #[test]
    fn a_forced_algorithm_uses_its_fastest_segmentation() {
        let choice = choose(&shape(Collective::AllReduce, 1 << 24), Some("ring"), &tuning()).unwrap();
        assert_eq!((choice.algorithm.name, choice.segments), ("ring", 16));
    }

    #[test]
    fn no_other_algorithm_is_clearly_faster_than_the_selected_one() {
        for collective in Collective::ALL {
            for (ranks, bytes) in
                [2, 3, 8, 20, 64, 200].map(|ranks| [0, 4, 5000, 1 << 24].map(|b| (ranks, b))).concat()
            {
                let shape = CallShape { ranks, ..shape(collective, bytes) };
                let chosen = choose(&shape, None, &tuning()).unwrap();
                let mut before = true;
                for row in Algorithm::for_collective(collective) {
                    before &= row.name != chosen.algorithm.name;
                    let other = choose(&shape, Some(row.name), &tuning()).unwrap();
                    if other.scratch > SCRATCH_MAX || row.traits.staged {
                        continue;
                    }
                    let (name, instead) = (chosen.algorithm.name, row.name);
                    assert!(
                        chosen.time <= other.time * MIN_SPEEDUP,
                        "{name} of {ranks} rather than {instead}"
                    );
                    // Nor is it preferred to a simpler one that is as fast.
                    assert!(!before || chosen.time < other.time, "{name} of {ranks} rather than {instead}");
                }
            }
        }
    }

    #[test]
    fn scratch_is_bounded_for_large_data() {
        // A barrier has no data.
        let has_data = |collective: &Collective| collective.base() != Collective::Barrier;
        for collective in Collective::ALL.into_iter().filter(has_data) {
            for ranks in [2, 3, 8, 20] {
                let shape = CallShape { ranks, ..shape(collective, 256 << 20) };
                let chosen = choose(&shape, None, &tuning()).unwrap();
                let name = chosen.algorithm.name;
                assert!(chosen.scratch <= SCRATCH_MAX, "{collective} {name} of {ranks}: {}", chosen.scratch);
            }
        }
        let forced = choose(&shape(Collective::Scan, 256 << 20), Some("recursive_doubling"), &tuning());
        assert!(forced.unwrap().scratch > SCRATCH_MAX);
    }

    #[test]
    fn every_collective_has_an_algorithm() {
        for collective in Collective::ALL {
            choose(&shape(collective, 1 << 20), None, &tuning()).unwrap();
        }
    }

    /// Returns models of groups on one host and on several, with fast and slow networks.
    fn models() -> impl Iterator<Item = LinkModel> {
        let memory = Link { latency: 1e-7, overhead: 2e-7, per_byte: 5e-11 };
        let fast = Link { latency: 2e-5, overhead: 4e-6, per_byte: 1e-10 };
        let slow = Link { latency: 1e-4, overhead: 1e-6, per_byte: 1e-8 };
        let links = [(memory, fast), (memory, slow), (fast, fast), (slow, slow)];
        let hosts = [(1, 0, None), (8, 0, Some(32 << 10)), (64, 0, Some(32 << 10)), (64, 2, Some(32 << 10))];
        links.into_iter().flat_map(move |(within, between)| {
            hosts.map(|(ranks_per_host, processors, staged_from)| LinkModel {
                within,
                ranks_per_host,
                processors,
                staged_from: staged_from.filter(|_| within == memory),
                ..LinkModel::uniform(between, 5e-11)
            })
        })
    }

    #[test]
    fn every_algorithm_is_the_fastest_for_some_group() {
        let rows = |of: Collective| Algorithm::for_collective(of).map(move |row| (of, row.name));
        let mut never: Vec<_> = Collective::ALL.into_iter().flat_map(rows).collect();
        let sizes = || (0..30).step_by(2).map(|log| 3 << log);
        let orders = [ReduceOrder::Any, ReduceOrder::Deterministic];
        for tuning in models().map(|links| RingConfig::default().tuning(links)) {
            for (ranks, bytes) in
                [2, 3, 4, 8, 13, 37, 64].into_iter().flat_map(|n| sizes().map(move |b| (n, b)))
            {
                for (collective, order) in Collective::ALL.into_iter().flat_map(|of| orders.map(|o| (of, o)))
                {
                    let shape = CallShape::new(collective).ranks(ranks).bytes(bytes).order(order);
                    let chosen = choose(&shape, None, &tuning).unwrap().algorithm.name;
                    never.retain(|row| *row != (collective, chosen));
                }
            }
        }
        assert!(never.is_empty(), "{never:?}");
    }

    #[test]
    fn data_for_several_ranks_is_staged_where_they_read_it_in_place() {
        let link = Link { latency: 1e-7, overhead: 1.5e-7, per_byte: 1e-10 };
        let apart = LinkModel::uniform(link, 5e-11);
        let shared = LinkModel { ranks_per_host: 8, staged_from: Some(8 << 10), ..apart };
        let chosen = |collective, links, ranks, bytes| {
            let tuning = RingConfig::default().tuning(links);
            choose(&CallShape { ranks, ..shape(collective, bytes) }, None, &tuning).unwrap().algorithm.name
        };
        for (collective, bytes) in [
            (Collective::AllGather, 1 << 20),
            (Collective::AllReduce, 1 << 22),
            (Collective::ReduceScatter, 1 << 22),
        ] {
            assert_eq!(chosen(collective, shared, 8, bytes), "staged");
            assert_ne!(chosen(collective, LinkModel { staged_from: None, ..shared }, 8, bytes), "staged");
            assert_ne!(chosen(collective, LinkModel { ranks_per_host: 4, ..shared }, 8, bytes), "staged");
            // Two ranks do not share, and small data is not worth staging.
            assert_ne!(chosen(collective, shared, 2, bytes), "staged");
            assert_ne!(chosen(collective, shared, 8, 8 * 8 * 1000), "staged");
        }
        let tuning = RingConfig::default().tuning(shared);
        let large = CallShape { ranks: 8, ..shape(Collective::AllGather, 256 << 20) };
        assert!(choose(&large, Some("staged"), &tuning).unwrap().scratch <= SCRATCH_MAX);
        let oversubscribed = LinkModel { processors: 2, ..shared };
        assert_eq!(chosen(Collective::Broadcast, oversubscribed, 8, 1 << 20), "staged");
        assert_ne!(chosen(Collective::Broadcast, oversubscribed, 8, 1 << 14), "staged");
        // A segment is read while the next one is staged.
        let tuning = RingConfig::default().tuning(oversubscribed);
        let large = CallShape { ranks: 8, ..shape(Collective::Broadcast, 1 << 22) };
        assert!(choose(&large, None, &tuning).unwrap().segments > 1);
        assert_ne!(chosen(Collective::Broadcast, shared, 2, 1 << 24), "staged");
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let shape = shape(Collective::AllReduce, 8);
        let text = choose(&shape, Some("magic"), &tuning()).unwrap_err().to_string();
        assert!(text.contains("magic") && text.contains("ring"), "{text}");
    }

    #[test]
    fn an_algorithm_that_cannot_keep_the_order_is_refused() {
        let shape = CallShape { order: ReduceOrder::Deterministic, ..shape(Collective::AllReduce, 1 << 24) };
        assert!(choose(&shape, None, &tuning()).unwrap().algorithm.traits.keeps_order);
        let text = choose(&shape, Some("ring"), &tuning()).unwrap_err().to_string();
        assert!(text.contains("recursive_doubling") && !text.contains("ring,"), "{text}");
        assert!(check(&shape, "ring").is_err());
        assert!(check(&shape, "recursive_doubling").is_ok());
    }
}
