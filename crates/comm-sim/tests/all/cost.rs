//! Tests of the times of small programs, calculated by hand, and of programs that cannot be
//! simulated.

use comm_core::{Blocks, Link, LinkModel, Partition, Place, Step};
use comm_sim::cost::{Report, SimulationError, SimulationOptions, TimedProgram, simulate, simulate_with};

const OUT: Place = Place::Output;

/// Powers of two, so that all times are exact: a block of 16 bytes occupies a port for 8 s and
/// takes 4 s to reduce.
const LINK: Link = Link { latency: 32.0, overhead: 1.0, per_byte: 0.5 };
const REDUCE: f64 = 0.25;
const BLOCK_BYTES: usize = 16;
const PORT: f64 = 8.0;

fn one(block: usize) -> Blocks {
    Blocks::one(block)
}

fn run(programs: &[Vec<Step>], options: &SimulationOptions) -> Result<Report, SimulationError> {
    let sizes = Partition::even(8 * BLOCK_BYTES, 8);
    let steps = |rank: usize| Box::new(programs[rank].iter().copied()) as _;
    simulate(&TimedProgram { ranks: programs.len(), sizes: &sizes, steps: &steps }, options)
}

fn uniform() -> SimulationOptions {
    SimulationOptions::new(LinkModel::uniform(LINK, REDUCE))
}

#[track_caller]
fn assert_time(programs: &[Vec<Step>], time: f64) {
    assert_eq!(run(programs, &uniform()).map(|report| report.time), Ok(time));
}

#[test]
fn a_message_takes_two_overheads_the_latency_and_its_bytes() {
    let programs = [vec![Step::send(1, OUT, one(0))], vec![Step::recv(0, OUT, one(0))]];
    let report = run(&programs, &uniform()).unwrap();
    assert_eq!(report.time, 1.0 + PORT + 32.0 + 1.0);
    // A send ends when its bytes have left.
    assert_eq!((report.ranks[0].end, report.ranks[1].end), (1.0 + PORT, report.time));
    assert_eq!((report.steps(), report.messages(), report.bytes()), (2, 1, 16));
    assert_eq!((report.messages_max(), report.blocks_max(), report.bytes_max()), (1, 1, 16));
}

#[test]
fn reductions_occupy_the_rank_and_copies_do_not() {
    let programs = [
        vec![Step::send(1, OUT, one(0))],
        vec![
            Step::recv_reduce(0, OUT, OUT, one(0)),
            Step::copy(Place::Scratch { slot: 0 }, OUT, one(0)),
            Step::reduce(OUT, Place::Scratch { slot: 0 }, one(0)),
            Step::finish(OUT, one(0)),
        ],
    ];
    assert_time(&programs, 42.0 + 4.0 + 4.0);
}

#[test]
fn messages_pass_a_port_in_order() {
    let fan_out = [
        vec![Step::send(1, OUT, one(0)), Step::send(2, OUT, one(1))],
        vec![Step::recv(0, OUT, one(0))],
        vec![Step::recv(0, OUT, one(1))],
    ];
    assert_time(&fan_out, 42.0 + PORT);
    let fan_in = [
        vec![Step::recv(1, OUT, one(0)), Step::recv(2, OUT, one(1))],
        vec![Step::send(0, OUT, one(0))],
        vec![Step::send(0, OUT, one(1))],
    ];
    assert_time(&fan_in, 42.0 + PORT);
}

#[test]
fn a_port_takes_messages_in_order_of_arrival() {
    // Rank 1 first receives from rank 2, so its own message comes 42 s later.
    let programs = [
        vec![Step::recv(1, OUT, one(0)), Step::recv(2, OUT, one(1))],
        vec![Step::recv(2, OUT, one(2)), Step::send(0, OUT, one(2)), Step::send(0, OUT, one(0))],
        vec![Step::send(1, OUT, one(2)), Step::send(0, OUT, one(1))],
    ];
    let programs = [
        [vec![Step::recv(1, OUT, one(2))], programs[0].clone()].concat(),
        programs[1].clone(),
        programs[2].clone(),
    ];
    // 42 s for the first message; then two messages of rank 1 in sequence, long after that of rank
    // 2.
    assert_time(&programs, 42.0 + 42.0 + PORT);
}

