//! The verifier accepts textbook schedules, and names the fault of broken ones.

use crate::schedules::*;
use comm_core::{Blocks, Collective, Place, Step};
use comm_sim::verify::{Buffers, Fault, Program, Reason, Required, Spec, Stats, Tree, verify, verify_window};

fn check(spec: Spec, slots: usize, schedule: impl Fn(usize, &Spec) -> Vec<Step>) -> Result<Stats, Fault> {
    with_program(spec, slots, schedule, verify)
}

/// Returns the schedule with changed steps of one rank.
fn changed(
    schedule: Schedule,
    victim: usize,
    change: impl Fn(&mut Vec<Step>),
) -> impl Fn(usize, &Spec) -> Vec<Step> {
    move |rank, spec| {
        let mut steps = schedule(rank, spec);
        if rank == victim {
            change(&mut steps);
        }
        steps
    }
}

fn ring(ranks: usize) -> Spec {
    spec(Collective::AllReduce, ranks, ranks)
}

#[test]
fn textbook_schedules_pass_in_every_world_from_every_root() {
    for (name, collective, slots, schedule) in RIGHT {
        for ranks in 1..=17 {
            for segments in [1, 3] {
                for spec in Spec::all(collective, ranks, ranks * segments) {
                    let slots = slots(spec.blocks);
                    check(spec, slots, schedule).unwrap_or_else(|fault| panic!("{name} {spec}: {fault}"));
                }
            }
        }
    }
}

#[test]
fn larger_windows_change_nothing() {
    for (name, collective, slots, schedule) in RIGHT {
        for spec in Spec::all(collective, 5, 10) {
            for window in [3, 8, 100] {
                let stats = with_program(spec, slots(10), schedule, |program| verify_window(program, window));
                let stats = stats.unwrap_or_else(|fault| panic!("{name} {spec}, window {window}: {fault}"));
                assert_eq!(Ok(stats), check(spec, slots(10), schedule));
            }
        }
    }
}

#[test]
fn in_place_recursive_doubling_deadlocks_without_buffering() {
    for window in [2, 64] {
        let fault = with_program(spec(Collective::AllReduce, 4, 1), 0, doubling_in_place, |program| {
            verify_window(program, window).unwrap_err()
        });
        let Fault::Deadlock(blocked) = &fault else { panic!("{fault}") };
        for rank in 0..4 {
            let first = blocked.iter().find(|blocked| blocked.at.rank == rank).unwrap();
            assert_eq!((first.at.index, first.reason), (0, Reason::Peer(rank ^ 1)), "{fault}");
        }
    }
}

#[test]
fn a_cycle_of_receives_is_reported_with_the_rank_that_each_waits_for() {
    let schedule = |rank: usize, spec: &Spec| {
        let (next, prev) = ((rank + 1) % 3, (rank + 2) % 3);
        vec![Step::recv_reduce(prev, OUT, OUT, all(spec)), Step::send(next, OUT, all(spec))]
    };
    let fault = check(spec(Collective::Barrier, 3, 1), 0, schedule).unwrap_err();
    let text = fault.to_string();
    assert!(
        text.contains("rank 0 step 0 (receive and reduce from 2: output block 0) waits for rank 2"),
        "{text}"
    );
    assert!(text.contains("rank 2 step 1 (send to 0: output block 0) waits for its own step 0"), "{text}");
}

#[test]
fn a_message_without_its_other_end_is_found() {
    let ends_early = check(ring(4), 0, changed(ring_all_reduce, 2, |steps| steps.truncate(steps.len() - 1)));
    let Err(Fault::Deadlock(blocked)) = ends_early else { panic!("{ends_early:?}") };
    assert_eq!(blocked.len(), 1);
    assert_eq!((blocked[0].at.rank, blocked[0].reason), (1, Reason::Ended(2)));
}

#[test]
fn a_wrong_block_is_found_even_if_its_contributors_are_right() {
    // Rank 1 swaps the blocks of two messages, which changes no set of contributors.
    let schedule = |rank: usize, _: &Spec| match rank {
        0 => vec![Step::send(1, OUT, Blocks::one(0)), Step::send(1, OUT, Blocks::one(1))],
        _ => vec![Step::recv(0, OUT, Blocks::one(1)), Step::recv(0, OUT, Blocks::one(0))],
    };
    let fault = check(spec(Collective::Broadcast, 2, 2), 0, schedule).unwrap_err();
    assert!(matches!(fault, Fault::Mismatch { .. }), "{fault}");
}

