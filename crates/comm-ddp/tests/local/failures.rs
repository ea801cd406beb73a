//! A rank that is lost in an outer step is named on every rank, whose parameters stay valid.

use std::time::Duration;

use comm_core::Comm;
use comm_ddp::{BlockCodec, Error, LocalOptions};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric, VirtualClock};

use crate::{LEN, PARAMETERS, Replica, on_ranks, slices};

const TIMEOUT: Duration = Duration::from_secs(2);
const RANKS: usize = 3;
const STEPS: usize = 6;

/// Returns whether an error names a rank as lost.
fn names(error: &Error, rank: usize) -> bool {
    let Error::Comm(error) = error.root_cause() else { return false };
    match error.root_cause() {
        comm_core::Error::PeerLost { peer, .. } => *peer == rank,
        comm_core::Error::NotConnected(cause) => names(&Error::Comm((**cause).clone()), rank),
        _ => false,
    }
}

/// Trains until a step fails, which must change nothing. Returns the error and the outer steps.
fn train(replica: &mut Replica<f32>, steps: usize) -> Option<Error> {
    for _ in 0..steps {
        replica.move_on();
        let before = (replica.values.clone(), replica.global());
        let outer_steps = replica.training.progress().outer_steps;
        let Err(error) = replica.training.step(slices(&mut replica.values)) else { continue };
        assert_eq!(before, (replica.values.clone(), replica.global()));
        // The lost average is not applied later.
        let progress = replica.training.progress();
        assert!(progress.outer_steps == outer_steps && !progress.due.contains(&Some(progress.inner_steps)));
        let later = replica.training.step(slices(&mut replica.values)).unwrap_err();
        assert!(matches!(later, Error::Poisoned(_)), "{later}");
        let later = replica.training.synchronize(slices(&mut replica.values)).unwrap_err();
        assert!(matches!(later, Error::Poisoned(_)) && replica.training.state().map(drop).is_err());
        assert_eq!(before, (replica.values.clone(), replica.global()));
        return Some(error);
    }
    None
}

/// The fate of one rank of a run in virtual time.
struct End {
    is_dead: bool,
    error: Option<Error>,
    /// The outer steps and the global parameters, if training began.
    outer_steps: Option<(u64, Vec<Vec<f32>>)>,
}

fn live(fabric: NetworkFabric, clock: &VirtualClock, options: LocalOptions, death: Option<u64>) -> End {
    if let Some(operation) = death {
        let own = clock.clone();
        clock.before_operation(operation, move || own.die());
    }
    let mut config = RingConfig::default();
    config.announce_after = Duration::from_millis(20);
    let mut end = End { is_dead: false, error: None, outer_steps: None };
    let began = RingCommunicator::new(fabric, config, TIMEOUT).map_err(Error::from).and_then(|ring| {
        let comm = Comm::new(ring).with_timeout(TIMEOUT);
        Replica::<f32>::new(&comm, options).map(|replica| (comm, replica))
    });
    match began {
        Err(error) => end.error = Some(error),
        Ok((_comm, mut replica)) => {
            end.error = train(&mut replica, STEPS);
            end.outer_steps = Some((replica.training.progress().outer_steps.iter().sum(), replica.global()));
            if end.error.is_some() && !clock.is_dead() {
                // The others learn of the death by reports, not by this rank's exit.
                clock.sleep(2 * TIMEOUT);
            }
        }
    }
    end.is_dead = clock.is_dead();
    end
}

/// Lets a rank of a run die before one of its operations, if it makes that many.
fn run(options: LocalOptions, rank: usize, operation: u64) -> Vec<End> {
    network::run(RANKS, operation, &FaultPlan::calm(), |fabric, clock| {
        use comm_core::Fabric;
        let dies = fabric.group().rank() == rank;
        live(fabric, &clock, options, dies.then_some(operation))
    })
}