#[test]
fn short_messages_are_bounded_by_the_overhead() {
    let programs = |from: usize, to: usize| {
        let blocks = |block| Blocks { first: block, count: 0 };
        [
            (0..4).map(|block| Step::send(to, OUT, blocks(block))).collect::<Vec<_>>(),
            (0..4).map(|block| Step::recv(from, OUT, blocks(block))).collect(),
        ]
    };
    assert_time(&programs(0, 1), 4.0 + 32.0 + 1.0);
}

#[test]
fn both_directions_of_an_exchange_overlap_whichever_step_is_first() {
    let send_first = |to: usize| vec![Step::send(to, OUT, one(0)), Step::recv(to, OUT, one(1))];
    let receive_first = |to: usize| vec![Step::recv(to, OUT, one(1)), Step::send(to, OUT, one(0))];
    let swap = |steps: Vec<Step>, rank: usize| {
        let flip = |step: Step| Step { blocks: one(step.blocks.first ^ rank), ..step };
        steps.into_iter().map(flip).collect::<Vec<_>>()
    };
    assert_time(&[send_first(1), swap(send_first(0), 1)], 42.0);
    assert_time(&[receive_first(1), swap(receive_first(0), 1)], 42.0);
    assert_time(&[send_first(1), swap(receive_first(0), 1)], 42.0);
}

#[test]
fn a_step_waits_only_for_steps_that_it_conflicts_with() {
    // The first send forwards the received block; the second does not wait for the receive.
    let programs = [
        vec![Step::recv(1, OUT, one(0)), Step::send(2, OUT, one(0)), Step::send(2, OUT, one(1))],
        vec![Step::send(0, OUT, one(0))],
        vec![Step::recv(0, OUT, one(0)), Step::recv(0, OUT, one(1))],
    ];
    // Both go to the same rank, in order.
    assert_time(&programs, 42.0 + 42.0 + PORT);
    let apart = [
        vec![Step::recv(1, OUT, one(0)), Step::send(1, OUT, one(0)), Step::send(2, OUT, one(1))],
        vec![Step::send(0, OUT, one(0)), Step::recv(0, OUT, one(0))],
        vec![Step::recv(0, OUT, one(1))],
    ];
    let report = run(&apart, &uniform()).unwrap();
    assert_eq!((report.ranks[1].end, report.ranks[2].end), (84.0, 42.0));
}

#[test]
fn a_step_enters_the_window_when_the_steps_before_it_have_ended() {
    let programs = [
        vec![Step::recv(1, OUT, one(0)), Step::finish(OUT, one(1)), Step::send(2, OUT, one(2))],
        vec![Step::send(0, OUT, one(0))],
        vec![Step::recv(0, OUT, one(2))],
    ];
    let time = |window| run(&programs, &uniform().window(window)).unwrap().time;
    assert_eq!((time(3), time(2), time(0)), (42.0, 84.0, 84.0));
}

#[test]
fn ranks_of_one_host_use_the_link_within() {
    let within = Link { latency: 2.0, overhead: 0.0, per_byte: 0.0 };
    let links = LinkModel { within, ranks_per_host: 2, ..LinkModel::uniform(LINK, 0.0) };
    let programs = [
        vec![Step::send(1, OUT, one(0))],
        vec![Step::recv(0, OUT, one(0)), Step::send(2, OUT, one(0))],
        vec![Step::recv(1, OUT, one(0))],
    ];
    let report = run(&programs, &SimulationOptions::new(links)).unwrap();
    assert_eq!((report.ranks[0].end, report.time), (0.0, 2.0 + 42.0));
}