#[test]
fn a_slot_that_holds_another_block_is_found() {
    let schedule = |rank: usize, _: &Spec| match rank {
        0 => vec![
            Step::copy(SLOT, OUT, Blocks::one(0)),
            Step::send(1, SLOT, Blocks::one(1)),
            Step::send(1, OUT, Blocks::one(0)),
        ],
        _ => vec![Step::recv(0, OUT, Blocks::one(1)), Step::recv(0, OUT, Blocks::one(0))],
    };
    let fault = check(spec(Collective::Broadcast, 2, 2), 1, schedule).unwrap_err();
    assert!(matches!(fault, Fault::WrongBlock { block: 1, found: 0, .. }), "{fault}");
}

#[test]
fn a_range_in_scratch_is_read_as_it_was_written() {
    let slot = |slot| Place::Scratch { slot };
    let both = Blocks { first: 0, count: 2 };
    let copied = |copies: Vec<Step>, sent: Step| {
        let schedule = move |rank: usize, _: &Spec| match rank {
            0 => copies.iter().copied().chain([sent]).collect(),
            _ => vec![Step::recv(0, OUT, sent.blocks)],
        };
        check(spec(Collective::Broadcast, 2, 2), 2, schedule).unwrap_err()
    };
    let whole = vec![Step::copy(slot(0), OUT, both)];
    let parts = vec![Step::copy(slot(0), OUT, Blocks::one(0)), Step::copy(slot(1), OUT, Blocks::one(1))];
    let packing = [
        copied(whole.clone(), Step::send(1, slot(1), Blocks::one(1))),
        copied(parts.clone(), Step::send(1, slot(0), both)),
    ];
    assert!(packing.iter().all(|fault| matches!(fault, Fault::Packing { block: 1, .. })), "{packing:?}");
    // Blocks of equal size are stored in their own slots.
    let equal = Spec { equal: true, ..spec(Collective::Broadcast, 2, 2) };
    for (copies, sent) in
        [(&whole, Step::send(1, slot(1), Blocks::one(1))), (&parts, Step::send(1, slot(0), both))]
    {
        let schedule = |rank: usize, _: &Spec| match rank {
            0 => [&copies[..], &[sent, Step::send(1, OUT, Blocks::one(0))]].concat(),
            _ => vec![Step::recv(0, OUT, sent.blocks), Step::recv(0, OUT, Blocks::one(0))],
        };
        check(equal, 2, schedule).unwrap();
    }
    // The first block of a range can be read alone. A range that was partly overwritten is lost.
    let first = copied(whole.clone(), Step::send(1, slot(0), Blocks::one(0)));
    assert!(matches!(first, Fault::Result { rank: 1, block: 1, .. }), "{first}");
    let damaged = [whole, vec![parts[1]]].concat();
    let damaged = copied(damaged, Step::send(1, slot(0), Blocks::one(0)));
    assert!(matches!(damaged, Fault::Uninitialised { block: 0, .. }), "{damaged}");
}

#[test]
fn a_duplicate_contribution_is_found_at_its_step() {
    let schedule = |rank: usize, spec: &Spec| match rank {
        0 => vec![Step::recv_reduce(1, OUT, OUT, all(spec)), Step::recv_reduce(1, OUT, OUT, all(spec))],
        _ => vec![Step::send(0, IN, all(spec)), Step::send(0, IN, all(spec))],
    };
    let fault = check(spec(Collective::Reduce, 2, 1), 0, schedule).unwrap_err();
    assert!(matches!(fault, Fault::CountedTwice { at, .. } if at.index == 1), "{fault}");
}

#[test]
fn the_addend_of_a_receive_must_exist_and_differ_from_the_received_data() {
    let check = |with: Place, buffers: Buffers| {
        let schedule = |rank: usize, spec: &Spec| match rank {
            0 => vec![
                Step::recv_reduce(1, OUT, with, all(spec)),
                Step::recv_reduce(1, OUT, with, all(spec)),
                Step::finish(OUT, all(spec)),
            ],
            _ => vec![Step::send(0, IN, all(spec)), Step::send(0, IN, all(spec))],
        };
        check(Spec { buffers, ..spec(Collective::Reduce, 2, 1) }, 1, schedule)
    };
    // The second receive replaces the result of the first with an equal one.
    assert!(check(IN, Buffers::Separate).is_ok());
    let faults = [(SLOT, Buffers::Separate), (OUT, Buffers::Separate), (OUT, Buffers::InPlace)]
        .map(|(with, buffers)| check(with, buffers).unwrap_err());
    assert!(matches!(faults[0], Fault::Uninitialised { at, block: 0 } if at.index == 0), "{}", faults[0]);
    assert!(matches!(faults[1], Fault::Uninitialised { at, block: 0 } if at.index == 0), "{}", faults[1]);
    assert!(matches!(faults[2], Fault::CountedTwice { at, .. } if at.index == 1), "{}", faults[2]);
}

