//! Inner steps run while a fragment is sent, and each fragment has its turn.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use comm_ddp::{Error, LocalOptions};

use crate::{Replica, on_ranks, slices};

#[test]
fn fragments_are_launched_and_applied_in_turn() {
    let options = LocalOptions::new(6).fragments(3).delay(1).alpha(0.5);
    let events = on_ranks(2, |comm| {
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        (1..=12)
            .map(|_| {
                let is_due = replica.training.is_due();
                let step = replica.step().unwrap();
                assert_eq!(is_due, step.launched.is_some() || step.applied.is_some());
                assert_eq!(step.launched.is_some(), step.bytes_sent > 0);
                (step.launched, step.applied)
            })
            .collect::<Vec<_>>()
    });
    let round =
        [(None, None), (Some(0), None), (None, Some(0)), (Some(1), None), (None, Some(1)), (Some(2), None)];
    for events in events {
        assert_eq!(events[..6], round);
        assert_eq!(events[6], (None, Some(2)));
        assert_eq!(events[7..], round[1..]);
    }
}

/// Rank 1 launches only after rank 0 has made two more inner steps. If launching waited for the
/// other rank, the test would hang.
#[test]
fn inner_steps_continue_between_launch_and_application() {
    let (moved, has_moved) = channel();
    let (moved, has_moved) = (Mutex::new(moved), Mutex::new(has_moved));
    let options = LocalOptions::new(4).delay(3).alpha(0.5);
    let globals = on_ranks(2, |comm| {
        let mut replica = Replica::<f32>::new(&comm, options).unwrap();
        let before = replica.global();
        for _ in 0..3 {
            replica.step().unwrap();
        }
        if comm.rank() == 1 {
            has_moved.lock().unwrap().recv().unwrap();
        }
        assert_eq!(replica.step().unwrap().launched, Some(0));
        for _ in 0..2 {
            let at_launch = replica.values.clone();
            replica.step().unwrap();
            assert!(replica.values != at_launch && replica.global() == before);
        }
        if comm.rank() == 0 {
            moved.lock().unwrap().send(()).unwrap();
        }
        assert_eq!(replica.step().unwrap().applied, Some(0));
        assert!(replica.global() != before);
        replica.global()
    });
    assert_eq!(globals[0], globals[1]);
}

#[test]
fn steps_without_communication_can_be_skipped() {
    let options = LocalOptions::new(5).fragments(2).delay(1).alpha(0.25);
    let run = |skips: bool| {
        on_ranks(3, |comm| {
            let mut replica = Replica::<f64>::new(&comm, options).unwrap();
            let mut skipped = 0;
            for _ in 0..20 {
                if skips && !replica.training.is_due() {
                    replica.move_on();
                    replica.training.skip().unwrap();
                    skipped += 1;
                } else {
                    if skips {
                        assert!(matches!(replica.training.skip(), Err(Error::SyncDue)));
                    }
                    replica.step().unwrap();
                }
            }
            assert_eq!(skipped > 0, skips);
            replica.training.synchronize(slices(&mut replica.values)).unwrap();
            replica.values
        })
    };
    assert_eq!(run(true), run(false));
}
