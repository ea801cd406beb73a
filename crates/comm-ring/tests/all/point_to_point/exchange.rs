//! Messages arrive unaltered.

use comm_core::{ANY_TAG, Comm, DType, Error, Invalid, Received, Source};

use super::{payload, run, run_everywhere};

/// Rank 0 sends a message and gets it back.
fn ping_pong(comm: &Comm, len: usize) {
    let message = payload(0, 3, len);
    let mut buffer = vec![9; len + 2];
    if comm.rank() == 0 {
        comm.send(1, 3, &message).unwrap();
        let received = comm.recv(1, 4, &mut buffer).unwrap();
        assert_eq!(received, Received::new(1, 4, DType::U32, len));
        assert_eq!(buffer[..len], message);
        assert_eq!(buffer[len..], [9, 9]);
    } else if comm.rank() == 1 {
        let received = comm.recv(0, 3, &mut buffer).unwrap();
        comm.send(0, 4, &buffer[..received.len]).unwrap();
    }
}

#[test]
fn ping_pong_around_the_limits() {
    run_everywhere(2, |comm| {
        // Messages of up to 256 bytes are eager, larger ones are sent in parts of 100 bytes.
        for len in [0, 1, 24, 25, 26, 63, 64, 65, 74, 75, 76, 1000] {
            ping_pong(&comm, len);
        }
    });
    run(2, |comm| {
        for len in [0, 1, 16383, 16384, 16385, 65536, 65537, 1_000_000] {
            ping_pong(&comm, len);
        }
    });
}

