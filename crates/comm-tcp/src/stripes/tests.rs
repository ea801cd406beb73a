//! The reader and the writer of a stream, over pipes that accept and return any number of bytes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use comm_sim::hostile::Input;

use super::*;

/// One direction of a connection, and the number of bytes that it moves at a time.
#[derive(Debug, Clone)]
struct Pipe(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    bytes: VecDeque<u8>,
    capacity: usize,
    read_max: usize,
    write_max: usize,
    has_ended: bool,
}

impl Pipe {
    fn new(capacity: usize) -> Self {
        let (read_max, write_max) = (usize::MAX, usize::MAX);
        let bytes = VecDeque::new();
        Self(Rc::new(RefCell::new(State { bytes, capacity, read_max, write_max, has_ended: false })))
    }

    fn holding(bytes: &[u8]) -> Self {
        let pipe = Self::new(0);
        pipe.0.borrow_mut().bytes.extend(bytes);
        pipe
    }

    /// Draws the number of bytes that move at a time: usually all that fit.
    fn vary(&self, input: &mut Input) {
        let mut state = self.0.borrow_mut();
        state.read_max = if input.one_in(3) { input.below(20) } else { usize::MAX };
        state.write_max = if input.one_in(3) { input.below(20) } else { usize::MAX };
    }
}

impl Flow for Pipe {
    fn is_readable(&self) -> bool {
        let state = self.0.borrow();
        !state.bytes.is_empty() || state.has_ended
    }

    fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<Option<usize>, RecvError> {
        let mut state = self.0.borrow_mut();
        let count = (first.len() + second.len()).min(state.bytes.len()).min(state.read_max);
        for (into, byte) in first.iter_mut().chain(second).zip(state.bytes.drain(..count)) {
            *into = byte;
        }
        Ok((count > 0 || state.bytes.is_empty() && state.has_ended).then_some(count))
    }

    fn is_writable(&self) -> bool {
        let state = self.0.borrow();
        state.bytes.len() < state.capacity
    }

