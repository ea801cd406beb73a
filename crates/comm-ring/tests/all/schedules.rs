//! Every row of the table is proven for every small world, every root, and several segmentations.
#![allow(clippy::panic, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use comm_core::{Action, Blocks, Collective, Link, LinkModel, Place, Step};
use comm_ring::schedule::{Algorithm, Chunks, Params, TABLE, combinations};
use comm_sim::verify::{Buffers, Fault, Program, Spec, Stats, Tree, verify};

/// A group of this size, each chunk in one segment, on one host per rank.
fn world(ranks: usize) -> Params {
    Params::new(ranks)
}

fn in_segments(ranks: usize, segments: usize, pass: usize) -> Params {
    world(ranks).segments(segments).pass(pass)
}

/// The same group spread over hosts in every way, or in many ways if it is large, for hierarchical
/// rows.
fn on_hosts(row: &Algorithm, world: Params) -> Vec<Params> {
    let n = world.ranks;
    let sizes: Vec<usize> = match n {
        _ if !row.traits.hierarchical => vec![1],
        1..=16 => (1..=n).collect(),
        _ => [1, 2, 3, 4, 7, 8, 16, n / 2, n - 1, n, n + 3].into(),
    };
    sizes.into_iter().map(|ranks_per_host| world.ranks_per_host(ranks_per_host)).collect()
}

/// Verifies one row for one call.
fn check(row: &Algorithm, world: &Params, spec: Spec) -> Result<Stats, Fault> {
    check_exposed(row, world, spec, &|_| false)
}

/// Verifies one row for one call in which some ranks read the memory of others in place.
fn check_exposed(
    row: &Algorithm,
    world: &Params,
    spec: Spec,
    exposed: &dyn Fn(usize) -> bool,
) -> Result<Stats, Fault> {
    let in_place = spec.buffers == Buffers::InPlace;
    let params = |rank| world.rank(rank).root(spec.root).in_place(in_place).exposed(exposed(rank));
    let scratch_slots = (0..world.ranks).map(|rank| (row.slots)(&params(rank))).max().unwrap_or(0);
    let tree: Vec<(usize, usize)> = combinations(world.ranks).collect();
    let tree = row.traits.keeps_order.then_some(Tree(&tree));
    verify(&Program { spec, scratch_slots, tree, steps: &|rank| (row.steps)(&params(rank)) })
}

/// Verifies one row for one world, for every root and both kinds of buffers.
fn prove(row: &Algorithm, world: &Params) -> Vec<Stats> {
    let proven = specs(row, world.ranks, row.blocks(world)).map(|spec| {
        check(row, world, spec).unwrap_or_else(|fault| panic!("{} {spec} {world:?}: {fault}", row.name))
    });
    proven.collect()
}

/// The calls that a row serves. An all-reduce that does not read the input works in place, as its
/// communicator copies first.
fn specs(row: &Algorithm, ranks: usize, blocks: usize) -> impl Iterator<Item = Spec> {
    let in_place_only = row.collective == Collective::AllReduce && !row.traits.reads_input;
    let equal = row.traits.equal;
    Spec::all(row.collective, ranks, blocks)
        .map(move |spec| Spec { equal, ..spec })
        .filter(move |spec| !in_place_only || spec.buffers == Buffers::InPlace)
}

fn row(collective: Collective, name: &str) -> &'static Algorithm {
    Algorithm::find(collective, name).unwrap_or_else(|| panic!("no row {name} for {collective}"))
}

