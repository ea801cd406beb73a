//! Tests that neither side of a ring misses a wakeup in any interleaving of the two.

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;
use crate::sync::AtomicU32;
use crate::wakeup::WakeupFlag;
use crate::window::Window;

/// A notification, as on a socket: it stays until it is cleared.
struct Notify(Mutex<bool>, Condvar);

/// The state that the two sides share.
struct Shared {
    control: Control,
    boxes: Box<FastBoxes>,
    /// Wakes the reader; the next one wakes the writer.
    for_reader: Notify,
    for_writer: Notify,
}

impl Notify {
    fn new() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }

    fn notify(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn clear(&self) {
        *self.0.lock().unwrap() = false;
    }

    /// Sleeps until it is notified. A missed wakeup is a deadlock, which loom reports.
    fn sleep(&self) {
        let mut is_set = self.0.lock().unwrap();
        while !*is_set {
            is_set = self.1.wait(is_set).unwrap();
        }
    }
}

/// Tries every interleaving with up to this many preemptions, or LOOM_MAX_PREEMPTIONS; `None` means
/// all of them.
fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.max_branches = 10_000;
    builder.check(body);
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        control: Control::new(),
        boxes: FastBoxes::new(),
        for_reader: Notify::new(),
        for_writer: Notify::new(),
    })
}

/// Waits as a transport does: clear, prepare to sleep, fence, check, sleep.
fn wait(notify: &Notify, wakeup: &WakeupFlag, mut ready: impl FnMut() -> bool) {
    while !ready() {
        notify.clear();
        wakeup.prepare_sleep();
        crate::wakeup::fence().unwrap();
        if ready() {
            wakeup.clear();
            return;
        }
        notify.sleep();
        wakeup.clear();
    }
}

/// The way in which a writer makes bytes known.
#[derive(Clone, Copy)]
enum Notice {
    Tail,
    Box,
}

impl Notice {
    /// Writes a byte. Returns whether the reader must be notified.
    fn write(self, writer: &mut Writer, shared: &Shared) -> bool {
        match self {
            Self::Tail => {
                writer.advance(1);
                writer.publish(&shared.control)
            }
            Self::Box => {
                if !writer.has_boxes() {
                    writer.open_boxes(&shared.control);
                }
                writer.post(&shared.control, &shared.boxes, BoxSize::Tiny, 1, 0)
            }
        }
    }
}

/// Writes bytes, one by one, into a ring of one byte.
fn write(shared: &Shared, bytes: usize, notice: Notice) {
    let mut writer = Writer::new(1);
    for _ in 0..bytes {
        wait(&shared.for_writer, shared.control.writer(), || {
            writer.refresh(&shared.control).unwrap();
            writer.space() > 0
        });
        if notice.write(&mut writer, shared) {
            shared.for_reader.notify();
        }
    }
}

/// Reads bytes.
fn read(shared: &Shared, bytes: usize) {
    let mut reader = Reader::new(1);
    for _ in 0..bytes {
        wait(&shared.for_reader, shared.control.reader(), || {
            reader.refresh(&shared.control, &shared.boxes).unwrap();
            reader.available() > 0
        });
        if reader.release(1, &shared.control) {
            shared.for_writer.notify();
        }
    }
}

#[test]
fn a_reader_is_woken() {
    for notice in [Notice::Tail, Notice::Box] {
        model(None, move || {
            let shared = shared();
            let other = Arc::clone(&shared);
            let writer = thread::spawn(move || write(&other, 1, notice));
            read(&shared, 1);
            writer.join().unwrap();
        });
    }
}

#[test]
fn a_writer_is_woken_when_there_is_space() {
    for notice in [Notice::Tail, Notice::Box] {
        model(Some(4), move || {
            let shared = shared();
            let other = Arc::clone(&shared);
            let writer = thread::spawn(move || write(&other, 2, notice));
            read(&shared, 2);
            writer.join().unwrap();
        });
    }
}

