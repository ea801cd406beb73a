//! Every row of the table is proven for every small world, every root, and several segmentations.
#![allow(clippy::panic, reason = "helpers of tests")]

use comm_core::Collective;
use comm_ring::schedule::{Algorithm, Chunks, Params, TABLE};
use comm_sim::verify::{Buffers, Program, Spec, Stats, verify};

/// Verifies one row for one world, for every root and both kinds of buffers.
fn prove(row: &Algorithm, ranks: usize, segments: usize, pass: usize) -> Vec<Stats> {
    let params = |spec: &Spec, rank| Params {
        ranks,
        rank,
        root: spec.root,
        segments,
        pass,
        in_place: spec.buffers == Buffers::InPlace,
        ranks_per_host: 1,
    };
    let blocks = {
        let any = Params { ranks, rank: 0, root: 0, segments, pass, in_place: true, ranks_per_host: 1 };
        row.blocks(&any)
    };
    specs(row, ranks, blocks)
        .map(|spec| {
            let steps = |rank| (row.steps)(&params(&spec, rank));
            let slots = (0..ranks).map(|rank| (row.slots)(&params(&spec, rank))).max().unwrap_or(0);
            let program = Program { spec, scratch_slots: slots, steps: &|rank| steps(rank) };
            verify(&program).unwrap_or_else(|fault| {
                panic!("{} {} segments {segments} pass {pass}: {fault}", row.name, program.spec)
            })
        })
        .collect()
}

/// The calls that a row is for: an all-reduce always works in place, as its communicator copies first.
fn specs(row: &Algorithm, ranks: usize, blocks: usize) -> impl Iterator<Item = Spec> {
    let in_place_only = row.collective == Collective::AllReduce;
    Spec::all(row.collective, ranks, blocks)
        .filter(move |spec| !in_place_only || spec.buffers == Buffers::InPlace)
        .map(|spec| Spec { equal: row.traits.equal, ..spec })
}

fn row(collective: Collective, name: &str) -> &'static Algorithm {
    Algorithm::find(collective, name).unwrap_or_else(|| panic!("no row {name} for {collective}"))
}

#[test]
fn every_schedule_is_proven_for_worlds_1_to_33_and_every_root() {
    for row in TABLE {
        for ranks in 1..=33 {
            prove(row, ranks, 1, 1);
            if row.traits.segmented {
                prove(row, ranks, 3, 2);
            }
        }
    }
}

#[test]
fn segments_and_passes_of_any_size_are_proven() {
    for row in TABLE.iter().filter(|row| row.traits.segmented) {
        for ranks in [2, 3, 5, 8] {
            for segments in 1..=7 {
                for pass in 1..=4 {
                    prove(row, ranks, segments, pass);
                }
            }
        }
    }
}

/// Worlds far larger than those that are proven one by one: around powers of two, and some without a pattern.
const LARGE: [usize; 7] = [64, 65, 100, 127, 255, 513, 1024];

#[test]
fn large_worlds_are_proven_too() {
    for row in TABLE {
        for ranks in LARGE.into_iter().filter(|&ranks| ranks <= ranks_max(row)) {
            for root in roots(row.collective, ranks) {
                prove_one_root(row, ranks, root);
            }
        }
    }
}

/// The largest world in which a proof takes about a second.
fn ranks_max(row: &Algorithm) -> usize {
    match row.chunks {
        // A block for every pair of ranks, on every rank.
        Chunks::PerPair => 100,
        // Every chunk goes to every rank.
        Chunks::PerRank if row.name != "flat" && row.name != "binomial" => 513,
        Chunks::PerRank | Chunks::Whole => 1024,
    }
}

fn roots(collective: Collective, ranks: usize) -> Vec<usize> {
    match collective {
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => {
            vec![0, 7, ranks / 2, ranks - 1]
        }
        _ => vec![0],
    }
}

fn prove_one_root(row: &Algorithm, ranks: usize, root: usize) {
    let params = |rank| Params { ranks, rank, root, segments: 1, pass: 1, in_place: true, ranks_per_host: 1 };
    let spec = Spec {
        collective: row.collective,
        ranks,
        blocks: row.blocks(&params(0)),
        root,
        buffers: Buffers::InPlace,
        equal: row.traits.equal,
    };
    let scratch_slots = (0..ranks).map(|rank| (row.slots)(&params(rank))).max().unwrap_or(0);
    let program = Program { spec, scratch_slots, steps: &|rank| (row.steps)(&params(rank)) };
    verify(&program).unwrap_or_else(|fault| panic!("{} at {ranks} from {root}: {fault}", row.name));
}

#[test]
fn closed_forms_count_what_the_steps_do() {
    for row in TABLE {
        for ranks in 1..=33 {
            for segments in if row.traits.segmented { 1..=3 } else { 1..=1 } {
                let params =
                    Params { ranks, rank: 0, root: 0, segments, pass: 8, in_place: true, ranks_per_host: 1 };
                let cost = (row.cost)(&params);
                let context = format!("{} {} of {ranks}, {segments} segments", row.collective, row.name);
                let all = prove(row, ranks, segments, 8);
                let most = |count: fn(&Stats) -> usize| all.iter().map(count).max();
                assert_eq!(Some(cost.messages), most(Stats::messages_max), "{context}: messages");
                assert_eq!(Some(cost.blocks), most(Stats::blocks_max), "{context}: blocks");
                if segments == 1 {
                    assert_eq!(Some(cost.rounds), most(|stats| stats.rounds as usize), "{context}: rounds");
                }
            }
        }
    }
}

#[test]
fn steps_and_bytes_are_those_of_the_papers() {
    for ranks in 1..=33_usize {
        // The depth of the binomial tree: the most bits in a rank's number.
        let depth = (0..ranks).map(usize::count_ones).max();
        for stats in prove(row(Collective::AllReduce, "ring"), ranks, 1, 1) {
            assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == 2 * (ranks - 1)));
            assert_eq!(stats.rounds as usize, 2 * (ranks - 1));
        }
        for name in [Collective::AllGather, Collective::ReduceScatter] {
            for stats in prove(row(name, "ring"), ranks, 1, 1) {
                assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == ranks - 1));
                assert_eq!(stats.rounds as usize, ranks - 1);
            }
        }
        for stats in prove(row(Collective::AllReduce, "recursive_doubling"), ranks, 1, 1) {
            let folded = !ranks.is_power_of_two();
            assert_eq!(stats.rounds as usize, ranks.ilog2() as usize + 2 * usize::from(folded));
        }
        for stats in prove(row(Collective::Broadcast, "binomial"), ranks, 1, 1) {
            assert_eq!(stats.ranks.iter().map(|rank| rank.blocks_received).sum::<usize>(), ranks - 1);
            assert_eq!(Some(stats.rounds), depth);
        }
        for stats in prove(row(Collective::Reduce, "binomial"), ranks, 1, 1) {
            assert_eq!(stats.ranks.iter().map(|rank| rank.blocks_sent).sum::<usize>(), ranks - 1);
            // The root takes in one partial sum after the other.
            assert_eq!(stats.rounds, ranks.next_power_of_two().ilog2());
        }
    }
}
