//! Every order in which the two sides of a ring can meet: nobody sleeps through what it waits for.

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::doze::settle;

/// A bell, as an end of a socket is one: it rings until it is silenced.
struct Bell(Mutex<bool>, Condvar);

/// What the two sides share.
struct Shared {
    control: Control,
    /// What wakes the reader, and what wakes the writer.
    for_reader: Bell,
    for_writer: Bell,
}

impl Bell {
    fn new() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }

    fn ring(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn silence(&self) {
        *self.0.lock().unwrap() = false;
    }

    /// Sleeps until it rings. A bell that nobody rings any more is a deadlock, which loom reports.
    fn sleep(&self) {
        let mut rings = self.0.lock().unwrap();
        while !*rings {
            rings = self.1.wait(rings).unwrap();
        }
    }
}

/// Tries every order with up to so many places where a thread is interrupted though it could go on, or as many as
/// LOOM_MAX_PREEMPTIONS says; without a bound,
/// all of them.
fn model(interruptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(interruptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { control: Control::new(), for_reader: Bell::new(), for_writer: Bell::new() })
}

/// What a transport does to wait: silence, lie down, settle, look, sleep.
fn wait(bell: &Bell, doze: &Doze, mut ready: impl FnMut() -> bool) {
    while !ready() {
        bell.silence();
        doze.lie_down();
        settle().unwrap();
        if ready() {
            doze.get_up();
            return;
        }
        bell.sleep();
        doze.get_up();
    }
}

/// Writes so many bytes, one by one, into a ring of one byte.
fn write(shared: &Shared, bytes: usize) {
    let mut writer = Writer::new(1);
    for _ in 0..bytes {
        wait(&shared.for_writer, shared.control.writer(), || {
            writer.look(&shared.control).unwrap();
            writer.room() > 0
        });
        writer.wrote(1);
        if writer.publish(&shared.control) {
            shared.for_reader.ring();
        }
    }
}

/// Reads so many bytes.
fn read(shared: &Shared, bytes: usize) {
    let mut reader = Reader::new(1);
    for _ in 0..bytes {
        wait(&shared.for_reader, shared.control.reader(), || {
            reader.look(&shared.control).unwrap();
            reader.available() > 0
        });
        if reader.release(1, &shared.control) {
            shared.for_writer.ring();
        }
    }
}

#[test]
fn a_reader_is_woken() {
    model(None, || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || write(&other, 1));
        read(&shared, 1);
        writer.join().unwrap();
    });
}

#[test]
fn a_writer_is_woken_when_there_is_room() {
    model(Some(4), || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || write(&other, 2));
        read(&shared, 2);
        writer.join().unwrap();
    });
}

#[test]
fn a_sleeper_that_something_else_woke_is_woken_again() {
    model(Some(4), || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || write(&other, 1));
        // The bell rings for another reason, as when another peer has sent something.
        let third = Arc::clone(&shared);
        let neighbour = thread::spawn(move || third.for_reader.ring());
        read(&shared, 1);
        writer.join().unwrap();
        neighbour.join().unwrap();
    });
}

/// What was written before a position was published is there when the position is seen.
#[test]
fn bytes_are_there_before_their_position() {
    model(None, || {
        let shared = shared();
        let byte = Arc::new(loom::cell::UnsafeCell::new(0_u8));
        let (other, into) = (Arc::clone(&shared), Arc::clone(&byte));
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(1);
            into.with_mut(|_| ());
            writer.wrote(1);
            let _ = writer.publish(&other.control);
        });
        let mut reader = Reader::new(1);
        reader.look(&shared.control).unwrap();
        if reader.available() > 0 {
            byte.with(|_| ());
        }
        writer.join().unwrap();
    });
}

/// Lends so many times, one byte each with its number, and after each waits until it was read.
fn lend(shared: &Shared, loans: u64) {
    let mut writer = Writer::new(1);
    for number in 1..=loans {
        writer.look(&shared.control).unwrap();
        writer.lend(&shared.control, 1, number, 10 * number);
        if writer.publish(&shared.control) {
            shared.for_reader.ring();
        }
        wait(&shared.for_writer, shared.control.writer(), || writer.released(&shared.control) == number);
    }
}

/// A writer that waits for the release of what it lent is woken, and no loan is seen before it is written down, also
/// where another one stood.
#[test]
fn a_writer_is_woken_when_what_it_lent_was_read() {
    model(Some(4), || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || lend(&other, 2));
        let mut reader = Reader::new(1);
        for number in 1..=2 {
            wait(&shared.for_reader, shared.control.reader(), || {
                reader.look(&shared.control).unwrap();
                reader.available() > 0
            });
            let loan = Loan { start: number - 1, len: 1, region: number, offset: 10 * number };
            assert_eq!(reader.loan(), Some(loan));
            if reader.release(1, &shared.control) {
                shared.for_writer.ring();
            }
        }
        writer.join().unwrap();
    });
}

/// Whoever sees a position sees the loans below it, and takes no byte of them from the ring.
#[test]
fn loans_are_there_before_the_position_behind_them() {
    model(None, || {
        let shared = shared();
        let lent = Arc::new(loom::cell::UnsafeCell::new(0_u8));
        let (other, into) = (Arc::clone(&shared), Arc::clone(&lent));
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(1);
            writer.wrote(1);
            let _ = writer.publish(&other.control);
            into.with_mut(|_| ());
            writer.lend(&other.control, 2, 7, 3);
            let _ = writer.publish(&other.control);
        });
        let mut reader = Reader::new(1);
        reader.look(&shared.control).unwrap();
        if reader.available() > 0 {
            assert_eq!((reader.available(), reader.loan()), (1, None));
            let _ = reader.release(1, &shared.control);
            reader.look(&shared.control).unwrap();
        }
        if reader.available() > 0 {
            assert_eq!(reader.loan(), Some(Loan { start: 1, len: 2, region: 7, offset: 3 }));
            lent.with(|_| ());
        }
        writer.join().unwrap();
    });
}

/// What is read of memory after that was taken back and written to does not count.
#[test]
fn who_reads_what_was_written_after_a_revocation_sees_that_too() {
    model(None, || {
        let shared = shared();
        let memory = Arc::new(AtomicU32::new(0));
        let (other, into) = (Arc::clone(&shared), Arc::clone(&memory));
        let writer = thread::spawn(move || {
            other.control.revoke();
            into.store(1, Ordering::Relaxed);
        });
        let read = memory.load(Ordering::Relaxed);
        assert!(read == 0 || shared.control.is_revoked());
        writer.join().unwrap();
    });
}