#[test]
fn an_average_is_divided_exactly_once() {
    let none = check(
        spec(Collective::Reduce, 3, 1),
        0,
        changed(linear_reduce, 0, |steps| steps.truncate(steps.len() - 1)),
    );
    assert!(matches!(none, Err(Fault::Result { required: Required::Reduced, .. })), "{none:?}");
    let twice = changed(linear_reduce, 0, |steps| steps.push(*steps.last().unwrap()));
    let twice = check(spec(Collective::Reduce, 3, 1), 0, twice);
    assert!(matches!(twice, Err(Fault::Finished { .. })), "{twice:?}");
    let early = changed(linear_reduce, 0, |steps| steps.rotate_right(1));
    let early = check(spec(Collective::Reduce, 3, 1), 0, early);
    assert!(matches!(early, Err(Fault::Finished { .. })), "{early:?}");
}

#[test]
fn ranks_that_combine_in_different_orders_are_found() {
    // Every rank sends to every other; each starts with its own contribution.
    let schedule = |rank: usize, spec: &Spec| {
        let mut steps = vec![Step::copy(SLOT, OUT, all(spec))];
        for distance in 1..3 {
            let (to, from) = ((rank + distance) % 3, (rank + 3 - distance) % 3);
            steps.extend([Step::send(to, SLOT, all(spec)), Step::recv_reduce(from, OUT, OUT, all(spec))]);
        }
        steps.push(Step::finish(OUT, all(spec)));
        steps
    };
    let fault = check(spec(Collective::AllReduce, 3, 1), 1, schedule).unwrap_err();
    assert_eq!(fault, Fault::Order { ranks: (0, 1), block: 0 });
}

#[test]
fn a_reduction_in_another_tree_than_the_required_one_is_found() {
    // The contributions are combined one by one, in the order in which the root receives them.
    const CHAIN: Tree<'_> = Tree(&[(0, 1), (0, 2), (0, 3)]);
    const BACKWARDS: Tree<'_> = Tree(&[(0, 3), (0, 2), (0, 1)]);
    const HALVES: Tree<'_> = Tree(&[(0, 1), (2, 3), (0, 2)]);
    let result = |tree: Tree<'static>, victim: usize, change: fn(&mut Vec<Step>)| {
        let spec = spec(Collective::Reduce, 4, 2);
        with_program(spec, 0, changed(linear_reduce, victim, change), |program| {
            let Program { spec, scratch_slots, steps, .. } = *program;
            verify(&Program { spec, scratch_slots, tree: Some(tree), steps }).map(drop)
        })
    };
    assert_eq!(result(CHAIN, 0, |_| ()), Ok(()));
    assert_eq!(result(BACKWARDS, 0, |steps| steps[..3].reverse()), Ok(()));
    for tree in [BACKWARDS, HALVES] {
        assert_eq!(result(tree, 0, |_| ()), Err(Fault::Tree { rank: 0, block: 0 }));
    }
    assert_eq!(result(CHAIN, 0, |steps| steps.swap(0, 1)), Err(Fault::Tree { rank: 0, block: 0 }));
}

