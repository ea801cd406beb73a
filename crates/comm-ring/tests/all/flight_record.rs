//! The record of the last calls: of a program that succeeds, of a call that is blocked, and of a
//! communicator that fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::virtual_world;
use comm_core::{CallState, Collective, Comm, Error, FlightRecord, FlightSink, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, VirtualClock};

const TIMEOUT: Duration = Duration::from_secs(2);

#[test]
fn a_program_that_succeeds_leaves_completed_calls_in_order() {
    let records = virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        for _ in 0..3 {
            comm.all_reduce(&mut [1_u32; 5], ReduceOp::Sum).unwrap();
            clock.sleep(Duration::from_millis(100));
        }
        comm.barrier().unwrap();
        comm.flight_record().unwrap()
    });
    for record in records {
        let calls: Vec<_> =
            record.calls.iter().map(|call| (call.sequence, call.signature.collective)).collect();
        let sum = Collective::AllReduce;
        assert_eq!(calls[1..], [(1, sum), (2, sum), (3, sum), (4, Collective::Barrier)]);
        assert!(record.calls.iter().all(|call| call.state == CallState::Completed));
        assert!(record.calls.iter().all(|call| call.ended >= Some(call.started)));
        let pause = record.calls[2].started - record.calls[1].started;
        assert!((100..110).contains(&pause.as_millis()), "{pause:?}");
        assert_eq!((record.members, record.failure.is_none()), (vec![0, 1, 2], true));
    }
}

#[test]
fn the_number_of_recorded_calls_is_bounded() {
    let mut config = RingConfig::default();
    config.recorded_calls = 100;
    let records = virtual_world(2, 0, &config, |comm, _| {
        (0..300).for_each(|_| comm.barrier().unwrap());
        comm.flight_record().unwrap()
    });
    for record in records {
        let numbers: Vec<u64> = record.calls.iter().map(|call| call.sequence).collect();
        assert_eq!(numbers, (173..=300).collect::<Vec<_>>());
    }
}

#[test]
fn another_thread_sees_the_ranks_that_a_blocked_call_waits_for() {
    virtual_world(3, 0, &RingConfig::default(), |comm, clock| {
        if comm.rank() == 2 {
            clock.sleep(Duration::from_secs(5));
            return comm.barrier().unwrap();
        }
        let barrier = comm.barrier_async().unwrap();
        clock.sleep(Duration::from_secs(1));
        let record = comm.flight_record().unwrap();
        let last = record.calls.last().unwrap();
        assert_eq!((last.sequence, last.state, last.ended), (1, CallState::Started, None));
        assert!(!last.waiting_for.is_empty() && !last.waiting_for.contains(&comm.rank()));
        barrier.wait().unwrap();
        let record = comm.flight_record().unwrap();
        let last = record.calls.last().unwrap();
        assert_eq!((last.state, last.waiting_for.len()), (CallState::Completed, 0));
    });
}

/// Runs `rank` on three ranks, and returns the records that their sinks got.
fn reported(rank: impl Fn(&Comm, &VirtualClock) -> Result<(), Error> + Sync) -> Vec<Vec<FlightRecord>> {
    network::run(3, 0, &FaultPlan::calm(), |fabric, clock| {
        let records: Arc<Mutex<Vec<FlightRecord>>> = Arc::default();
        let mut config = RingConfig::default();
        let to = Arc::clone(&records);
        config.flight_sink = Some(FlightSink::new(move |record| to.lock().unwrap().push(record.clone())));
        let comm = Comm::new(RingCommunicator::new(fabric, config, TIMEOUT).unwrap()).with_timeout(TIMEOUT);
        if rank(&comm, &clock).is_err() {
            // Later calls report nothing.
            assert!(matches!(comm.barrier(), Err(Error::Poisoned(_))));
        }
        drop(comm);
        std::mem::take(&mut *records.lock().unwrap())
    })
}

#[test]
fn a_failed_communicator_reports_its_record_once() {
    let all = reported(|comm, clock| {
        comm.barrier()?;
        if comm.rank() == 1 {
            clock.die();
        }
        comm.all_reduce(&mut [1_u32], ReduceOp::Sum)
    });
    for rank in [0, 2] {
        let [record] = &all[rank][..] else { unreachable!("one record") };
        let failure = record.failure.as_ref().unwrap();
        assert!(matches!(failure.error, Error::PeerLost { peer: 1, .. }), "{}", failure.error);
        let last = record.calls.last().unwrap();
        assert_eq!((last.sequence, last.state, failure.sequence), (2, CallState::Failed, 2));
        assert_eq!(last.signature.collective, Collective::AllReduce);
        assert!(record.calls.iter().rev().skip(1).all(|call| call.state == CallState::Completed));
    }
}

#[test]
fn a_communicator_that_is_closed_reports_its_record_once_if_it_is_asked_to() {
    for finalizes in [false, true] {
        let all: Vec<Vec<FlightRecord>> = network::run(3, 0, &FaultPlan::calm(), |fabric, _| {
            let records: Arc<Mutex<Vec<FlightRecord>>> = Arc::default();
            let to = Arc::clone(&records);
            let mut config = RingConfig::default();
            config.record_on_close = true;
            config.flight_sink = Some(FlightSink::new(move |record| to.lock().unwrap().push(record.clone())));
            let comm = Comm::new(RingCommunicator::new(fabric, config, TIMEOUT).unwrap());
            comm.barrier().unwrap();
            if finalizes {
                comm.clone().finalize().unwrap();
            }
            drop(comm);
            std::mem::take(&mut *records.lock().unwrap())
        });
        for records in all {
            let [record] = &records[..] else { unreachable!("one record: {records:?}") };
            assert!(record.failure.is_none());
            assert_eq!(record.calls.last().unwrap().signature.collective, Collective::Barrier);
        }
    }
}

#[test]
fn a_record_states_whether_its_times_are_exact() {
    let mut config = RingConfig::default();
    for exact in [true, false] {
        config.exact_times = exact;
        let records = virtual_world(2, 0, &config, |comm, _| {
            (0..10).for_each(|_| comm.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap());
            comm.flight_record().unwrap()
        });
        for record in records {
            assert_eq!(record.exact_times, exact);
            assert!(record.calls.is_sorted_by_key(|call| call.started));
        }
    }
}

#[test]
fn a_program_that_succeeds_reports_nothing() {
    let all = reported(|comm, _| comm.barrier());
    assert!(all.iter().all(Vec::is_empty));
}

#[test]
fn a_group_records_its_own_calls_and_the_ranks_of_its_members_in_the_world() {
    let all = reported(|comm, clock| {
        let group = comm.new_group(&[2, 1])?;
        let Some(group) = group else { return Ok(()) };
        let group = group.with_timeout(TIMEOUT);
        group.barrier()?;
        if comm.rank() == 1 {
            clock.sleep(3 * TIMEOUT);
        }
        assert!(group.barrier().is_err());
        Ok(())
    });
    let [record] = &all[2][..] else { unreachable!("one record") };
    assert_eq!((&record.members[..], record.group.rank()), (&[2, 1][..], 0));
    let last = record.calls.last().unwrap();
    assert_eq!((last.sequence, last.state, &last.waiting_for[..]), (2, CallState::Failed, &[1][..]));
    assert!(all[0].is_empty());
}
