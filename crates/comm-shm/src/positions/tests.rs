use super::control::{ReaderShared, SharedProof, WriterShared, WriterStatus};
use super::*;

#[test]
fn the_fields_have_the_offsets_of_the_format() {
    assert_eq!(std::mem::offset_of!(Control, written), 0);
    assert_eq!(std::mem::offset_of!(Control, read), 128);
    assert_eq!(std::mem::offset_of!(Control, reader), 256);
    assert_eq!(std::mem::offset_of!(Control, writer), 384);
    assert_eq!(std::mem::offset_of!(Control, slots), 512);
    assert_eq!(std::mem::offset_of!(Control, announcements), 1536);
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
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    assert_eq!((writer.space(), reader.available()), (16, 0));
    writer.advance(10);
    reader.refresh(&control).unwrap();
    assert_eq!((writer.space(), reader.available()), (6, 0), "nothing is there before it is published");
    assert!(!writer.publish(&control));
    reader.refresh(&control).unwrap();
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
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    control.reader().prepare_sleep();
    assert!(!writer.publish(&control), "nothing was written");
    writer.advance(1);
    assert!(writer.publish(&control));
    writer.advance(1);
    assert!(!writer.publish(&control));
    control.writer().prepare_sleep();
    control.writer().clear();
    reader.refresh(&control).unwrap();
    assert!(!reader.release(2, &control));
    control.writer().prepare_sleep();
    assert!(!reader.release(0, &control), "nothing was released");
    writer.advance(2);
    let _ = writer.publish(&control);
    reader.refresh(&control).unwrap();
    assert!(reader.release(2, &control));
}

#[test]
fn little_space_is_published_only_when_the_ring_is_empty() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(64), Reader::new(64));
    writer.advance(20);
    let _ = writer.publish(&control);
    reader.refresh(&control).unwrap();
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
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    writer.advance(8);
    let _ = writer.publish(&control);
    reader.refresh(&control).unwrap();
    let _ = reader.release(5, &control);
    for tail in [7, 22, u64::MAX, 0, 1 << 63] {
        control.overwrite(Some(tail), None);
        let error = reader.refresh(&control).unwrap_err();
        assert_eq!(error, InvalidPosition { found: tail, least: 8, most: 21 });
        assert_eq!(reader.available(), 3);
    }
    control.overwrite(Some(21), None);
    reader.refresh(&control).unwrap();
    assert_eq!(reader.available(), 16);
    writer.refresh(&control).unwrap();
    for head in [4, 9, u64::MAX, 0, 1 << 63] {
        control.overwrite(None, Some(head));
        let error = writer.refresh(&control).unwrap_err();
        assert_eq!(error, InvalidPosition { found: head, least: 5, most: 8 });
        assert_eq!(writer.space(), 13);
    }
}

/// Announces the next bytes without a copy.
fn announce(writer: &mut Writer, control: &Control, bytes: usize) -> bool {
    writer.advance(bytes);
    writer.announce(control, None)
}

#[test]
fn announced_bytes_are_available_although_the_tail_has_not_moved() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(1024), Reader::new(1024));
    for bytes in [1, 33, 40, 500, 31, 100] {
        assert!(reader.is_drained(&control));
        assert!(!announce(&mut writer, &control, bytes));
        assert!(!reader.is_drained(&control));
        reader.refresh(&control).unwrap();
        assert_eq!((reader.available(), control.written.0.tail.load(Ordering::Relaxed)), (bytes, 0));
        assert!(!reader.release(bytes, &control));
    }
    writer.advance(50);
    let _ = writer.publish(&control);
    let _ = announce(&mut writer, &control, 60);
    reader.refresh(&control).unwrap();
    assert_eq!(reader.available(), 50, "the next announcement is beyond the tail");
    reader.refresh(&control).unwrap();
    assert_eq!(reader.available(), 110);
    control.reader().prepare_sleep();
    assert!(announce(&mut writer, &control, 70), "the reader sleeps");
}

/// A line is used again for later messages, which also announce the ones before them.
#[test]
fn a_reader_that_lags_behind_misses_no_announcement() {
    for lag in 1..40 {
        let (control, mut writer, mut reader) = (Control::new(), Writer::new(4096), Reader::new(4096));
        let mut inline = InlineMessage::empty();
        for number in 0..1000 {
            let bytes = [number as u8; INLINE_BYTES_MAX];
            writer.refresh(&control).unwrap();
            writer.advance(40);
            let _ = writer.announce(&control, Some((&bytes, 40)));
            if number % lag < lag - 1 {
                continue;
            }
            let mut received = 0;
            while !reader.is_drained(&control) {
                if reader.recv_inline(&control, &mut inline) {
                    let number = reader.position() / 40;
                    assert_eq!(inline.get(reader.position(), 40), Some(&[number as u8; 40][..]));
                } else {
                    reader.refresh(&control).unwrap();
                }
                received += reader.available();
                let _ = reader.release(usize::MAX, &control);
            }
            assert_eq!((received, reader.position()), (40 * lag, writer.position()));
            let _ = reader.publish(&control);
        }
    }
}

#[test]
fn an_announcement_after_a_descriptor_also_counts_the_descriptor() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    writer.push_descriptor(&control, 1000, 7, 3);
    let _ = announce(&mut writer, &control, 6);
    reader.refresh(&control).unwrap();
    assert_eq!((reader.available(), reader.claimed()), (1000, 1006));
}

#[test]
fn invalid_announcements_are_errors() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    let _ = announce(&mut writer, &control, 8);
    reader.refresh(&control).unwrap();
    let _ = reader.release(5, &control);
    for end in [22, u64::MAX, 1 << 63] {
        control.announcements().of(8).announce(end);
        let error = reader.refresh(&control).unwrap_err();
        assert_eq!(error, InvalidPosition { found: end, least: 8, most: 21 });
        assert_eq!(reader.available(), 3);
    }
    // An old announcement on the same line.
    control.announcements().of(8).announce(7);
    reader.refresh(&control).unwrap();
    assert_eq!(reader.available(), 3);
}

#[test]
fn bytes_with_descriptors_take_no_space_and_are_released_whole() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    writer.advance(10);
    writer.push_descriptor(&control, 1000, 7, 3);
    writer.advance(6);
    let _ = writer.publish(&control);
    assert_eq!((writer.space(), writer.position(), writer.ring_position()), (0, 1016, 16));
    assert_eq!(writer.released(&control), 10);
    reader.refresh(&control).unwrap();
    assert_eq!((reader.available(), reader.descriptor(), reader.claimed()), (10, None, 1016));
    let _ = reader.release(10, &control);
    assert_eq!(reader.available(), 0, "a descriptor needs a refresh");
    reader.refresh(&control).unwrap();
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
    reader.refresh(&control).unwrap();
    assert_eq!((reader.available(), reader.descriptor(), reader.ring_position()), (6, None, 10));
    let _ = reader.release(6, &control);
    writer.refresh(&control).unwrap();
    assert_eq!(writer.space(), 16);
}
