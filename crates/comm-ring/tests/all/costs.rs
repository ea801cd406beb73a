//! The closed forms of every row of the table against the simulation of its steps.
#![allow(clippy::panic, reason = "helpers of tests")]

use comm_core::{Collective, Link, LinkModel, Partition};
use comm_ring::RingConfig;
use comm_ring::choose::{CallShape, Selection, choose, params, sizes};
use comm_ring::schedule::{Algorithm, Params, TABLE};
use comm_sim::cost::{Report, SimulationOptions, TimedProgram, simulate};
use comm_sim::verify::{Buffers, Spec};

const BLOCK_BYTES: usize = 4;

/// Simulates a row whose blocks have these sizes.
fn simulated(row: &Algorithm, p: &Params, links: LinkModel, sizes: &Partition) -> Report {
    let steps = |rank| (row.steps)(&p.rank(rank)) as _;
    let program = TimedProgram { ranks: p.ranks, sizes, steps: &steps };
    simulate(&program, &SimulationOptions::new(links))
        .unwrap_or_else(|failure| panic!("{} {} of {}: {failure}", row.collective, row.name, p.ranks))
}

/// Returns the largest count of a row over all roots and both kinds of buffers.
fn most(row: &Algorithm, p: &Params, count: fn(&Report) -> usize) -> usize {
    let links = LinkModel::uniform(Link { latency: 1.0, overhead: 0.0, per_byte: 0.0 }, 0.0);
    let blocks = row.blocks(p);
    let sizes = Partition::even(blocks, blocks).element_bytes(BLOCK_BYTES);
    let calls = Spec::all(row.collective, p.ranks, blocks)
        .map(|spec| p.root(spec.root).in_place(spec.buffers == Buffers::InPlace))
        // An all-reduce that does not read the input works in place, as its communicator copies
        // first.
        .filter(|p| p.in_place || row.collective != Collective::AllReduce || row.traits.reads_input);
    calls.map(|p| count(&simulated(row, &p, links, &sizes))).max().unwrap_or(0)
}

fn assert_counts(row: &Algorithm, ranks: usize, segments: usize) {
    let p = Params::new(ranks).segments(segments).pass(8);
    let cost = (row.cost)(&p);
    let context = format!("{} {} of {ranks}, {segments} segments", row.collective, row.name);
    assert_eq!(most(row, &p, Report::messages_max), cost.messages, "{context}: messages");
    assert_eq!(most(row, &p, Report::blocks_max), cost.blocks, "{context}: blocks");
    let bytes = most(row, &p, |report| report.bytes_max() as usize);
    assert_eq!(bytes, cost.blocks * BLOCK_BYTES, "{context}: bytes");
}

#[test]
fn simulated_programs_move_the_bytes_of_the_closed_forms() {
    for row in TABLE {
        for ranks in (1..=33).chain([64, 100]) {
            assert_counts(row, ranks, 1);
            if row.traits.segmented {
                assert_counts(row, ranks, 3);
            }
        }
    }
}

#[test]
fn the_circulant_broadcast_has_the_fewest_rounds_that_are_possible() {
    let row = Algorithm::find(Collective::Broadcast, "circulant").unwrap();
    // A segment of one byte takes one second to pass a port, and nothing else takes time.
    let links = LinkModel::uniform(Link { latency: 0.0, overhead: 0.0, per_byte: 1.0 }, 0.0);
    for ranks in 2..=33_usize {
        let doublings = ranks.next_power_of_two().ilog2() as usize;
        for segments in 1..=40 {
            let p = Params::new(ranks).segments(segments).root(ranks / 3);
            let report = simulated(row, &p, links, &Partition::even(segments, segments));
            let rounds = (segments - 1 + doublings) as f64;
            assert_eq!(report.time, rounds, "{segments} segments among {ranks} ranks");
        }
    }
}