#[test]
fn an_empty_group_and_empty_programs_take_no_time() {
    assert_eq!(run(&[], &uniform()).map(|report| (report.time, report.steps_max())), Ok((0.0, 0)));
    assert_eq!(run(&[vec![], vec![]], &uniform()).map(|report| report.time), Ok(0.0));
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let programs = [
        vec![Step::recv(1, OUT, one(0)), Step::send(1, OUT, one(0))],
        vec![Step::recv(0, OUT, one(0)), Step::send(0, OUT, one(0))],
        vec![],
    ];
    let failure = run(&programs, &uniform()).unwrap_err();
    let SimulationError::Deadlock { ranks: 2, waiting } = &failure else { panic!("{failure}") };
    assert_eq!(waiting.iter().map(|at| at.rank).collect::<Vec<_>>(), [0, 1]);
    assert!(failure.to_string().contains("rank 1 step 0 (receive from 0"), "{failure}");
    let ended = [vec![Step::recv(1, OUT, one(0))], vec![]];
    assert!(matches!(run(&ended, &uniform()), Err(SimulationError::Deadlock { ranks: 1, .. })));
}

#[test]
fn malformed_programs_are_refused() {
    let of = |steps: Vec<Step>| run(&[steps, vec![]], &uniform()).unwrap_err();
    for to in [0, 2] {
        assert!(matches!(of(vec![Step::send(to, OUT, one(0))]), SimulationError::Peer(at) if at.index == 0));
        assert!(matches!(of(vec![Step::recv(to, OUT, one(0))]), SimulationError::Peer(_)));
    }
    let beyond = Blocks { first: 0, count: 1 << 40 };
    assert!(matches!(
        of(vec![Step::finish(OUT, one(0)), Step::finish(OUT, beyond)]),
        SimulationError::Blocks(_)
    ));
    assert_eq!(of(vec![Step::send(1, OUT, one(0))]), SimulationError::Unreceived { from: 0, to: 1 });
    let mismatch = [vec![Step::send(1, OUT, one(0))], vec![Step::recv(0, OUT, one(1))]];
    assert!(
        matches!(run(&mismatch, &uniform()), Err(SimulationError::Mismatch { sent, .. }) if sent == one(0))
    );
    let links = LinkModel { reduce: -1.0, ..LinkModel::uniform(LINK, 0.0) };
    assert_eq!(run(&[], &SimulationOptions::new(links)), Err(SimulationError::Links));
}

#[test]
fn endless_programs_are_stopped_at_the_limit() {
    let sizes = Partition::even(1, 1);
    let endless = |rank: usize| Box::new(std::iter::repeat(Step::send(1 - rank, OUT, one(0)))) as _;
    let program = TimedProgram { ranks: 2, sizes: &sizes, steps: &endless };
    let options = uniform().steps_max(1000);
    assert_eq!(simulate(&program, &options), Err(SimulationError::TooLong { limit: 1000 }));
}

#[test]
fn the_limit_counts_the_steps_of_all_ranks() {
    let exchange = |to: usize| vec![Step::send(to, OUT, one(0)), Step::recv(to, OUT, one(0))];
    let programs = [exchange(1), exchange(0)];
    assert!(run(&programs, &uniform().steps_max(4)).is_ok());
    assert_eq!(run(&programs, &uniform().steps_max(3)), Err(SimulationError::TooLong { limit: 3 }));
}

#[test]
fn long_simulations_report_their_progress() {
    let sizes = Partition::even(1, 1);
    let steps = |_: usize| Box::new(std::iter::repeat_n(Step::finish(OUT, one(0)), 1 << 20)) as _;
    let program = TimedProgram { ranks: 3, sizes: &sizes, steps: &steps };
    let mut progress = Vec::new();
    let report = simulate_with(&program, &uniform(), &mut |steps| progress.push(steps)).unwrap();
    assert_eq!((progress, report.steps()), (vec![1 << 20, 2 << 20, 3 << 20], 3 << 20));
}
