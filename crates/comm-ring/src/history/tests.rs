//! Tests of the history.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;
use comm_core::{CallState, Collective, GroupId, Membership, Observe};

fn empty() -> History {
    let group = Group::new(GroupId::WORLD, Membership { rank: 0, size: 2 }).unwrap();
    let config = RingConfig { recorded_calls: 0, ..RingConfig::default() };
    History::new(group, Some(&[4, 7]), Instant::now(), &config)
}

fn call(count: u64) -> Signature {
    let mut call = Signature::new(GroupId::WORLD, Collective::Barrier, "a");
    call.count = count;
    call
}

fn push(history: &mut History, count: u64) -> u64 {
    let call = call(count);
    history.push(&call, call.fingerprint(), Instant::now(), false)
}

#[test]
fn the_last_calls_are_found_by_number() {
    let mut history = empty();
    assert_eq!(history.get(0), None);
    for count in 0..=200 {
        assert_eq!(push(&mut history, count), count);
    }
    assert_eq!(history.get(200), Some(call(200)));
    assert_eq!(history.get(137), Some(call(137)));
    assert_eq!(history.get(136), None);
    assert_eq!(history.get(201), None);
    assert_eq!(history.get(0), None);
}

fn history(counts: &[u64]) -> History {
    let mut history = empty();
    for &count in counts {
        push(&mut history, count);
    }
    history
}

#[test]
fn the_first_difference_of_two_histories_is_found_from_both_sides() {
    let (ours, theirs) = ([9, 1, 1, 2, 3, 3, 4], [9, 1, 1, 2, 5, 3]);
    let ((ours, end), (theirs, other_end)) = ((history(&ours), 7), (history(&theirs), 6));
    assert_eq!(theirs.difference(&ours.before(end), end), Some((4, call(5), call(3))));
    assert_eq!(ours.difference(&theirs.before(other_end), other_end), Some((4, call(3), call(5))));
    assert_eq!(ours.difference(&theirs.before(4), 4), None);
    assert_eq!(ours.difference(&ours.before(end), end), None);
    assert_eq!(
        ours.difference(&ours.before(3), u64::MAX),
        Some((3, call(2), call(1))),
        "a run that continued"
    );
    assert_eq!(empty().difference(&ours.before(end), end), None);
}

#[test]
fn histories_are_compared_as_far_as_both_reach() {
    let mut counts: Vec<u64> = (0..100).collect();
    let long = history(&counts);
    assert_eq!(long.before(100).len(), PastCall::MAX);
    assert_eq!(long.before(100).last(), Some(&PastCall { first: 99, call: call(99) }));
    counts[95] = 0;
    assert_eq!(history(&counts).difference(&long.before(100), 100), Some((95, call(0), call(95))));
    counts[91] = 0;
    let other = history(&counts).difference(&long.before(100), 100);
    assert_eq!(other, Some((95, call(0), call(95))), "calls that are not listed are not compared");
    assert_eq!(history(&[7; 500]).difference(&history(&[7; 90]).before(90), 90), None, "too old");
}

#[test]
fn repeated_calls_are_found_by_number() {
    let (mut history, mut made) = (empty(), Vec::new());
    for (run, repetitions) in [1, 2, 70, 1, 1, 63, 64, 65, 3, 200, 1].into_iter().enumerate() {
        for _ in 0..repetitions {
            let count = run as u64 % 3;
            made.push(count);
            let last = push(&mut history, count);
            for (number, &count) in made.iter().enumerate() {
                let known = number + 64 >= made.len();
                assert_eq!(history.get(number as u64), known.then(|| call(count)));
            }
            assert_eq!((last, history.last()), (made.len() as u64 - 1, last));
            assert_eq!(history.get(last + 1), None);
            assert!(history.log.runs().len() <= 64);
        }
    }
}

#[test]
fn a_record_has_the_last_calls_with_their_states_and_times() {
    let mut history = empty();
    let origin = history.log().flight_record().group;
    assert_eq!(origin.size(), 2);
    let begin = Instant::now();
    let at = |millis| begin + Duration::from_millis(millis);
    for count in 0..100 {
        let call = call(count / 7);
        history.push(&call, call.fingerprint(), at(2 * count), false);
        if count < 99 {
            history.complete(at(2 * count + 1));
        }
    }
    history.block(&[1]);
    let record = history.log().flight_record();
    assert_eq!((record.members, record.failure.is_none()), (vec![4, 7], true));
    assert_eq!(record.calls.len(), 64);
    for (recorded, number) in record.calls.iter().zip(36_u64..) {
        assert_eq!((recorded.sequence, &recorded.signature), (number, &call(number / 7)));
        assert_eq!(recorded.started, at(2 * number));
        let is_last = number == 99;
        assert_eq!(recorded.state, if is_last { CallState::Started } else { CallState::Completed });
        assert_eq!(recorded.ended, (!is_last).then(|| at(2 * number + 1)));
        assert_eq!(recorded.waiting_for, if is_last { vec![1] } else { vec![] });
    }
    history.fail(99, &Error::Cancelled, at(300));
    let failed = history.log().flight_record();
    assert_eq!(failed.failure.map(|failure| failure.sequence), Some(99));
    let last = failed.calls.last().unwrap();
    assert_eq!((last.state, last.ended, &last.waiting_for[..]), (CallState::Failed, Some(at(300)), &[1][..]));
}

#[test]
fn a_failure_between_two_calls_belongs_to_neither() {
    let mut history = empty();
    push(&mut history, 1);
    history.complete(Instant::now());
    history.fail(1, &Error::Cancelled, Instant::now());
    let record = history.log().flight_record();
    assert_eq!(record.failure.map(|failure| failure.sequence), Some(1));
    assert_eq!(record.calls.last().map(|call| call.state), Some(CallState::Completed));
}

#[test]
fn threads_read_whole_calls_while_calls_are_made() {
    let mut history = empty();
    let (log, begin) = (Arc::clone(history.log()), Instant::now());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for recorded in log.flight_record().calls {
                    assert_eq!(recorded.signature, call(recorded.sequence / 3));
                    assert_eq!(recorded.started, begin + Duration::from_nanos(recorded.sequence));
                    assert!(recorded.ended.is_none_or(|ended| ended == recorded.started));
                }
            }
        });
        for number in 0..200_000 {
            let call = call(number / 3);
            let now = begin + Duration::from_nanos(number);
            history.push(&call, call.fingerprint(), now, false);
            history.complete(now);
        }
        done.store(true, Ordering::Relaxed);
    });
}
