use super::control::{ReaderShared, SharedProof, WriterShared, WriterStatus};
use super::*;
use crate::fast_boxes::BoxPlace;

/// Both sides of a ring and its boxes.
struct Sides {
    control: Control,
    boxes: Box<FastBoxes>,
    writer: Writer,
    reader: Reader,
}

impl Sides {
    fn new(capacity: usize) -> Self {
        let (control, boxes) = (Control::new(), FastBoxes::new());
        let (mut writer, reader) = (Writer::new(capacity), Reader::new(capacity));
        writer.open_boxes(&control);
        Self { control, boxes, writer, reader }
    }

    /// Posts a message into a box of the size for it.
    fn post(&mut self, len: usize, head: u64) -> bool {
        let size = BoxSize::of(len).unwrap();
        self.writer.post(&self.control, &self.boxes, size, len, head)
    }
}

#[test]
fn the_fields_have_the_offsets_of_the_format() {
    assert_eq!(std::mem::offset_of!(Control, written), 0);
    assert_eq!(std::mem::offset_of!(Control, read), 128);
    assert_eq!(std::mem::offset_of!(Control, reader), 256);
    assert_eq!(std::mem::offset_of!(Control, writer), 384);
    assert_eq!(std::mem::offset_of!(Control, slots), 512);
    assert_eq!(std::mem::offset_of!(WriterShared, has_boxes), 28);
    assert_eq!(
        (std::mem::offset_of!(WriterShared, descriptors), std::mem::offset_of!(WriterShared, revoked)),
        (8, 16)
    );
    assert_eq!(
        (std::mem::offset_of!(ReaderShared, head), std::mem::offset_of!(ReaderShared, reads_by_cma)),
        (0, 8)
    );
    assert_eq!(
        (std::mem::offset_of!(WriterStatus, wakeup), std::mem::offset_of!(WriterStatus, proof)),
        (0, 8)
    );
    assert_eq!(
        (std::mem::offset_of!(SharedProof, address), std::mem::offset_of!(SharedProof, number)),
        (0, 8)
    );
    assert_eq!(align_of::<Control>(), 128);
}

#[test]
fn space_and_available_bytes_follow_from_the_positions() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(16);
    assert_eq!((writer.space(), reader.available()), (16, 0));
    writer.advance(10);
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!((writer.space(), reader.available()), (6, 0), "nothing is there before it is published");
    assert!(!writer.publish(&control));
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!(reader.available(), 10);
    assert!(!reader.release(4, &control));
    assert_eq!(writer.space(), 6, "nothing changes before a refresh");
    writer.refresh(&control).unwrap();
    assert_eq!((writer.space(), reader.available(), reader.ring_position()), (10, 6, 4));
    assert!(!reader.release(100, &control));
    assert_eq!((reader.available(), reader.ring_position()), (0, 10));
}

#[test]
fn only_a_sleeper_is_notified_and_only_once() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(16);
    control.reader().prepare_sleep();
    assert!(!writer.publish(&control), "nothing was written");
    writer.advance(1);
    assert!(writer.publish(&control));
    writer.advance(1);
    assert!(!writer.publish(&control));
    control.writer().prepare_sleep();
    control.writer().clear();
    reader.refresh(&control, &boxes).unwrap();
    assert!(!reader.release(2, &control));
    control.writer().prepare_sleep();
    assert!(!reader.release(0, &control), "nothing was released");
    writer.advance(2);
    let _ = writer.publish(&control);
    reader.refresh(&control, &boxes).unwrap();
    assert!(reader.release(2, &control));
}

#[test]
fn little_space_is_published_only_when_the_ring_is_empty() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(64);
    writer.advance(20);
    let _ = writer.publish(&control);
    reader.refresh(&control, &boxes).unwrap();
    control.writer().prepare_sleep();
    assert!(!reader.release(7, &control));
    writer.refresh(&control).unwrap();
    assert_eq!(writer.space(), 44);
    assert!(reader.release(1, &control), "an eighth of the ring");
    writer.refresh(&control).unwrap();
    assert_eq!(writer.space(), 52);
    control.writer().prepare_sleep();
    assert!(!reader.release(3, &control));
    assert!(reader.publish(&control));
    writer.refresh(&control).unwrap();
    assert_eq!(writer.space(), 55);
    control.writer().prepare_sleep();
    assert!(!reader.publish(&control), "nothing new");
}

