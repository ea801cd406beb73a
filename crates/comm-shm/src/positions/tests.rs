use super::*;

#[test]
fn the_parts_of_the_control_lie_where_the_format_says() {
    assert_eq!(std::mem::offset_of!(Control, written), 0);
    assert_eq!(std::mem::offset_of!(Control, read), 128);
    assert_eq!(std::mem::offset_of!(Control, reader), 256);
    assert_eq!(std::mem::offset_of!(Control, writer), 384);
    assert_eq!(std::mem::offset_of!(Control, board), 512);
    assert_eq!((std::mem::offset_of!(Written, near), std::mem::offset_of!(Written, far)), (8, 80));
    assert_eq!((std::mem::offset_of!(Written, loans), std::mem::offset_of!(Written, revoked)), (64, 72));
    assert_eq!((std::mem::offset_of!(Read, head), std::mem::offset_of!(Read, fetches)), (0, 8));
    assert_eq!((std::mem::offset_of!(Sender, doze), std::mem::offset_of!(Sender, proof)), (0, 8));
    assert_eq!(
        (std::mem::offset_of!(SharedProof, address), std::mem::offset_of!(SharedProof, number)),
        (0, 8)
    );
    assert_eq!(align_of::<Control>(), 128);
}

#[test]
fn room_and_bytes_follow_the_positions() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    assert_eq!((writer.room(), reader.available()), (16, 0));
    writer.wrote(10);
    reader.look(&control).unwrap();
    assert_eq!((writer.room(), reader.available()), (6, 0), "nothing is there before it is published");
    assert!(!writer.publish(&control));
    reader.look(&control).unwrap();
    assert_eq!(reader.available(), 10);
    assert!(!reader.release(4, &control));
    assert_eq!(writer.room(), 6, "nothing changes before the writer looks");
    writer.look(&control).unwrap();
    assert_eq!((writer.room(), reader.available(), reader.ring_position()), (10, 6, 4));
    assert!(!reader.release(100, &control));
    assert_eq!((reader.available(), reader.ring_position()), (0, 10));
}

#[test]
fn only_a_sleeper_is_rung_for_and_only_once() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    control.reader().lie_down();
    assert!(!writer.publish(&control), "nothing was written");
    writer.wrote(1);
    assert!(writer.publish(&control));
    writer.wrote(1);
    assert!(!writer.publish(&control));
    control.writer().lie_down();
    control.writer().get_up();
    reader.look(&control).unwrap();
    assert!(!reader.release(2, &control));
    control.writer().lie_down();
    assert!(!reader.release(0, &control), "nothing was released");
    writer.wrote(2);
    let _ = writer.publish(&control);
    reader.look(&control).unwrap();
    assert!(reader.release(2, &control));
}

#[test]
fn a_little_room_is_told_of_only_when_there_is_nothing_more_to_read() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(64), Reader::new(64));
    writer.wrote(20);
    let _ = writer.publish(&control);
    reader.look(&control).unwrap();
    control.writer().lie_down();
    assert!(!reader.release(7, &control));
    writer.look(&control).unwrap();
    assert_eq!(writer.room(), 44);
    assert!(reader.release(1, &control), "an eighth of the ring");
    writer.look(&control).unwrap();
    assert_eq!(writer.room(), 52);
    control.writer().lie_down();
    assert!(!reader.release(3, &control));
    assert!(reader.tell(&control));
    writer.look(&control).unwrap();
    assert_eq!(writer.room(), 55);
    control.writer().lie_down();
    assert!(!reader.tell(&control), "nothing new");
}

#[test]
fn positions_that_no_correct_peer_publishes_are_refused() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    writer.wrote(8);
    let _ = writer.publish(&control);
    reader.look(&control).unwrap();
    let _ = reader.release(5, &control);
    for tail in [7, 22, u64::MAX, 0, 1 << 63] {
        control.scribble(Some(tail), None);
        let error = reader.look(&control).unwrap_err();
        assert_eq!(error, Impossible { found: tail, least: 8, most: 21 });
        assert_eq!(reader.available(), 3);
    }
    control.scribble(Some(21), None);
    reader.look(&control).unwrap();
    assert_eq!(reader.available(), 16);
    writer.look(&control).unwrap();
    for head in [4, 9, u64::MAX, 0, 1 << 63] {
        control.scribble(None, Some(head));
        let error = writer.look(&control).unwrap_err();
        assert_eq!(error, Impossible { found: head, least: 5, most: 8 });
        assert_eq!(writer.room(), 13);
    }
}

#[test]
fn lent_bytes_take_no_room_and_are_released_whole() {
    let (control, mut writer, mut reader) = (Control::new(), Writer::new(16), Reader::new(16));
    writer.wrote(10);
    writer.lend(&control, 1000, 7, 3);
    writer.wrote(6);
    let _ = writer.publish(&control);
    assert_eq!((writer.room(), writer.position(), writer.ring_position()), (0, 1016, 16));
    assert_eq!(writer.released(&control), 10);
    reader.look(&control).unwrap();
    assert_eq!((reader.available(), reader.loan(), reader.promised()), (10, None, 1016));
    let _ = reader.release(10, &control);
    assert_eq!(reader.available(), 0, "one looks again before a loan");
    reader.look(&control).unwrap();
    assert_eq!(reader.loan(), Some(Loan { start: 10, len: 1000, region: 7, offset: 3 }));
    control.writer().lie_down();
    assert!(!reader.release(999, &control), "a part of a loan is of no use to who waits for it");
    assert_eq!(reader.loan(), Some(Loan { start: 1009, len: 1, region: 7, offset: 1002 }));
    writer.look(&control).unwrap();
    assert_eq!((writer.room(), writer.released(&control)), (10, 10));
    assert!(reader.awaits(&control, 7) && !reader.awaits(&control, 8));
    assert!(reader.release(1, &control));
    assert!(!reader.awaits(&control, 7));
    assert_eq!(writer.released(&control), 1016, "found out without looking");
    reader.look(&control).unwrap();
    assert_eq!((reader.available(), reader.loan(), reader.ring_position()), (6, None, 10));
    let _ = reader.release(6, &control);
    writer.look(&control).unwrap();
    assert_eq!(writer.room(), 16);
}