/// Either the writer finds the window closed, or its owner sees that it may be writing.
#[test]
fn nothing_is_put_into_a_window_that_was_closed_while_nobody_wrote() {
    model(None, || {
        let (shared, memory) = (shared(), Arc::new(AtomicU32::new(0)));
        shared.control.open_window(Window { call: 1, region: 1, start: 0, len: 1 });
        let (other, into) = (Arc::clone(&shared), Arc::clone(&memory));
        let writer = thread::spawn(move || {
            other.control.put(1, || {
                into.store(1, Ordering::Relaxed);
                true
            })
        });
        if shared.control.close_window() {
            writer.join().unwrap();
        } else {
            let before = memory.load(Ordering::Relaxed);
            let has_put = writer.join().unwrap();
            assert_eq!(memory.load(Ordering::Relaxed), before);
            assert_eq!(has_put, before == 1);
        }
    });
}

#[test]
fn a_sleeper_is_woken_again_after_a_spurious_wakeup() {
    model(Some(4), || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || write(&other, 1, Notice::Tail));
        // A notification for another reason, as if another peer had sent something.
        let third = Arc::clone(&shared);
        let neighbour = thread::spawn(move || third.for_reader.notify());
        read(&shared, 1);
        writer.join().unwrap();
        neighbour.join().unwrap();
    });
}

/// Bytes that were written before a position was published, by the tail or in a box, are visible
/// when the position is.
#[test]
fn bytes_are_visible_before_their_position() {
    for notice in [Notice::Tail, Notice::Box] {
        model(None, move || {
            let shared = shared();
            let byte = Arc::new(loom::cell::UnsafeCell::new(0_u8));
            let (other, into) = (Arc::clone(&shared), Arc::clone(&byte));
            let mut writer = Writer::new(1);
            writer.open_boxes(&shared.control);
            let writer = thread::spawn(move || {
                into.with_mut(|_| ());
                notice.write(&mut writer, &other);
            });
            let mut reader = Reader::new(1);
            reader.refresh(&shared.control, &shared.boxes).unwrap();
            if reader.available() > 0 || reader.take_boxed(&shared.boxes).is_some() {
                byte.with(|_| ());
            }
            writer.join().unwrap();
        });
    }
}

/// A box is written again only after its message was read: the writer knows this from the published
/// head, or from a message of the reader.
#[test]
fn a_box_is_used_again_once_its_message_was_read() {
    for acknowledges in [false, true] {
        model(Some(3), move || {
            let (there, back) = (shared(), shared());
            let byte = Arc::new(loom::cell::UnsafeCell::new(0_u8));
            let (there2, back2, from) = (Arc::clone(&there), Arc::clone(&back), Arc::clone(&byte));
            let other = thread::spawn(move || {
                let (mut reader, mut writer) = (Reader::new(8), Writer::new(8));
                reader.refresh(&there2.control, &there2.boxes).unwrap();
                if reader.available() == 0 {
                    return;
                }
                from.with(|_| ());
                let _ = reader.release(1, &there2.control);
                if acknowledges {
                    writer.open_boxes(&back2.control);
                    let _ = writer.post(&back2.control, &back2.boxes, BoxSize::Tiny, 1, reader.position());
                } else {
                    let _ = reader.publish(&there2.control);
                }
            });
            let (mut writer, mut reader) = (Writer::new(8), Reader::new(8));
            byte.with_mut(|_| ());
            Notice::Box.write(&mut writer, &there);
            if acknowledges {
                if let Some(acknowledged) = reader.refresh(&back.control, &back.boxes).unwrap() {
                    writer.acknowledge(acknowledged);
                }
            } else {
                writer.refresh(&there.control).unwrap();
            }
            if writer.has_free_box(BoxSize::Tiny) {
                byte.with_mut(|_| ());
            }
            other.join().unwrap();
        });
    }
}