#[test]
fn invalid_positions_are_errors() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(16);
    writer.advance(8);
    let _ = writer.publish(&control);
    reader.refresh(&control, &boxes).unwrap();
    let _ = reader.release(5, &control);
    for tail in [7, 22, u64::MAX, 0, 1 << 63] {
        control.overwrite(Some(tail), None);
        let error = reader.refresh(&control, &boxes).unwrap_err();
        assert_eq!(error, InvalidPosition { found: tail, least: 8, most: 21 });
        assert_eq!(reader.available(), 3);
    }
    control.overwrite(Some(21), None);
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!(reader.available(), 16);
    writer.refresh(&control).unwrap();
    for head in [4, 9, u64::MAX, 0, 1 << 63] {
        control.overwrite(None, Some(head));
        let error = writer.refresh(&control).unwrap_err();
        assert_eq!(error, InvalidPosition { found: head, least: 5, most: 8 });
        assert_eq!(writer.space(), 13);
    }
}

#[test]
fn messages_in_boxes_are_available_although_the_tail_has_not_moved() {
    let mut sides = Sides::new(1 << 14);
    for (number, len) in [1, 33, 40, 500, 31, 2000, 4700].into_iter().enumerate() {
        sides.reader.refresh(&sides.control, &sides.boxes).unwrap();
        assert!(sides.reader.is_drained(&sides.control, &sides.boxes));
        let start = sides.writer.position();
        assert!(!sides.post(len, number as u64));
        assert!(!sides.reader.is_drained(&sides.control, &sides.boxes));
        let Sides { control, boxes, reader, .. } = &mut sides;
        let taken =
            if len % 2 == 0 { reader.take_boxed(boxes) } else { reader.refresh(control, boxes).unwrap() };
        assert_eq!(taken.unwrap().position(100), number as u64);
        assert_eq!((reader.available(), control.written.0.tail.load(Ordering::Relaxed)), (len, 0));
        let message = reader.boxed().unwrap();
        assert_eq!((message.start, message.end), (start, start + len as u64));
        assert!(reader.take_boxed(boxes).is_none());
        let _ = reader.release(len, control);
        assert!(reader.boxed().is_none());
    }
    sides.control.reader().prepare_sleep();
    assert!(sides.post(70, 0), "the reader sleeps");
}

#[test]
fn a_reader_looks_into_no_box_before_they_were_allocated() {
    let (control, boxes, mut reader) = (Control::new(), FastBoxes::new(), Reader::new(16));
    boxes.overwrite(BoxSize::Tiny, 0, 5, 5, 0);
    assert!(reader.is_drained(&control, &boxes) && reader.take_boxed(&boxes).is_none());
    assert_eq!((reader.refresh(&control, &boxes), reader.available()), (Ok(None), 0));
    Writer::new(16).open_boxes(&control);
    assert!(!reader.is_drained(&control, &boxes));
    assert!(reader.refresh(&control, &boxes).unwrap().is_some());
    assert_eq!(reader.available(), 5);
}

/// The place of a piece of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Ring(u64),
    Boxed(BoxPlace, u64, u64),
    Described(u64),
}

/// A drawn number below a bound.
fn below(bound: usize) -> usize {
    fastrand::usize(..bound)
}

/// Writes a piece, anywhere where it is possible, and returns its place and length.
fn write_piece(sides: &mut Sides) -> Option<(Place, usize)> {
    let Sides { control, boxes, writer, .. } = sides;
    writer.refresh(control).unwrap();
    let len = 1 + [below(100), below(1100), below(4700)][below(3)];
    let size = BoxSize::of(len).unwrap();
    match below(4) {
        0 if writer.has_free_descriptor() => {
            let number = fastrand::u64(..);
            writer.push_descriptor(control, len, number, 0);
            Some((Place::Described(number), len))
        }
        1 if writer.space() >= len => {
            let place = Place::Ring(writer.ring_position());
            writer.advance(len);
            Some((place, len))
        }
        2 | 3 if writer.space() >= len && writer.has_free_box(size) => {
            let (place, start) = (writer.outbox().place(size), writer.position());
            let _ = writer.post(control, boxes, size, len, 0);
            Some((Place::Boxed(place, start, start + len as u64), len))
        }
        _ => None,
    }
}

