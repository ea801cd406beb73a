//! Background messages whose buffers or owners go away.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use comm_core::{Error, Invalid, Source, Work};

use super::{networks, payload, run, run_everywhere, tight};

#[test]
fn a_receive_that_no_message_matched_is_cancelled_with_the_last_handle() {
    let has_dropped = Barrier::new(2);
    run(2, |comm| {
        if comm.rank() == 1 {
            has_dropped.wait();
            return;
        }
        let unmatched = comm.with_timeout(Duration::MAX).recv_async(Source::Any, 7, [0_u32; 4]).unwrap();
        drop(comm);
        let error = unmatched.wait().unwrap_err();
        has_dropped.wait();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert!(!error.is_fatal());
    });
}

#[test]
fn a_large_message_is_received_whole_before_the_last_handle_is_gone() {
    for network in networks() {
        let dropped = Barrier::new(2);
        crate::common::world(2, &network, &tight(), |comm| {
            let (rank, len) = (comm.rank(), 5000);
            if rank == 0 {
                let work = comm.send_async(1, 3, payload(0, 3, len)).unwrap();
                drop(comm);
                work.wait().unwrap();
            } else {
                assert_eq!(comm.probe(0, 3).unwrap().len, len);
                let work = comm.recv_async(0, 3, vec![0_u32; len]).unwrap();
                drop(comm);
                assert_eq!(work.wait().unwrap().0, payload(0, 3, len));
            }
            dropped.wait();
        });
    }
}

/// A buffer that returns its memory a few times, and then misbehaves.
struct Fickle {
    memory: Vec<u32>,
    accesses: AtomicUsize,
    at: usize,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Panic,
    Shrink,
}

impl Fickle {
    fn new(memory: Vec<u32>, at: usize, how: How) -> Self {
        Self { memory, accesses: AtomicUsize::new(0), at, how }
    }

    /// Returns the length that this call reports.
    fn len(&self) -> usize {
        let is_over = self.accesses.fetch_add(1, Ordering::Relaxed) >= self.at;
        match self.how {
            How::Panic if is_over => panic!("the buffer is no more"),
            How::Shrink if is_over => 1,
            _ => self.memory.len(),
        }
    }
}

impl AsMut<[u32]> for Fickle {
    fn as_mut(&mut self) -> &mut [u32] {
        let len = self.len();
        &mut self.memory[..len]
    }
}

impl AsRef<[u32]> for Fickle {
    fn as_ref(&self) -> &[u32] {
        &self.memory[..self.len()]
    }
}

/// Checks the error that the owner of the buffer receives.
#[track_caller]
fn assert_spoilt<B>(work: Work<B>, how: How) {
    let error = work.wait().err().unwrap();
    let is_right = match how {
        How::Panic => matches!(&error, Error::Panicked { message } if message == "the buffer is no more"),
        How::Shrink => matches!(error, Error::Invalid(Invalid::Length { .. })),
    };
    assert!(is_right, "{error}");
}

#[test]
fn a_faulty_buffer_fails_only_its_own_receive() {
    // Whole messages, and messages in parts, at the first part and at a later one.
    for (len, at) in [(20, 1), (300, 1), (300, 2)] {
        for how in [How::Panic, How::Shrink] {
            run_everywhere(2, |comm| {
                if comm.rank() == 0 {
                    let spoilt = comm.recv_async(1, 7, Fickle::new(vec![0; len], at, how)).unwrap();
                    // The other message is received as well, by this thread or by one that it waits
                    // for.
                    let (mut buffer, before) = (vec![0; len], payload(1, 8, len));
                    comm.send(1, 0, &[0_u8]).unwrap();
                    comm.recv(1, 8, &mut buffer).unwrap().exactly(len).unwrap();
                    assert_eq!(buffer, before);
                    assert_spoilt(spoilt, how);
                    comm.recv(1, 7, &mut buffer).unwrap().exactly(len).unwrap();
                    assert_eq!(buffer, payload(1, 9, len));
                } else {
                    comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
                    comm.send(0, 7, &payload(1, 7, len)).unwrap();
                    comm.send(0, 8, &payload(1, 8, len)).unwrap();
                    comm.send(0, 7, &payload(1, 9, len)).unwrap();
                }
            });
        }
    }
}

#[test]
fn a_buffer_that_panics_when_posted_fails_no_other_operation() {
    run(2, |comm| {
        let other = 1 - comm.rank();
        assert_spoilt(comm.recv_async(other, 7, Fickle::new(vec![0; 3], 0, How::Panic)).unwrap(), How::Panic);
        assert_spoilt(comm.send_async(other, 7, Fickle::new(vec![0; 3], 0, How::Panic)).unwrap(), How::Panic);
        let mut received = [0_u32; 3];
        comm.send_recv((other, 7), &[1_u32, 2, 3], (other, 7), &mut received).unwrap().exactly(3).unwrap();
        assert_eq!(received, [1, 2, 3]);
    });
}

#[test]
fn a_panicking_buffer_fails_only_its_own_message_to_self() {
    run(1, |comm| {
        let sent = comm.send_async(0, 7, Fickle::new(vec![0; 100_000], 1, How::Panic)).unwrap();
        let mut buffer = vec![0_u32; 100_000];
        let error = comm.recv(0, 7, &mut buffer).unwrap_err();
        assert!(matches!(error, Error::Panicked { .. }), "{error}");
        assert_spoilt(sent, How::Panic);
        let sent = comm.send_async(0, 7, payload(0, 7, 5)).unwrap();
        comm.recv(0, 7, &mut buffer).unwrap().exactly(5).unwrap();
        sent.wait().unwrap();
        assert_eq!(buffer[..5], payload(0, 7, 5));
    });
}

/// Panics when it is dropped.
struct Bomb([u32; 4]);

impl AsMut<[u32]> for Bomb {
    fn as_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn a_buffer_that_panics_when_dropped_harms_no_other_call() {
    run(2, |comm| {
        let other = 1 - comm.rank();
        if comm.rank() == 0 {
            // Too small for the message, so the receiver drops it.
            let refused = comm.recv_async(other, 7, Bomb([0; 4])).unwrap();
            comm.send(1, 0, &[0_u8]).unwrap();
            let mut buffer = [0_u32; 5];
            comm.recv(other, 8, &mut buffer).unwrap().exactly(5).unwrap();
            let error = refused.wait().err().unwrap();
            assert!(matches!(error, Error::Invalid(Invalid::Message { .. })), "{error}");
            comm.recv(other, 7, &mut buffer).unwrap().exactly(5).unwrap();
        } else {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 7, &[1_u32; 5]).unwrap();
            comm.send(0, 8, &[1_u32; 5]).unwrap();
        }
    });
}
