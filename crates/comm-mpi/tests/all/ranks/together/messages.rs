//! Messages between two ranks.

use std::time::Duration;

use comm_core::{ANY_TAG, DType, Error, Invalid, Source};
use comm_mpi::MpiConfig;

use crate::ranks::run;

/// Lengths below and above the limit of messages that are sent with their header.
const LENGTHS: [usize; 7] = [0, 1, 499, 500, 501, 4000, 300_000];

fn message(from: usize, len: usize) -> Vec<u32> {
    (0..len as u32).map(|at| at * 7 + from as u32).collect()
}

#[test]
fn messages_of_all_lengths_arrive_in_order_from_every_rank() {
    run(1, MpiConfig::default(), |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let tag = u64::MAX - number as u64;
            for step in 0..size {
                let (to, from) = ((rank + step) % size, (rank + size - step) % size);
                let mut buffer = vec![0_u32; len + 1];
                let received =
                    comm.send_recv((to, tag), &message(rank, len), (from, tag), &mut buffer).unwrap();
                assert_eq!((received.source, received.tag, received.len), (from, tag, len));
                assert_eq!(buffer[..len], message(from, len));
                assert_eq!(buffer[len], 0);
            }
        }
        // Messages of one sender do not overtake each other, however long they are.
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        let works: Vec<_> = LENGTHS
            .into_iter()
            .rev()
            .map(|len| comm.send_async::<u32, _>(next, 5, message(rank, len)).unwrap())
            .collect();
        for len in LENGTHS.into_iter().rev() {
            let (found, received) = comm.recv_vec::<u32>(Source::Any, ANY_TAG).unwrap();
            assert_eq!((received.source, found), (last, message(last, len)));
        }
        for work in works {
            work.wait().unwrap();
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn a_message_that_does_not_fit_is_kept() {
    run(1, MpiConfig::default(), |comm| {
        let own = comm.rank();
        for len in [3, 3000] {
            let sent = comm.send_async::<u32, _>(own, 7, message(own, len)).unwrap();
            let mut short = vec![0_u32; len - 1];
            let error = comm.recv(own, 7, &mut short).unwrap_err();
            assert!(matches!(error, Error::Invalid(Invalid::Message { .. })), "{error}");
            let error = comm.recv(own, 7, &mut vec![0_i64; len]).unwrap_err();
            assert!(matches!(error, Error::Invalid(Invalid::Message { .. })), "{error}");
            let found = comm.probe(own, 7).unwrap();
            assert_eq!((found.len, found.dtype), (len, DType::U32));
            let mut buffer = vec![0_u32; len];
            comm.recv(own, 7, &mut buffer).unwrap().exactly(len).unwrap();
            assert_eq!(buffer, message(own, len));
            sent.wait().unwrap();
            assert_eq!(comm.try_probe(Source::Any, ANY_TAG).unwrap(), None);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn a_receive_that_no_message_matches_times_out_and_messages_go_on() {
    run(2, MpiConfig::default(), |comm| {
        let peer = comm.rank() ^ 1;
        if peer < comm.size() {
            let error = comm.with_timeout(Duration::from_millis(50)).recv(peer, 8, &mut [0_u8]).unwrap_err();
            assert!(
                matches!(&error, Error::Timeout { waiting_for, .. } if *waiting_for == [peer]),
                "{error}"
            );
            assert!(!error.is_fatal());
            let mut theirs = [0_usize];
            comm.send_recv((peer, 9), &[comm.rank()], (peer, 9), &mut theirs).unwrap().exactly(1).unwrap();
            assert_eq!(theirs, [peer]);
        }
        comm.barrier().unwrap();
        comm.finalize().unwrap();
    });
}

#[test]
fn a_long_message_that_nobody_receives_ends_all_messages_but_no_collectives() {
    run(2, MpiConfig::default(), |comm| {
        if comm.rank() == 0 {
            let short = comm.with_timeout(Duration::from_millis(100));
            let error = short.send(1, 9, &vec![0_u8; 1 << 20]).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }) && error.is_fatal(), "{error}");
        }
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            let error = comm.recv(0, 10, &mut [0_u8]).unwrap_err();
            assert!(matches!(error.root_cause(), Error::Aborted { by: 0, .. }), "{error}");
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn background_receives_complete_in_any_order_and_are_cancelled_at_the_end() {
    run(2, MpiConfig::default(), |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        let works: Vec<_> =
            (0..100_u64).map(|tag| comm.recv_async::<u32, _>(last, tag, vec![0_u32; 600]).unwrap()).collect();
        for tag in (0..100_u64).rev() {
            comm.send(next, tag, &vec![tag as u32; 501 + tag as usize % 99]).unwrap();
        }
        for (tag, work) in works.into_iter().enumerate() {
            let (buffer, received) = work.wait().unwrap();
            assert_eq!(buffer[..received.len], vec![tag as u32; 501 + tag % 99]);
        }
        // From this rank: others may leave first.
        let never = comm.recv_async::<u32, _>(rank, 1000, vec![0_u32; 1]).unwrap();
        comm.barrier().unwrap();
        drop(comm);
        assert!(matches!(never.wait(), Err(Error::Cancelled)));
    });
}
