//! Tests of waits.

use std::cell::Cell;

use super::*;

/// Polls while peers may want the processor.
fn poll(waiter: &mut Waiter, now: impl FnOnce() -> Instant) -> Idle {
    waiter.idle(now, || false, || false)
}

/// Polls while all peers run elsewhere.
fn poll_alone(waiter: &mut Waiter, now: impl FnOnce() -> Instant) -> Idle {
    waiter.idle(now, || true, || false)
}

/// Makes the polls that do not read the clock.
fn poll_without_clock(waiter: &mut Waiter) {
    while waiter.polls < POLLS {
        assert_eq!(poll(waiter, || unreachable!()), Idle::Spin);
    }
}

/// Yields for a time.
fn yield_for(waiter: &mut Waiter, now: &Cell<Instant>, time: Duration) {
    let yielding = waiter.begin_yield(|| now.get());
    now.set(now.get() + time);
    waiter.end_yield(yielding, || now.get());
}

fn wait(waiter: &mut Waiter, start: Instant, micros: u64) -> Idle {
    poll_without_clock(waiter);
    poll(waiter, || start);
    let end = start + Duration::from_micros(micros);
    let last = poll(waiter, || end);
    waiter.moved(|| end);
    last
}

#[test]
fn only_a_thread_that_nobody_disturbs_polls_at_once() {
    let yield_max = Duration::from_micros(100);
    assert_eq!(Waiter::new(yield_max).polls(), POLLS_AT_ONCE);
    assert_eq!(contended(yield_max).polls(), 1);
    assert_eq!(Waiter::new(Duration::ZERO).polls(), 1);
}