/// Every root, too. A program in one segment is the same for every length of a pass.
#[test]
fn schedules_are_proven_for_worlds_1_to_33_and_have_the_counts_of_the_closed_forms() {
    for row in TABLE {
        for ranks in 1..=33 {
            for segments in if row.traits.segmented { 1..=3 } else { 1..=1 } {
                for world in on_hosts(row, in_segments(ranks, segments, 8)) {
                    let cost = (row.cost)(&world);
                    let context = format!("{} {} {world:?}", row.collective, row.name);
                    let all = prove(row, &world);
                    let most = |count: fn(&Stats) -> usize| all.iter().map(count).max();
                    assert_eq!(Some(cost.messages), most(Stats::messages_max), "{context}: messages");
                    assert_eq!(Some(cost.blocks), most(Stats::blocks_max), "{context}: blocks");
                    if segments == 1 {
                        assert_eq!(
                            Some(cost.rounds),
                            most(|stats| stats.rounds as usize),
                            "{context}: rounds"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn segments_in_two_passes_are_proven_for_worlds_1_to_33() {
    for row in TABLE.iter().filter(|row| row.traits.segmented) {
        for ranks in 1..=33 {
            prove(row, &in_segments(ranks, 3, 2));
        }
    }
}

#[test]
fn staged_rows_are_proven_whichever_ranks_have_nothing_to_stage() {
    for row in TABLE.iter().filter(|row| row.traits.staged) {
        for ranks in 1..=9 {
            for (segments, pass) in [(1, 1), (3, 2), (5, 8)] {
                let world = in_segments(ranks, segments, pass);
                for spec in specs(row, ranks, row.blocks(&world)) {
                    for exposed in 0..(1 << ranks.min(6)) {
                        let is_exposed = |rank: usize| exposed >> (rank % 6) & 1 == 1;
                        check_exposed(row, &world, spec, &is_exposed).unwrap_or_else(|fault| {
                            panic!("{} {spec} {world:?}, exposed {exposed:b}: {fault}", row.name)
                        });
                    }
                }
            }
        }
        let all = Params::new(5).segments(2).exposed(true);
        assert!((0..5).all(|rank| (row.slots)(&all.rank(rank)) == 0), "{} {}", row.collective, row.name);
    }
}

#[test]
fn segments_and_passes_of_any_size_are_proven() {
    for row in TABLE.iter().filter(|row| row.traits.segmented) {
        for ranks in [2, 3, 5, 8] {
            for segments in 1..=7 {
                for pass in 1..=4 {
                    prove(row, &in_segments(ranks, segments, pass));
                }
            }
        }
    }
}

/// Returns a step that uses data which an earlier one received or copied into the output.
fn reader_of_result(steps: &[Step]) -> Option<(Step, Step)> {
    let arrives = |step: &Step| {
        matches!(step.action, Action::Recv { .. } | Action::Copy { .. }) && step.place == Place::Output
    };
    steps.iter().enumerate().filter(|(_, step)| arrives(step)).find_map(|(at, step)| {
        let write = Step::recv(0, Place::Output, step.blocks);
        steps[at + 1..].iter().find(|later| later.conflicts(&write)).map(|later| (*step, *later))
    })
}

#[test]
fn final_receives_are_not_used_again() {
    for row in TABLE {
        for ranks in 1..=row.traits.final_ranks_max.min(17) {
            let world = in_segments(ranks, if row.traits.segmented { 3 } else { 1 }, 2);
            for spec in specs(row, ranks, row.blocks(&world)) {
                for rank in 0..ranks {
                    let in_place = spec.buffers == Buffers::InPlace;
                    let params = world.rank(rank).root(spec.root).in_place(in_place);
                    let steps: Vec<Step> = (row.steps)(&params).collect();
                    assert_eq!(reader_of_result(&steps), None, "{} {spec} {params:?}", row.name);
                }
            }
        }
    }
    let forwards = row(Collective::AllGather, "ring");
    let steps: Vec<Step> = (forwards.steps)(&world(3)).collect();
    assert!(reader_of_result(&steps).is_some());
}

/// Returns whether every rank may write the blocks of its chunk into the output of the others: it
/// has received what they have there before it sends the blocks, and they use the place only to
/// send that, and then to receive.
fn may_put_results(row: &Algorithm, world: &Params) -> bool {
    let steps: Vec<Vec<Step>> =
        (0..world.ranks).map(|rank| (row.steps)(&world.rank(rank).exposed(true)).collect()).collect();
    let uses = |rank: usize, block| {
        let write = Step::recv(0, Place::Output, block);
        steps[rank].iter().filter(move |step| step.conflicts(&write)).map(|step| step.action)
    };
    let may_put = |owner: usize, other: usize, block| {
        let at = |action| uses(owner, block).position(|used| used == action);
        let received = at(Action::RecvReduce { from: other, with: Place::Output });
        let expected = [Action::Send { to: owner }, Action::Recv { from: owner }];
        received.is_some() && received < at(Action::Send { to: other }) && uses(other, block).eq(expected)
    };
    (0..world.ranks).all(|owner| {
        let blocks = (0..world.segments).map(|segment| Blocks::one(owner * world.segments + segment));
        let others = || (0..world.ranks).filter(|other| *other != owner);
        blocks.into_iter().all(|block| others().all(|other| may_put(owner, other, block)))
    })
}

#[test]
fn results_may_be_put_before_they_are_received() {
    let putting = || TABLE.iter().filter(|row| row.traits.puts_results);
    assert!(putting().count() > 0);
    for row in putting() {
        for ranks in 1..=17 {
            for (segments, pass) in [(1, 1), (3, 2), (5, 8)] {
                assert!(may_put_results(row, &in_segments(ranks, segments, pass)), "{} of {ranks}", row.name);
            }
        }
    }
    assert!(!may_put_results(row(Collective::AllReduce, "ring"), &world(3)));
}

#[test]
fn a_row_that_combines_in_another_order_than_it_claims_is_refused() {
    for name in ["ring", "two_level"] {
        let row = row(Collective::AllReduce, name);
        let mut liar = *row;
        liar.traits.keeps_order = true;
        let world = world(6).ranks_per_host(3);
        let spec = specs(row, 6, row.blocks(&world)).next().unwrap();
        assert!(check(row, &world, spec).is_ok());
        let fault = check(&liar, &world, spec).unwrap_err();
        assert!(matches!(fault, Fault::Tree { .. }), "{name}: {fault}");
    }
}

#[test]
fn hosts_that_are_powers_of_two_leave_the_order_of_the_tree() {
    let row = row(Collective::AllReduce, "two_level");
    let mut keeper = *row;
    keeper.traits.keeps_order = true;
    prove(&keeper, &world(4).ranks_per_host(2));
}

/// Powers of two and their neighbours, primes, and a few arbitrary numbers.
const LARGE: [usize; 16] = [63, 64, 65, 97, 127, 128, 129, 190, 255, 257, 421, 512, 619, 998, 1023, 1024];
/// The limit on blocks that all ranks of a world move together, so that the test takes seconds. It
/// does not hold for the largest world.
const MOVES_MAX: usize = 400_000;

/// The number of threads that prove large worlds. Each needs the memory of one.
const THREADS: usize = 2;

#[test]
fn large_worlds_are_proven_too() {
    let mut worlds = Vec::new();
    for row in TABLE {
        let hosts = if row.traits.hierarchical { &[7, 8][..] } else { &[1] };
        for ranks in LARGE.into_iter().filter(|&ranks| ranks <= ranks_max(row)) {
            worlds.extend(
                hosts.iter().map(|&ranks_per_host| (row, world(ranks).ranks_per_host(ranks_per_host))),
            );
        }
    }
    worlds.retain(|(row, world)| world.ranks == 1024 || (row.cost)(world).blocks * world.ranks <= MOVES_MAX);
    let next = AtomicUsize::new(0);
    let prove = || {
        while let Some((row, world)) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            for root in roots(row.collective, world.ranks) {
                prove_one_root(row, world, root);
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(prove))));
}

/// The largest world whose proof fits into the memory and the time of a test.
fn ranks_max(row: &Algorithm) -> usize {
    // A block for every pair of ranks on every rank, or a slot for every pair on one.
    let pairs = row.chunks == Chunks::PerPair || (row.slots)(&world(1024)) >= 1024 * 1024;
    if pairs { 100 } else { 1024 }
}

fn roots(collective: Collective, ranks: usize) -> Vec<usize> {
    match collective {
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter => {
            vec![0, ranks / 2, ranks - 1]
        }
        _ => vec![0],
    }
}

fn prove_one_root(row: &Algorithm, world: &Params, root: usize) {
    let (collective, ranks, blocks) = (row.collective, world.ranks, row.blocks(world));
    let equal = row.traits.equal;
    let spec = Spec { collective, ranks, blocks, root, buffers: Buffers::InPlace, equal };
    check(row, world, spec).unwrap_or_else(|fault| panic!("{} {world:?} from {root}: {fault}", row.name));
}

#[test]
fn no_prediction_is_below_what_the_busiest_rank_needs() {
    let nothing = Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 };
    let bytes = LinkModel::uniform(Link { per_byte: 1.0, ..nothing }, 0.0);
    let messages = LinkModel::uniform(Link { overhead: 1.0, ..nothing }, 0.0);
    for row in TABLE {
        for ranks in 1..=33 {
            for segments in if row.traits.segmented { 1..=3 } else { 1..=1 } {
                for world in on_hosts(row, in_segments(ranks, segments, 8)) {
                    let cost = (row.cost)(&world);
                    let context = format!("{} {} {world:?}", row.collective, row.name);
                    // Its port transfers one block at a time, and the rank itself handles one
                    // message at a time.
                    let taken = [row.predict(&world, &bytes, 1.0), row.predict(&world, &messages, 1.0)];
                    assert!(taken[0] >= cost.blocks as f64, "{context}: {taken:?} {cost:?}");
                    assert!(taken[1] >= cost.messages as f64, "{context}: {taken:?} {cost:?}");
                }
            }
        }
    }
}

#[test]
fn two_levels_send_only_a_share_of_the_data_to_other_hosts() {
    let row = row(Collective::AllReduce, "two_level");
    for (hosts, ranks_per_host) in [(1, 5), (2, 4), (3, 4), (5, 2), (4, 8)] {
        let world = world(hosts * ranks_per_host).ranks_per_host(ranks_per_host);
        for rank in 0..world.ranks {
            let leaves = |to: usize| to / ranks_per_host != rank / ranks_per_host;
            let steps = (row.steps)(&world.rank(rank));
            let sent = steps.filter(|step| matches!(step.action, Action::Send { to } if leaves(to)));
            // Out of hosts * ranks_per_host blocks.
            assert_eq!(sent.map(|step| step.blocks.count).sum::<usize>(), 2 * (hosts - 1));
        }
    }
}

#[test]
fn steps_and_bytes_match_the_papers() {
    for ranks in 1..=33_usize {
        // The depth of the binomial tree is the largest number of set bits in a rank's number.
        let depth = (0..ranks).map(usize::count_ones).max();
        for stats in prove(row(Collective::AllReduce, "ring"), &world(ranks)) {
            assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == 2 * (ranks - 1)));
            assert_eq!(stats.rounds as usize, 2 * (ranks - 1));
        }
        if ranks.is_power_of_two() {
            for stats in prove(row(Collective::AllReduce, "halving_doubling"), &world(ranks)) {
                assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == 2 * (ranks - 1)));
                assert_eq!(stats.rounds, 2 * ranks.ilog2());
            }
        }
        for (collective, passes) in [(Collective::AllReduce, 2), (Collective::ReduceScatter, 1)] {
            for stats in prove(row(collective, "direct"), &world(ranks)) {
                assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == passes * (ranks - 1)));
            }
        }
        let logarithm = ranks.next_power_of_two().ilog2();
        for stats in prove(row(Collective::ReduceScatter, "circulant"), &world(ranks)) {
            assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == ranks - 1));
            assert_eq!(stats.rounds, logarithm);
        }
        for stats in prove(row(Collective::AllReduce, "circulant"), &world(ranks)) {
            assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == 2 * (ranks - 1)));
            assert!(stats.rounds <= 2 * logarithm);
        }
        for name in [Collective::AllGather, Collective::ReduceScatter] {
            for stats in prove(row(name, "ring"), &world(ranks)) {
                assert!(stats.ranks.iter().all(|rank| rank.blocks_sent == ranks - 1));
                assert_eq!(stats.rounds as usize, ranks - 1);
            }
        }
        for stats in prove(row(Collective::AllReduce, "recursive_doubling"), &world(ranks)) {
            let folded = !ranks.is_power_of_two();
            assert_eq!(stats.rounds as usize, ranks.ilog2() as usize + 2 * usize::from(folded));
        }
        for stats in prove(row(Collective::Broadcast, "binomial"), &world(ranks)) {
            assert_eq!(stats.ranks.iter().map(|rank| rank.blocks_received).sum::<usize>(), ranks - 1);
            assert_eq!(Some(stats.rounds), depth);
        }
        for stats in prove(row(Collective::Reduce, "binomial"), &world(ranks)) {
            assert_eq!(stats.ranks.iter().map(|rank| rank.blocks_sent).sum::<usize>(), ranks - 1);
            // The root receives one partial sum after the other.
            assert_eq!(stats.rounds, ranks.next_power_of_two().ilog2());
        }
    }
}