/// Every byte is read from its place, in the order of the stream, however far the reader lags
/// behind, and no box is used again before its message was read.
#[test]
fn pieces_in_rings_boxes_and_descriptors_arrive_in_order() {
    for seed in 0..300 {
        fastrand::seed(seed);
        let mut sides = Sides::new(1 << 14);
        let mut written = std::collections::VecDeque::new();
        for _ in 0..400 {
            for _ in 0..below(8) {
                if let Some((place, len)) = write_piece(&mut sides) {
                    let is_taken = |(other, _): &(Place, usize)| match (other, place) {
                        (Place::Boxed(other, ..), Place::Boxed(new, ..)) => *other == new,
                        _ => false,
                    };
                    assert!(!written.iter().any(is_taken), "a box in use");
                    written.push_back((place, len));
                }
            }
            let is_published = below(4) > 0 && {
                let _ = sides.writer.publish(&sides.control);
                true
            };
            let Sides { control, boxes, reader, .. } = &mut sides;
            for _ in 0..below(12) {
                if reader.available() == 0 && reader.take_boxed(boxes).is_none() {
                    reader.refresh(control, boxes).unwrap();
                }
                let available = reader.available();
                if available == 0 {
                    assert!(!is_published || written.is_empty(), "all published bytes are available");
                    let _ = reader.publish(control);
                    break;
                }
                let (place, len) = *written.front().unwrap();
                let found = match (reader.descriptor(), reader.boxed()) {
                    (Some(descriptor), None) => Place::Described(descriptor.region),
                    (None, Some(message)) => Place::Boxed(message.place, message.start, message.end),
                    (None, None) => Place::Ring(reader.ring_position()),
                    (Some(_), Some(_)) => panic!("in two places"),
                };
                assert_eq!(found, place);
                // Pieces in the ring may be read together.
                let read = if matches!(place, Place::Ring(_)) { available.min(len) } else { available };
                assert_eq!(read, len);
                let _ = reader.release(read, control);
                written.pop_front();
            }
        }
    }
}

/// Two streams, one in each direction.
#[test]
fn the_other_side_learns_from_a_message_which_boxes_are_free() {
    let (mut there, mut back) = (Sides::new(1 << 14), Sides::new(1 << 14));
    for _ in 0..100 {
        assert!(there.writer.has_free_box(BoxSize::Large));
        for _ in 0..2 {
            let _ = there.post(4000, 0);
        }
        assert!(!there.writer.has_free_box(BoxSize::Large));
        assert_eq!(there.writer.space(), (1 << 14) - 8000);
        for _ in 0..2 {
            let Sides { control, boxes, reader, .. } = &mut there;
            reader.refresh(control, boxes).unwrap();
            let _ = reader.release(4000, control);
        }
        let _ = back.post(4, there.reader.position());
        let acknowledged = back.reader.refresh(&back.control, &back.boxes).unwrap().unwrap();
        let _ = back.reader.release(4, &back.control);
        there.writer.acknowledge(acknowledged);
        assert_eq!(there.writer.space(), 1 << 14);
    }
    let old = there.writer.position();
    let _ = there.post(4000, 0);
    there.writer.refresh(&there.control).unwrap();
    assert_eq!(there.writer.space(), (1 << 14) - 4000, "the published position may be older");
    for head in [0, 1, old - 1, old + 4001, u64::MAX] {
        let _ = back.post(4, head);
        let acknowledged = back.reader.refresh(&back.control, &back.boxes).unwrap().unwrap();
        let _ = back.reader.release(4, &back.control);
        there.writer.acknowledge(acknowledged);
        assert_eq!(there.writer.space(), (1 << 14) - 4000, "{head} is old or impossible");
    }
}

/// A writer that receives nothing learns from the published head which boxes are free.
#[test]
fn a_reader_publishes_that_it_has_read_half_of_the_boxes_of_a_size() {
    for (len, published) in [(4, 8), (1000, 1), (4000, 1)] {
        let mut sides = Sides::new(1 << 20);
        sides.control.writer().prepare_sleep();
        for number in 1..=published {
            let _ = sides.post(len, 0);
            sides.reader.refresh(&sides.control, &sides.boxes).unwrap();
            assert_eq!(sides.reader.release(len, &sides.control), number == published, "{len} {number}");
        }
    }
}