#[test]
fn steps_on_memory_that_is_not_theirs_are_found() {
    let one =
        |rank: usize, step: Step| move |at: usize, _: &Spec| if at == rank { vec![step] } else { vec![] };
    let reduce = Spec { buffers: Buffers::Separate, ..spec(Collective::Reduce, 2, 2) };
    let both = Blocks { first: 0, count: 2 };
    let faults = [
        check(reduce, 1, one(1, Step::copy(IN, SLOT, Blocks::one(0)))),
        check(reduce, 1, one(1, Step::copy(OUT, IN, Blocks::one(0)))),
        check(reduce, 1, one(0, Step::finish(OUT, Blocks::one(0)))),
        check(reduce, 1, one(0, Step::send(0, IN, Blocks::one(0)))),
        check(reduce, 1, one(0, Step::send(2, IN, Blocks::one(0)))),
        check(reduce, 1, one(0, Step::copy(OUT, IN, Blocks { first: 1, count: 2 }))),
        check(reduce, 1, one(0, Step::copy(SLOT, IN, both))),
        check(reduce, 1, one(0, Step::copy(OUT, OUT, both))),
        check(reduce, 3, one(0, Step::copy(SLOT, Place::Scratch { slot: 1 }, both))),
        check(reduce, 1, one(0, Step::finish(OUT, Blocks { first: usize::MAX, count: 2 }))),
        check(reduce, 1, one(0, Step::recv_reduce(1, IN, IN, both))),
        check(reduce, 1, one(0, Step::recv_reduce(2, OUT, IN, both))),
        check(reduce, 2, one(0, Step::recv_reduce(1, OUT, Place::Scratch { slot: 1 }, both))),
        check(reduce, 3, one(0, Step::recv_reduce(1, SLOT, Place::Scratch { slot: 1 }, both))),
    ];
    let name = |fault: &Result<Stats, Fault>| match fault {
        Err(Fault::WritesInput(_)) => 'w',
        Err(Fault::Absent { .. }) => 'a',
        Err(Fault::Uninitialised { .. }) => 'u',
        Err(Fault::Peer(_)) => 'p',
        Err(Fault::Range(_)) => 'r',
        Err(Fault::Overlap(_)) => 'o',
        _ => '?',
    };
    assert_eq!(faults.iter().map(name).collect::<String>(), "waupprroorwpro", "{faults:?}");
}

#[test]
fn no_rank_leaves_a_barrier_without_messages_of_all_others() {
    // One round of a dissemination barrier is too few for three ranks. Two are enough, although
    // some contributions arrive twice.
    let rounds = |rounds: u32| {
        move |rank: usize, spec: &Spec| {
            let mut steps = vec![];
            for distance in (0..rounds).map(|round| 1 << round) {
                let (to, from) = ((rank + distance) % 3, (rank + 3 - distance) % 3);
                steps.extend([
                    Step::send(to, OUT, all(spec)),
                    Step::recv(from, SLOT, all(spec)),
                    Step::reduce(OUT, SLOT, all(spec)),
                ]);
            }
            steps
        }
    };
    let fault = check(spec(Collective::Barrier, 3, 1), 1, rounds(1)).unwrap_err();
    assert!(matches!(fault, Fault::Barrier { rank: 0, .. }), "{fault}");
    check(spec(Collective::Barrier, 3, 1), 1, rounds(2)).unwrap();
}

#[test]
fn a_prefix_contains_exactly_its_ranks() {
    // Rank 1 forwards its contribution before it adds the received prefix.
    let skipping = changed(chain_scan, 1, |steps| steps.reverse());
    let fault = check(spec(Collective::Scan, 3, 1), 0, skipping).unwrap_err();
    assert!(matches!(fault, Fault::Result { rank: 2, required: Required::First(3), .. }), "{fault}");
    let exscan = Spec { buffers: Buffers::Separate, ..spec(Collective::Exscan, 3, 1) };
    let inclusive = changed(chain_exscan, 2, |steps| steps.push(Step::reduce(OUT, IN, Blocks::one(0))));
    let fault = check(exscan, 1, inclusive).unwrap_err();
    assert!(matches!(fault, Fault::Result { rank: 2, required: Required::First(2), .. }), "{fault}");
    // The output of rank 0 must stay unchanged.
    let written = changed(chain_exscan, 0, |steps| steps.push(Step::copy(OUT, IN, Blocks::one(0))));
    let fault = check(exscan, 1, written).unwrap_err();
    assert!(matches!(fault, Fault::Absent { at, .. } if at.rank == 0), "{fault}");
}

#[test]
fn statistics_match_the_textbook() {
    let stats = check(spec(Collective::AllReduce, 8, 16), 0, ring_all_reduce).unwrap();
    assert_eq!((stats.rounds, stats.blocks_max(), stats.messages_max()), (14, 2 * 7 * 2, 14));
    assert_eq!(stats.ranks[3].steps, 2 * 14 + 1);
    let stats = check(spec(Collective::AllReduce, 8, 16), 16, doubling_all_reduce).unwrap();
    assert_eq!((stats.rounds, stats.blocks_max()), (3, 3 * 16));
    let stats = check(spec(Collective::Broadcast, 8, 1), 0, binomial_broadcast).unwrap();
    assert_eq!((stats.rounds, stats.ranks[0].messages_sent, stats.ranks[7].messages_sent), (3, 3, 0));
}

#[test]
fn large_worlds_are_feasible() {
    check(ring(256), 0, ring_all_reduce).unwrap();
    check(spec(Collective::AllReduce, 1000, 1), 1, doubling_all_reduce).unwrap();
}