    fn write(&mut self, pieces: &[IoSlice<'_>], offered: usize) -> rustix::io::Result<usize> {
        assert_eq!(offered, pieces.iter().map(|piece| piece.len()).sum::<usize>());
        let mut state = self.0.borrow_mut();
        let count = offered.min(state.capacity - state.bytes.len()).min(state.write_max);
        state.bytes.extend(pieces.iter().flat_map(|piece| piece.iter()).take(count));
        Ok(count)
    }

    fn queued(&self) -> usize {
        self.0.borrow().bytes.len()
    }

    fn holds_bytes(&self) -> bool {
        false
    }

    fn flush(&mut self) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// A stream over pipes; the reader may not have some of them yet.
struct Stream {
    writer: StripeWriter<Pipe>,
    reader: StripeReader<Pipe>,
    pipes: Vec<Pipe>,
    /// The pipes that the reader does not have yet.
    late: Vec<(u8, Pipe)>,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Stream {
    fn new(stripe_bytes: usize) -> Self {
        let (writer, reader) = (StripeWriter::new(stripe_bytes), StripeReader::new());
        let (pipes, late) = (Vec::new(), Vec::new());
        Self { writer, reader, pipes, late, sent: Vec::new(), received: Vec::new() }
    }

    fn add(&mut self, capacity: usize) {
        let pipe = Pipe::new(capacity);
        self.writer.add(pipe.clone());
        self.late.push((self.pipes.len() as u8, pipe.clone()));
        self.pipes.push(pipe);
    }

    /// Sends from `stream` in up to two pieces.
    fn send(&mut self, stream: &[u8], input: &mut Input) {
        self.writer.flush().unwrap();
        let rest = &stream[self.sent.len()..];
        let offered = if input.one_in(2) { input.below(100) } else { usize::MAX }.min(rest.len());
        let (first, second) = rest[..offered].split_at(offered / 3);
        let pieces = [IoSlice::new(first), IoSlice::new(second)];
        let can_write = self.writer.can_write();
        let accepted = self.writer.write(self.sent.len() as u64, &pieces, usize::MAX).unwrap();
        assert!(accepted <= offered && (can_write || accepted == 0), "{accepted} of {offered}");
        self.sent.extend_from_slice(&rest[..accepted]);
    }

    /// Receives some bytes. Returns their number.
    fn receive(&mut self, input: &mut Input) -> Result<usize, Fault> {
        let position = self.received.len() as u64;
        if !self.reader.select(position)? {
            return Ok(0);
        }
        let (mut into, mut ahead) = (vec![0; input.below(50)], vec![0; 1 + input.below(50)]);
        let read = self.reader.read(&mut into, &mut ahead)?;
        let direct = read.min(into.len());
        self.received.extend_from_slice(&into[..direct]);
        self.received.extend_from_slice(&ahead[..read - direct]);
        Ok(read)
    }
}

comm_sim::hostile_input!(a_stream_arrives_in_order_over_any_sockets: 3000, |input| {
    let mut stream = Stream::new(1 + input.below(40));
    let bytes: Vec<u8> = (0..100 + input.below(3000)).map(|at| (at * 7 % 251) as u8).collect();
    (0..=input.below(4)).for_each(|_| stream.add(1 + input.below(200)));
    stream.writer.set_used(0..stream.pipes.len());
    for _ in 0..1_000_000 {
        if stream.received.len() == bytes.len() && stream.writer.held_from().is_none() {
            break;
        }
        stream.pipes.iter().for_each(|pipe| pipe.vary(input));
        if input.one_in(50) && stream.pipes.len() < 6 {
            stream.add(1 + input.below(200));
        }
        if input.one_in(10) {
            let (count, first) = (stream.pipes.len(), input.below(6));
            let used = 1 + input.below(count);
            stream.writer.set_used((0..used).map(|at| (first + at) % count));
        }
        stream.send(&bytes, input);
        if let Some((number, pipe)) = stream.late.pop_if(|_| !input.one_in(4)) {
            stream.reader.add(number, pipe).unwrap();
        }
        while stream.receive(input).unwrap() > 0 && !input.one_in(3) {}
    }
    assert!(stream.received == bytes, "{} of {} bytes", stream.received.len(), bytes.len());
    assert_eq!(stream.sent, bytes);
});

comm_sim::hostile_input!(hostile_stripes_are_an_error_or_wait: 3000, |input| {
    let header = |position: u64, bytes: u32| StripeHeader { position, bytes }.encode().to_vec();
    let valid = [[header(0, 5), vec![1; 5]].concat(), [header(5, 3), vec![2; 3], header(8, 1), vec![3]].concat()];
    let mut stream = Stream::new(1);
    let mut available = 0;
    for (number, valid) in valid.iter().enumerate() {
        let mut bytes = input.alter(valid);
        if input.one_in(2) {
            let (position, length) = (input.number(), input.number() as u32);
            bytes.splice(..HEADER_BYTES.min(bytes.len()), header(position, length));
        }
        available += bytes.len();
        stream.reader.add(number as u8, Pipe::holding(&bytes)).unwrap();
    }
    let allocated = allocation_counter::measure(|| {
        for _ in 0..1000 {
            match stream.reader.select(stream.received.len() as u64) {
                Err(_) | Ok(false) => return,
                Ok(true) => {}
            }
            let mut into = [0; 7];
            match stream.reader.read(&mut into, &mut []) {
                Err(_) | Ok(0) => return,
                Ok(read) => stream.received.extend_from_slice(&into[..read]),
            }
        }
    });
    assert!(stream.received.len() <= available);
    // The received bytes, and the text of an error.
    assert!(allocated.bytes_max < 2000, "{}", allocated.bytes_max);
});

/// Reads as much of the stream as there is, of these sockets.
fn read_all(sockets: &[&[u8]]) -> (Vec<u8>, Result<bool, Fault>) {
    let mut stream = Stream::new(1);
    for (number, bytes) in sockets.iter().enumerate() {
        stream.reader.add(number as u8, Pipe::holding(bytes)).unwrap();
    }
    loop {
        match stream.receive(&mut Input::new(&[])) {
            Ok(0) => return (stream.received, Ok(stream.reader.is_exhausted())),
            Ok(_) => {}
            Err(fault) => return (stream.received, Err(fault)),
        }
    }
}

#[test]
fn a_stripe_that_repeats_bytes_is_an_error_and_one_that_skips_some_waits() {
    let header = |position, bytes| StripeHeader { position, bytes }.encode().to_vec();
    let first = [header(0, 3), vec![1, 2, 3]].concat();
    let repeated = [header(2, 2), vec![9, 9]].concat();
    let skipping = [header(4, 2), vec![9, 9]].concat();
    let (bytes, end) = read_all(&[&first, &repeated]);
    assert_eq!(bytes, [1, 2, 3]);
    let Err(Fault::Protocol(reason)) = end else { panic!("{end:?}") };
    assert!(reason.contains("socket 1 repeats byte 2") && reason.contains("at 3"), "{reason}");
    let (bytes, end) = read_all(&[&first, &skipping]);
    assert_eq!(bytes, [1, 2, 3]);
    assert!(matches!(end, Ok(false)), "the first socket may carry the rest: {end:?}");
    assert!(matches!(read_all(&[&header(0, 0)]), (_, Err(Fault::Protocol(_)))));
}

#[test]
fn a_socket_that_accepts_nothing_does_not_hold_up_the_others() {
    let mut stream = Stream::new(10);
    (0..3).for_each(|_| stream.add(1000));
    stream.writer.set_used(0..3);
    stream.pipes[1].0.borrow_mut().capacity = 4;
    let bytes = vec![5; 5000];
    let none = &mut Input::new(&[]);
    for _ in 0..1000 {
        stream.send(&bytes, none);
    }
    let carried: Vec<usize> = stream.pipes.iter().map(|pipe| pipe.0.borrow().bytes.len()).collect();
    assert_eq!(carried, [1000, 4, 1000]);
    // What the second one did not accept is the only stripe that waits besides the last ones.
    assert!(stream.sent.len() > 900 && stream.writer.held_from() == Some(10), "{}", stream.sent.len());
}

#[test]
fn bytes_on_a_slow_socket_arrive_soon_after_those_on_the_fastest_one() {
    let mut stream = Stream::new(100);
    (0..3).for_each(|_| stream.add(5000));
    stream.writer.set_used(0..3);
    // With 5000 bytes, the fastest one is 5 ns behind, and may be 2 ms ahead.
    stream.writer.set_rates([Some(0.1e6), Some(1e9), Some(1.3e6)]);
    let bytes = vec![5; 50_000];
    for _ in 0..1000 {
        stream.send(&bytes, &mut Input::new(&[]));
    }
    let [slow, fastest, half] = [0, 1, 2].map(|at| stream.pipes[at].queued());
    assert_eq!(fastest, 5000);
    assert!((200..400).contains(&slow) && (2600..2900).contains(&half), "{slow} {half}");
    // It has caught up.
    stream.pipes[1].0.borrow_mut().bytes.clear();
    stream.send(&bytes, &mut Input::new(&[]));
    assert!(stream.pipes[0].queued() == slow && stream.pipes[2].queued() == half);
}