#[test]
fn a_message_after_a_descriptor_also_publishes_the_descriptor() {
    let mut sides = Sides::new(16);
    sides.writer.push_descriptor(&sides.control, 1000, 7, 3);
    let _ = sides.post(6, 0);
    let Sides { control, boxes, reader, .. } = &mut sides;
    reader.refresh(control, boxes).unwrap();
    assert_eq!((reader.available(), reader.claimed()), (1000, 1006));
}

#[test]
fn a_reader_that_sleeps_is_woken_once_for_what_a_message_publishes_with_it() {
    let mut sides = Sides::new(1024);
    sides.writer.advance(10);
    sides.control.reader().prepare_sleep();
    assert!(sides.post(6, 0));
}

#[test]
fn invalid_headers_of_boxes_are_errors() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(64);
    writer.advance(8);
    let _ = writer.publish(&control);
    reader.refresh(&control, &boxes).unwrap();
    let _ = reader.release(5, &control);
    for (end, len) in [(70, 1), (u64::MAX, 1), (1 << 63, 100)] {
        boxes.overwrite(BoxSize::Tiny, 0, end, len, 0);
        let error = reader.refresh(&control, &boxes).unwrap_err();
        assert_eq!(error, InvalidPosition { found: end, least: 8, most: 69 });
        assert_eq!(reader.available(), 3);
    }
    boxes.overwrite(BoxSize::Tiny, 0, 10, 9, 0);
    let error = reader.refresh(&control, &boxes).unwrap_err();
    assert_eq!(error, InvalidPosition { found: 1, least: 5, most: 10 }, "a message that was read in part");
    // An old message.
    boxes.overwrite(BoxSize::Tiny, 0, 5, 2, 0);
    assert_eq!((reader.refresh(&control, &boxes), reader.available()), (Ok(None), 3));
}

/// A message and a descriptor of the same bytes.
#[test]
fn boxes_and_descriptors_that_overlap_are_errors() {
    for (start, len) in [(0, 5), (2, 5), (9, 50)] {
        let Sides { control, boxes, mut writer, mut reader } = Sides::new(64);
        let _ = writer.post(&control, &boxes, BoxSize::Tiny, 10, 0);
        control.overwrite_descriptor(0, Descriptor { start, len, region: 7, offset: 0 }, 1);
        assert!(reader.refresh(&control, &boxes).is_err(), "{start} {len}");
    }
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(64);
    let _ = writer.post(&control, &boxes, BoxSize::Tiny, 10, 0);
    reader.refresh(&control, &boxes).unwrap();
    let _ = reader.release(4, &control);
    control.overwrite_descriptor(0, Descriptor { start: 4, len: 1, region: 7, offset: 0 }, 1);
    assert!(reader.refresh(&control, &boxes).is_err(), "in the rest of a message");
}

#[test]
fn bytes_with_descriptors_take_no_space_and_are_released_whole() {
    let Sides { control, boxes, mut writer, mut reader } = Sides::new(16);
    writer.advance(10);
    writer.push_descriptor(&control, 1000, 7, 3);
    writer.advance(6);
    let _ = writer.publish(&control);
    assert_eq!((writer.space(), writer.position(), writer.ring_position()), (0, 1016, 16));
    assert_eq!(writer.released(&control), 10);
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!((reader.available(), reader.descriptor(), reader.claimed()), (10, None, 1016));
    let _ = reader.release(10, &control);
    assert_eq!(reader.available(), 0, "a descriptor needs a refresh");
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!(reader.descriptor(), Some(Descriptor { start: 10, len: 1000, region: 7, offset: 3 }));
    control.writer().prepare_sleep();
    assert!(!reader.release(999, &control), "a descriptor is released whole");
    assert_eq!(reader.descriptor(), Some(Descriptor { start: 1009, len: 1, region: 7, offset: 1002 }));
    writer.refresh(&control).unwrap();
    assert_eq!((writer.space(), writer.released(&control)), (10, 10));
    assert!(reader.has_unread(&control, 7) && !reader.has_unread(&control, 8));
    assert!(reader.release(1, &control));
    assert!(!reader.has_unread(&control, 7));
    assert_eq!(writer.released(&control), 1016, "without a refresh");
    reader.refresh(&control, &boxes).unwrap();
    assert_eq!((reader.available(), reader.descriptor(), reader.ring_position()), (6, None, 10));
    let _ = reader.release(6, &control);
    writer.refresh(&control).unwrap();
    assert_eq!(writer.space(), 16);
}