#[test]
fn a_wait_spins_then_yields_then_sleeps() {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    let start = Instant::now();
    poll_without_clock(&mut waiter);
    assert_eq!(poll(&mut waiter, || start), Idle::Spin);
    assert_eq!(poll(&mut waiter, || start + Duration::from_micros(99)), Idle::Yield);
    assert_eq!(poll(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
}

/// Waits for a time without sleep, and returns the next action. All peers run elsewhere.
fn wait_alone(waiter: &mut Waiter, micros: u64) -> Idle {
    let start = Instant::now();
    for _ in 0..=POLLS {
        assert_eq!(poll_alone(waiter, || start), Idle::Spin);
    }
    poll_alone(waiter, || start + Duration::from_micros(micros))
}

#[test]
fn a_thread_that_disturbs_nobody_yields_for_longer() {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    assert_eq!(wait_alone(&mut waiter, 499), Idle::Yield);
    waiter.reset();
    assert_eq!(wait_alone(&mut waiter, 500), Idle::Sleep);
    let in_background = || {
        run_in_background();
        wait_alone(&mut Waiter::new(Duration::from_micros(100)), 100)
    };
    assert_eq!(std::thread::spawn(in_background).join().unwrap(), Idle::Sleep);
}

#[test]
fn a_thread_whose_processor_ranks_want_sleeps_soon_although_its_peers_run_elsewhere() {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    // A short turn: that of a rank.
    yield_for(&mut waiter, &Cell::new(Instant::now()), Duration::from_micros(50));
    let start = Instant::now();
    for _ in 0..=POLLS {
        assert_eq!(poll_alone(&mut waiter, || start), Idle::Yield);
    }
    assert_eq!(poll_alone(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
}

#[test]
fn a_wait_that_ends_while_the_thread_would_still_be_awake_is_a_short_one() {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    for _ in 0..8 {
        let start = Instant::now();
        assert_eq!(wait_alone(&mut waiter, 450), Idle::Yield);
        waiter.moved(|| start + Duration::from_micros(450));
    }
    for _ in 0..8 {
        let start = Instant::now();
        wait_alone(&mut waiter, 5000);
        waiter.moved(|| start + Duration::from_micros(5000));
    }
    assert_eq!(wait_alone(&mut waiter, 200), Idle::Sleep);
}

/// Waits until it is time to sleep, if a yield takes `call` microseconds, and `between` pass
/// before the next poll. Returns the number of yields.
fn yields(call: u64, between: u64) -> usize {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    let now = Cell::new(Instant::now());
    let pass = |micros| now.set(now.get() + Duration::from_micros(micros));
    poll_without_clock(&mut waiter);
    let mut yields = 0;
    loop {
        match poll(&mut waiter, || now.get()) {
            Idle::Spin => {}
            Idle::Sleep => return yields,
            Idle::Yield => {
                yields += 1;
                yield_for(&mut waiter, &now, Duration::from_micros(call));
            }
        }
        pass(between);
    }
}

#[test]
fn time_in_which_others_ran_is_not_counted() {
    assert!((90..=100).contains(&yields(0, 1)), "{}", yields(0, 1));
    assert!((45..=50).contains(&yields(1, 1)), "{}", yields(1, 1));
    // Other threads run during a long yield, but not during a long poll.
    assert!((30..=35).contains(&yields(250, 1)), "{}", yields(250, 1));
    assert_eq!(yields(3000, 1), 4);
    assert_eq!(yields(0, 50), 1);
}

/// Returns a waiter that found other threads running when it yielded.
fn contended(yield_max: Duration) -> Waiter {
    let mut waiter = Waiter::new(yield_max);
    yield_for(&mut waiter, &Cell::new(Instant::now()), Duration::from_millis(1));
    waiter
}

#[test]
fn on_a_contended_processor_it_yields_before_it_reads_the_clock() {
    let mut waiter = contended(Duration::from_micros(100));
    for _ in 0..POLLS {
        assert_eq!(poll(&mut waiter, || unreachable!()), Idle::Yield);
    }
    let start = Instant::now();
    assert_eq!(poll(&mut waiter, || start), Idle::Yield);
    assert_eq!(waiter.since(), Some(start));
    assert_eq!(poll(&mut waiter, || start + Duration::from_micros(100)), Idle::Sleep);
    waiter.moved(|| start + Duration::from_micros(100));
    assert_eq!(poll(&mut waiter, || unreachable!()), Idle::Yield, "the next wait begins anew");
    assert_eq!(poll(&mut contended(Duration::ZERO), Instant::now), Idle::Sleep);
}

/// Polls every microsecond of this thread, which foreign threads interrupt after every
/// 100 polls, until it would not spin. Returns the number of polls and the last action.
fn spin_beside_foreign_threads(waiter: &mut Waiter, now: &Cell<Instant>) -> (usize, Idle) {
    for polls in 1.. {
        let idle = poll_alone(waiter, || now.get());
        if idle != Idle::Spin {
            return (polls, idle);
        }
        let interruption = if polls % 100 == 0 { Duration::from_micros(100) } else { Duration::ZERO };
        now.set(now.get() + Duration::from_micros(1) + interruption);
    }
    unreachable!()
}

#[test]
fn it_keeps_a_processor_that_only_foreign_threads_want() {
    let mut waiter = contended(Duration::from_micros(100));
    let now = Cell::new(Instant::now());
    let (polls, idle) = spin_beside_foreign_threads(&mut waiter, &now);
    // An interruption counts as a poll of two microseconds.
    assert!((3_900..4_010).contains(&polls), "{polls}");
    assert_eq!(idle, Idle::Yield, "whether they are still there");
    yield_for(&mut waiter, &now, Duration::from_millis(1));
    assert_eq!(poll_alone(&mut waiter, || now.get()), Idle::Sleep);
    waiter.moved(|| now.get());
    let (shorter, _) = spin_beside_foreign_threads(&mut waiter, &now);
    assert!(shorter < polls * 2 / 3, "after a long wait: {shorter}");
    waiter.moved(|| now.get());
    let (longer, _) = spin_beside_foreign_threads(&mut waiter, &now);
    assert!(longer > shorter * 3 / 2, "after a short wait: {longer}");
}

#[test]
fn it_notices_during_long_waits_that_foreign_threads_are_gone() {
    let mut waiter = contended(Duration::from_micros(100));
    let now = Cell::new(Instant::now());
    let (polls, idle) = spin_beside_foreign_threads(&mut waiter, &now);
    assert!(polls > 1000 && idle == Idle::Yield);
    yield_for(&mut waiter, &now, Duration::ZERO);
    waiter.moved(|| now.get());
    let (polls, _) = spin_beside_foreign_threads(&mut waiter, &now);
    assert!(polls < 20, "{polls}");
}

#[test]
fn a_waiter_that_must_not_yield_sleeps_at_once() {
    let mut waiter = Waiter::new(Duration::ZERO);
    poll_without_clock(&mut waiter);
    assert_eq!(poll(&mut waiter, Instant::now), Idle::Sleep);
}

#[test]
fn after_long_waits_it_sleeps_early_and_after_short_ones_it_yields_again() {
    let mut waiter = Waiter::new(Duration::from_micros(100));
    let start = Instant::now();
    for _ in 0..8 {
        wait(&mut waiter, start, 10_000);
    }
    assert_eq!(wait(&mut waiter, start, 50), Idle::Sleep);
    for _ in 0..8 {
        wait(&mut waiter, start, 50);
    }
    assert_eq!(wait(&mut waiter, start, 50), Idle::Yield);
}

#[test]
fn it_polls_before_each_yield_while_all_awaited_peers_run() {
    let mut waiter = contended(Duration::from_micros(100));
    let now = Cell::new(Instant::now());
    let poll_for = |waiter: &mut Waiter, runs| waiter.idle(|| unreachable!(), || false, || runs);
    for _ in 0..2 {
        for _ in 0..POLLS_IN_TURN {
            assert_eq!(poll_for(&mut waiter, true), Idle::Spin);
        }
        assert_eq!(poll_for(&mut waiter, true), Idle::Yield);
        yield_for(&mut waiter, &now, Duration::from_micros(1));
    }
    assert_eq!(poll_for(&mut waiter, true), Idle::Spin);
    waiter.moved(|| now.get());
    assert_eq!(poll_for(&mut waiter, false), Idle::Yield, "another peer, which may wait for this processor");
    let mut without_yields = contended(Duration::ZERO);
    assert_eq!(without_yields.idle(|| now.get(), || false, || true), Idle::Sleep);
}