/// A reader that sees a position sees the boxes of all bytes before it, and takes none of them from
/// the ring.
#[test]
fn messages_in_boxes_are_visible_before_the_position_after_them() {
    for is_last_in_ring in [false, true] {
        model(Some(4), move || {
            let shared = shared();
            let other = Arc::clone(&shared);
            let writer = thread::spawn(move || {
                let mut writer = Writer::new(16);
                Notice::Box.write(&mut writer, &other);
                if is_last_in_ring {
                    Notice::Tail.write(&mut writer, &other);
                } else {
                    let _ = writer.post(&other.control, &other.boxes, BoxSize::Small, 1, 0);
                }
            });
            let mut reader = Reader::new(16);
            for start in 0..2 {
                reader.refresh(&shared.control, &shared.boxes).unwrap();
                if reader.available() == 0 {
                    break;
                }
                assert_eq!((reader.available(), reader.position()), (1, start));
                let is_boxed = reader.boxed().is_some_and(|message| message.start == start);
                assert_eq!(is_boxed, start == 0 || !is_last_in_ring);
                let _ = reader.release(1, &shared.control);
            }
            writer.join().unwrap();
        });
    }
}

/// Sends descriptors of one byte each, and waits after each one until it has been read.
fn publish(shared: &Shared, descriptors: u64) {
    let mut writer = Writer::new(1);
    for number in 1..=descriptors {
        writer.refresh(&shared.control).unwrap();
        writer.push_descriptor(&shared.control, 1, number, 10 * number);
        if writer.publish(&shared.control) {
            shared.for_reader.notify();
        }
        wait(&shared.for_writer, shared.control.writer(), || writer.released(&shared.control) == number);
    }
}

/// A writer that waits for the release of a descriptor is woken, and no descriptor is read before
/// it is written, also in a slot that was used before.
#[test]
fn a_writer_is_woken_when_its_descriptor_was_read() {
    model(Some(4), || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || publish(&other, 2));
        let mut reader = Reader::new(1);
        for number in 1..=2 {
            wait(&shared.for_reader, shared.control.reader(), || {
                reader.refresh(&shared.control, &shared.boxes).unwrap();
                reader.available() > 0
            });
            let descriptor = Descriptor { start: number - 1, len: 1, region: number, offset: 10 * number };
            assert_eq!(reader.descriptor(), Some(descriptor));
            if reader.release(1, &shared.control) {
                shared.for_writer.notify();
            }
        }
        writer.join().unwrap();
    });
}

/// A reader that sees a position sees the descriptors below it, and takes none of their bytes from
/// the ring.
#[test]
fn descriptors_are_visible_before_the_position_after_them() {
    model(None, || {
        let shared = shared();
        let memory = Arc::new(loom::cell::UnsafeCell::new(0_u8));
        let (other, into) = (Arc::clone(&shared), Arc::clone(&memory));
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(1);
            writer.advance(1);
            let _ = writer.publish(&other.control);
            into.with_mut(|_| ());
            writer.push_descriptor(&other.control, 2, 7, 3);
            let _ = writer.publish(&other.control);
        });
        let mut reader = Reader::new(1);
        reader.refresh(&shared.control, &shared.boxes).unwrap();
        if reader.available() > 0 {
            assert_eq!((reader.available(), reader.descriptor()), (1, None));
            let _ = reader.release(1, &shared.control);
            reader.refresh(&shared.control, &shared.boxes).unwrap();
        }
        if reader.available() > 0 {
            assert_eq!(reader.descriptor(), Some(Descriptor { start: 1, len: 2, region: 7, offset: 3 }));
            memory.with(|_| ());
        }
        writer.join().unwrap();
    });
}

/// Bytes that are read from memory after it was revoked and overwritten do not count.
#[test]
fn a_reader_of_bytes_written_after_a_revocation_sees_the_revocation() {
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