#[test]
fn a_circle_of_exchanges_does_not_deadlock() {
    for ranks in [1, 2, 3, 5, 8] {
        run_everywhere(ranks, |comm| {
            let (next, last) = ((comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            for len in [0, 1, 64, 65, 500] {
                let mut buffer = vec![0; len];
                let message = payload(comm.rank(), 1, len);
                let received = comm.send_recv((next, 1), &message, (last, 1), &mut buffer).unwrap();
                assert_eq!((received.source, received.len), (last, len));
                assert_eq!(buffer, payload(last, 1, len));
            }
        });
    }
}

#[test]
fn the_halves_of_an_exchange_may_differ_in_type_and_length() {
    run(2, |comm| {
        if comm.rank() == 0 {
            let mut buffer = [0_u8; 3];
            comm.send_recv((1, 1), &[1.5_f64], (1, 2), &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, [7, 8, 9]);
        } else {
            let mut buffer = vec![0.0_f64; 2];
            let received =
                comm.send_recv((0, 2), &[7_u8, 8, 9], (Source::Any, ANY_TAG), &mut buffer).unwrap();
            assert_eq!((received.len, buffer[0]), (1, 1.5));
        }
    });
}

#[test]
fn a_rank_sends_to_itself() {
    run_everywhere(1, |comm| {
        for len in [0, 1, 64, 65, 1000] {
            // Messages that are not eager wait for their receive, so another thread sends them.
            std::thread::scope(|scope| {
                scope.spawn(|| comm.send(0, 5, &payload(0, 5, len)).unwrap());
                let mut buffer = vec![0; len];
                let received = comm.recv(Source::Any, 5, &mut buffer).unwrap();
                assert_eq!(received, Received::new(0, 5, DType::U32, len));
                assert_eq!(buffer, payload(0, 5, len));
            });
            let coming = comm.recv_async(0, 6, vec![0; len]).unwrap();
            comm.send(0, 6, &payload(0, 6, len)).unwrap();
            assert_eq!(coming.wait().unwrap().0, payload(0, 6, len));
        }
    });
}

#[test]
fn small_messages_to_oneself_need_no_receiver_yet() {
    run(1, |comm| {
        (0..10_u64).for_each(|tag| comm.send(0, tag, &[tag]).unwrap());
        for tag in (0..10).rev() {
            let mut buffer = [0_u64];
            comm.recv(0, tag, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, [tag]);
        }
    });
}

#[test]
fn a_probe_does_not_receive_the_message() {
    run_everywhere(2, |comm| {
        for len in [0, 10, 300] {
            if comm.rank() == 0 {
                assert_eq!(comm.try_probe(Source::Any, 99).unwrap(), None);
                let expected = comm.probe(Source::Any, ANY_TAG).unwrap();
                assert_eq!(expected, Received::new(1, 8, DType::U32, len));
                assert_eq!(comm.try_probe(1, 8).unwrap(), Some(expected));
                let mut buffer = vec![0; expected.len];
                assert_eq!(comm.recv(expected.source, expected.tag, &mut buffer).unwrap(), expected);
                assert_eq!(buffer, payload(1, 8, len));
                assert_eq!(comm.try_probe(1, 8).unwrap(), None);
                comm.send(1, 0, &[0_u8]).unwrap();
            } else {
                comm.send(0, 8, &payload(1, 8, len)).unwrap();
                comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            }
        }
    });
}

#[test]
fn a_message_that_does_not_fit_is_reported_and_kept() {
    run_everywhere(2, |comm| {
        for len in [2, 300] {
            if comm.rank() == 1 {
                comm.send(0, 4, &payload(1, 4, len)).unwrap();
                continue;
            }
            let short = comm.recv(1, ANY_TAG, &mut vec![0_u32; len - 1]).unwrap_err();
            let (dtype, wanted, capacity) = (DType::U32, DType::U32, len - 1);
            let expected = Invalid::Message { source_rank: 1, tag: 4, len, dtype, capacity, wanted };
            assert!(matches!(&short, Error::Invalid(invalid) if *invalid == expected), "{short}");
            assert!(!short.is_fatal());
            let typed = comm.recv(Source::Any, 4, &mut vec![0.0_f32; len]).unwrap_err();
            let (capacity, wanted) = (len, DType::F32);
            let expected = Invalid::Message { source_rank: 1, tag: 4, len, dtype, capacity, wanted };
            assert!(matches!(&typed, Error::Invalid(invalid) if *invalid == expected), "{typed}");
            let mut buffer = vec![0; len];
            comm.recv(1, 4, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
            assert_eq!(buffer, payload(1, 4, len));
        }
    });
}

#[test]
fn a_pending_receive_of_a_message_that_does_not_fit_gets_an_error() {
    run(2, |comm| {
        if comm.rank() == 0 {
            let small = comm.recv_async(1, 4, vec![0_u32; 1]).unwrap();
            let right = comm.recv_async(1, 4, vec![0_u32; 2]).unwrap();
            comm.send(1, 0, &[0_u8]).unwrap();
            assert!(matches!(
                small.wait(),
                Err(Error::Invalid(Invalid::Message { len: 2, capacity: 1, .. }))
            ));
            assert_eq!(right.wait().unwrap().0, [5, 6]);
        } else {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 4, &[5_u32, 6]).unwrap();
        }
    });
}

#[test]
fn ranks_outside_the_group_are_refused() {
    run(2, |comm| {
        let refused = |error: Error| {
            assert!(matches!(error, Error::Invalid(Invalid::Rank { rank: 2, size: 2 })), "{error}");
        };
        refused(comm.send(2, 0, &[1_u8]).unwrap_err());
        refused(comm.recv(2, 0, &mut [1_u8]).unwrap_err());
        refused(comm.probe(2, 0).unwrap_err());
        refused(comm.try_probe(2, 0).unwrap_err());
        refused(comm.send_recv((2, 0), &[1_u8], (1, 0), &mut [1_u8]).unwrap_err());
        refused(comm.send_recv((1, 0), &[1_u8], (2, 0), &mut [1_u8]).unwrap_err());
        refused(comm.send_async(2, 0, [1_u8]).unwrap().wait().unwrap_err());
        refused(comm.recv_async(2, 0, [1_u8]).unwrap().wait().unwrap_err());
        // Nothing was sent, and messages still work.
        comm.barrier().unwrap();
        assert_eq!(comm.try_probe(Source::Any, ANY_TAG).unwrap(), None);
    });
}