/// Costs in which latency, overhead, bandwidth or the reduction dominates.
const LINKS: [(Link, f64); 4] = [
    (Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-10 }, 0.0),
    (Link { latency: 1e-6, overhead: 1e-6, per_byte: 1e-10 }, 0.0),
    (Link { latency: 1e-5, overhead: 2e-6, per_byte: 1e-9 }, 1e-10),
    (Link { latency: 1e-6, overhead: 1e-7, per_byte: 1e-10 }, 3e-10),
];
const WORLDS: [usize; 12] = [2, 3, 4, 5, 6, 7, 8, 13, 16, 33, 64, 100];
const BYTES: [usize; 7] = [0, 4, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Returns the selection and the simulation of a row, or `None` if it is not eligible for the call.
fn forced(row: &Algorithm, question: &CallShape, links: LinkModel) -> Option<(Selection, Report)> {
    let tuning = RingConfig::default().tuning(links);
    let choice = choose(question, Some(row.name), &tuning).ok()?;
    let p = params(question, choice.segments, &tuning);
    let sizes = sizes(question, row, &p);
    Some((choice, simulated(row, &p, links, &sizes)))
}

/// Returns the calls of all worlds and sizes whose predicted and simulated times differ by more
/// than this factor.
fn far(row: &Algorithm, links: LinkModel, factor_max: f64) -> Vec<String> {
    let mut far = Vec::new();
    for ranks in WORLDS {
        for bytes in BYTES {
            let question = CallShape::new(row.collective).ranks(ranks).bytes(bytes);
            let Some((choice, report)) = forced(row, &question, links) else { continue };
            let factor = (choice.time / report.time).max(report.time / choice.time);
            if factor > factor_max {
                let (collective, name, segments) = (row.collective, row.name, choice.segments);
                far.push(format!(
                    "{collective} {name} of {bytes} bytes among {ranks} ranks, {segments} segments: \
                     predicted {:e} s, simulated {:e} s",
                    choice.time, report.time
                ));
            }
        }
    }
    far
}

#[track_caller]
fn assert_none(far: &[String]) {
    assert!(far.is_empty(), "{} calls:\n{}", far.len(), far.join("\n"));
}

/// Returns the factor by which predictions may be off on equal links: 1.2, except for these rows.
fn factor_max(row: &Algorithm) -> f64 {
    match (row.collective, row.name) {
        // The root receives the next segment while it sends one only if the window holds both,
        // which it does not in large groups.
        (Collective::AllReduce, "linear") => 1.8,
        // Several ranks send to the same one first, if the size of the group is not a power of two.
        (Collective::AllReduce | Collective::ReduceScatter | Collective::Barrier, "direct" | "one_shot") => {
            1.55
        }
        // In large groups, rank 0 combines the last contributions long after all have arrived.
        (Collective::ReduceScatter, "linear") => 1.25,
        // Paths of different lengths overlap, so predictions are off for small groups and for some
        // whose size is not a power of two.
        (Collective::AllGather, "bruck") | (Collective::AllToAll, "all_gather") => 1.65,
        (Collective::Exscan, "recursive_doubling") => 1.65,
        (Collective::AllGather | Collective::Scan, "recursive_doubling") => 1.4,
        (Collective::Broadcast, "scatter_all_gather") => 1.4,
        (Collective::Gather | Collective::Scatter, "binomial") => 1.4,
        // If the number of ranks is odd, data arrives while a rank waits for a sum.
        (Collective::AllReduce | Collective::ReduceScatter, "circulant") => 1.35,
        _ => 1.2,
    }
}

#[test]
fn predicted_times_are_near_the_simulated_ones_on_equal_links() {
    let links = LINKS.map(|(link, reduce)| LinkModel::uniform(link, reduce));
    let calls = TABLE.iter().flat_map(|row| links.map(|links| far(row, links, factor_max(row))));
    assert_none(&calls.flatten().collect::<Vec<_>>());
}

#[test]
fn predicted_times_of_hierarchical_rows_are_within_a_factor_of_two_on_unequal_links() {
    let between = Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
    let within = Link { latency: 1e-6, overhead: 3e-7, per_byte: 1e-10 };
    let uniform = LinkModel::uniform(between, 1e-10);
    let of = |ranks_per_host| LinkModel { within, ranks_per_host, ..uniform };
    let links = [2, 4, 8].map(of);
    let rows = TABLE.iter().filter(|row| row.traits.hierarchical);
    let calls = rows.flat_map(|row| links.map(|links| far(row, links, 2.0)));
    assert_none(&calls.flatten().collect::<Vec<_>>());
}
