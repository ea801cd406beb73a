//! Messages are read where they lie on the heap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::collectives::communicator;
use crate::common::stopping::Stopping;
use crate::common::world;

const LEN: usize = (5 << 20) + 4321;
const MESSAGE: u8 = 7;

/// A thread that sends while another one drives all messages of the rank sends a copy. It lies on
/// the heap, and is not freed before it was read.
#[test]
fn copies_of_messages_are_kept_until_they_are_read() {
    let (stopped, has_stopped) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let receiver = Mutex::new(Some(Stopping::new(vec![0; LEN], stopped, may_go_on)));
    let sender = Mutex::new((has_stopped, go_on));
    comm_sim::run_each(world(2, 64 << 10), |fabric| {
        let comm = communicator(fabric);
        if comm.rank() == 1 {
            let buffer = receiver.lock().unwrap().take().unwrap();
            let (buffer, _) = comm.recv_async::<u8, _>(0, 0, buffer).unwrap().wait().unwrap();
            assert!(buffer.bytes().iter().all(|byte| *byte == MESSAGE));
            comm.send(0, 1, &[0_u8]).unwrap();
            return;
        }
        let (has_stopped, go_on) = &mut *sender.lock().unwrap();
        let is_sent = AtomicBool::new(false);
        thread::scope(|scope| {
            // This thread drives until the end.
            scope.spawn(|| comm.recv(1, 1, &mut [0_u8]).unwrap());
            scope.spawn(|| {
                let message = vec![MESSAGE; LEN];
                comm.send(1, 0, &message).unwrap();
                is_sent.store(true, Ordering::Relaxed);
                drop(message);
                // The next blocks are those that were freed last.
                [(); 4].map(|()| vec![0xee_u8; LEN])
            });
            has_stopped.recv().unwrap();
            // A send that returns too early has time to do so.
            let until = Instant::now() + Duration::from_millis(100);
            while !is_sent.load(Ordering::Relaxed) && Instant::now() < until {
                thread::yield_now();
            }
            go_on.send(()).unwrap();
        });
    });
}