fn check_deaths(options: LocalOptions) {
    let (mut deaths, mut in_training) = (0, 0);
    let whole = run(options, 0, u64::MAX).swap_remove(0).outer_steps.unwrap();
    for rank in 0..RANKS {
        for operation in (1..).step_by(3) {
            let ends = run(options, rank, operation);
            if !ends[rank].is_dead {
                assert!(ends.iter().all(|end| end.error.is_none()));
                break;
            }
            deaths += 1;
            for (other, end) in ends.iter().enumerate().filter(|(other, _)| *other != rank) {
                // A rank that had already made its last step has no error.
                if let Some(error) = &end.error {
                    assert!(names(error, rank), "rank {other}, death of {rank} at {operation}: {error}");
                    in_training += usize::from(end.outer_steps.is_some());
                } else {
                    assert_eq!(end.outer_steps.as_ref(), Some(&whole), "rank {other} has not detected it");
                }
                // Ranks with the same number of outer steps have the same global parameters.
                for another in ends.iter().filter_map(|end| end.outer_steps.as_ref()) {
                    let own = end.outer_steps.as_ref();
                    assert!(own.is_none_or(|own| own.0 != another.0 || own.1 == another.1));
                }
            }
        }
    }
    assert!(deaths > 50 && in_training > 50, "{deaths} deaths, {in_training} in training");
}

#[test]
fn a_rank_that_dies_at_any_operation_of_a_run_is_named_by_all_others() {
    check_deaths(LocalOptions::new(2).fragments(2));
}

#[test]
fn a_rank_that_dies_while_a_fragment_is_in_flight_is_named_by_all_others() {
    check_deaths(LocalOptions::new(3).fragments(2).delay(1).alpha(0.5));
    check_deaths(LocalOptions::new(3).fragments(3).delay(2).codec(Some(BlockCodec::Int4)));
}

/// Rank 2 leaves without sending its part; with a delay, the others have already continued.
#[test]
fn after_a_rank_was_lost_the_others_continue_in_a_new_group() {
    for options in [
        LocalOptions::new(3),
        LocalOptions::new(3).delay(2).alpha(0.5),
        LocalOptions::new(4).fragments(2).delay(3).alpha(0.5),
    ] {
        let globals = on_ranks(RANKS, |world| {
            let mut replica = Replica::<f32>::new(&world, options).unwrap();
            assert!(train(&mut replica, 7).is_none());
            if world.rank() == 2 {
                drop(replica);
                assert!(world.new_group(&[0, 1]).unwrap().is_none());
                return None;
            }
            let error = train(&mut replica, 10).expect("rank 2 is lost");
            assert!(names(&error, 2), "{error}");
            let comm = world.new_group(&[0, 1]).unwrap().unwrap();
            let before = replica.values.clone();
            replica.training.rejoin(&comm, slices(&mut replica.values)).unwrap();
            assert_eq!(replica.values, before, "inner steps were lost");
            assert!(train(&mut replica, 8).is_none());
            replica.training.check_replicas().unwrap();
            Some(replica.global())
        });
        assert!(globals[0].is_some() && globals[0] == globals[1]);
    }
}

/// Rank 1 has made one more outer step than rank 0 when the group fails, as if rank 0 had not
/// received the last average.
#[test]
fn a_rank_that_lacks_the_last_outer_step_gets_it_from_one_that_has_it() {
    let options = LocalOptions::new(2);
    let ends = on_ranks(2, |world| {
        let mut replica = Replica::<f32>::new(&world, options).unwrap();
        assert!(train(&mut replica, 4).is_none());
        if world.rank() == 1 {
            let mut progress = replica.training.progress();
            progress.outer_steps[0] += 1;
            replica.training.state().unwrap().for_each(|part| part.values.fill(0.5));
            replica.training.set_progress(&progress).unwrap();
        }
        assert!(train(&mut replica, 2).is_some());
        let own = replica.values.clone();
        replica.training.rejoin(&world, slices(&mut replica.values)).unwrap();
        let expected = if world.rank() == 1 { own } else { vec![vec![0.5; LEN]; PARAMETERS] };
        assert_eq!(replica.values, expected);
        assert_eq!(replica.training.progress().outer_steps, [3]);
        assert!(train(&mut replica, 4).is_none());
        (
            replica.global(),
            replica.training.state().unwrap().map(|part| part.values.to_vec()).collect::<Vec<_>>(),
        )
    });
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn ranks_that_make_different_numbers_of_steps_do_not_average() {
    let errors = on_ranks(2, |comm| {
        let mut replica = Replica::<f32>::new(&comm, LocalOptions::new(2).fragments(2)).unwrap();
        // Rank 1 forgets a step, so its first fragment meets the second of rank 0.
        if comm.rank() == 1 {
            let mut progress = replica.training.progress();
            progress.inner_steps = 1;
            replica.training.set_progress(&progress).unwrap();
        }
        train(&mut replica, 4).unwrap()
    });
    for error in errors {
        let Error::Comm(error) = error else { panic!("{error}") };
        assert!(matches!(error.root_cause(), comm_core::Error::Desync(_)), "{error}");
    }
}
