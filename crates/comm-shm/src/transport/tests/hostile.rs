//! A peer that makes the calls of a correct one, but also writes anything to the shared memory and
//! the socket in between.

use std::os::fd::OwnedFd;

use comm_core::Allocation;
use comm_sim::hostile::Input;

use super::*;
use crate::copy_path::{PathSelector, PieceClass};
use crate::descriptors::{CMA_REGION, DESCRIPTORS_MAX, Descriptor};
use crate::exporter::{REGION_MESSAGE_BYTES, RegionMessage};
use crate::fast_boxes::{BOXED_BYTES_MAX, BoxSize, FastBoxes, Outbox};
use crate::positions::Writer;
use crate::region::{PeerAccess, Region};
use crate::regions::Regions;
use crate::window::Window;

/// All bytes of the rings and boxes, and of the regions. No other memory has only these bytes.
const RING: u8 = 0x11;
const REGION: u8 = 0x22;
/// The bytes of a buffer before anything is received into it.
const NOTHING: u8 = 0xee;
const REGION_BYTES: usize = 1 << 13;
/// The longest message, more than a call can receive from a ring: what was known to have arrived,
/// and once more what the ring holds.
const MESSAGE_BYTES_MAX: usize = 3 * CAPACITY;

/// Returns a file of the size of a region, with other bytes, that can be cut off.
fn unsealed() -> OwnedFd {
    let file = crate::segment::create_file().unwrap();
    rustix::io::write(&file, &[0; 4 * REGION_BYTES]).unwrap();
    file
}

/// Returns a sealed file that is no region, but the memory of two rings.
fn rings() -> OwnedFd {
    let file = Segment::create(CAPACITY).unwrap().1;
    let len = usize::try_from(rustix::fs::fstat(&file).unwrap().st_size).unwrap();
    rustix::io::write(&file, &vec![RING; len]).unwrap();
    file
}

/// Fills all boxes of a direction.
fn fill_boxes(segment: &Segment, direction: Direction) {
    let message = [IoSlice::new(&[RING; BOXED_BYTES_MAX])];
    let mut path = PathSelector::new(PieceClass::SHORT);
    for size in BoxSize::ALL {
        let mut outbox = Outbox::new();
        for _ in 0..100 {
            let place = outbox.place(size);
            segment.copy_into_box(direction, place, &message, &mut path);
            outbox.post(segment.boxes(direction), size, 0, 0, 0);
        }
    }
}

/// Both ranks and their shared memory.
struct Pair {
    victim: SharedMemoryTransport,
    /// Calls its transport as a correct rank does.
    peer: SharedMemoryTransport,
    /// Writes to the memory that the two share.
    segment: Segment,
    /// The peer's socket.
    socket: OwnedFd,
    memory: Allocation,
    region: Region,
    files: Vec<OwnedFd>,
    /// Whether the victim reads any memory of the peer's process, so that it can receive any bytes.
    has_cma: bool,
    sent: u64,
    /// The bytes that the victim has received.
    received: u64,
    /// The descriptors that were made.
    described: u64,
    error: Option<Error>,
}

impl Pair {
    fn new(has_cma: bool) -> Self {
        let ([near, far], segment) = watched_connections();
        let socket = far.socket.try_clone().unwrap();
        for direction in [Direction::Out, Direction::Back] {
            segment.copy_in(CopyPath::Cached, direction, 0, &[RING; CAPACITY]);
            fill_boxes(&segment, direction);
        }
        let regions = Arc::<Regions>::default();
        let mut memory = regions.allocate(REGION_BYTES, 1, PeerAccess::Read).unwrap();
        memory.bytes_mut().fill(REGION);
        let region = Region::create(7, REGION_BYTES, PeerAccess::Write).unwrap();
        region.allocation(REGION_BYTES, Box::new(())).bytes_mut().fill(REGION);
        let export = ExportConfig { regions, bytes_min: 1000, cma_bytes_min: usize::MAX };
        Self {
            victim: transport(0, near, has_cma.then_some(&export)),
            peer: transport(1, far, Some(&export)),
            segment,
            socket,
            memory,
            files: vec![
                region.file().try_clone_to_owned().unwrap(),
                rings(),
                std::fs::File::open("/dev/null").unwrap().into(),
                unsealed(),
            ],
            region,
            has_cma,
            sent: 0,
            received: 0,
            described: 0,
            error: None,
        }
    }

    /// Takes a drawn step of the victim or the peer.
    fn step(&mut self, input: &mut Input) {
        match input.below(16) {
            0 | 1 => drop(self.peer.try_send(0, &[IoSlice::new(&vec![RING; input.below(200)])])),
            2 => drop(self.peer.try_send(0, &[IoSlice::new(&vec![RING; input.below(MESSAGE_BYTES_MAX)])])),
            3 => {
                let from = input.below(REGION_BYTES - 1000);
                let sent = self.peer.try_send(0, &[IoSlice::new(&self.memory.bytes()[from..from + 1000])]);
                self.described += u64::from(sent.is_ok_and(|sent| sent > 0));
            }
            4 => drop(self.peer.try_recv(0, &mut vec![0; input.below(MESSAGE_BYTES_MAX)])),
            5 | 6 => self.receive(input.below(MESSAGE_BYTES_MAX)),
            7 | 8 => self.receive_in_place(input),
            9 if input.one_in(2) => self.put(input),
            9 => self.send(input.below(MESSAGE_BYTES_MAX)),
            10 => {
                let armed = self.victim.arm(&both());
                self.expect(armed.map(drop));
            }
            _ => self.overwrite(input),
        }
    }

    /// Checks the outcome of a call of the victim.
    fn expect(&mut self, outcome: Result<()>) {
        let is_lost = |error: &Error| {
            let of_peer = Loss::Protocol(String::new());
            matches!(error, Error::PeerLost { peer: 1, loss, .. }
                if std::mem::discriminant(loss) == std::mem::discriminant(&of_peer)
                    || matches!(loss, Loss::Io(_) | Loss::Closed))
        };
        if let Err(error) = outcome {
            assert!(is_lost(&error), "{error}");
            if is_garbage::<()>(&Err(error.clone())) {
                self.error = Some(error);
            }
        }
    }

    /// Checks that nothing is delivered after an error of the protocol.
    fn check_end(&self, moved: usize) {
        assert!(self.error.is_none() || moved == 0, "{moved} bytes after {:?}", self.error);
    }

    fn check_bytes(&self, bytes: &[u8]) {
        let is_shared = |byte: &u8| [RING, REGION].contains(byte);
        assert!(self.has_cma || bytes.iter().all(is_shared), "bytes of other memory: {bytes:x?}");
    }

    fn receive(&mut self, len: usize) {
        let mut into = vec![NOTHING; len];
        let received = self.victim.try_recv(1, &mut into);
        let len = *received.as_ref().unwrap_or(&0);
        self.check_end(len);
        self.check_bytes(&into[..len]);
        assert!(self.described > 0 || len <= 2 * CAPACITY + size_of::<FastBoxes>(), "{len} bytes");
        self.received += len as u64;
        self.expect(received.map(drop));
    }

    fn receive_in_place(&mut self, input: &mut Input) {
        let most = input.below(MESSAGE_BYTES_MAX);
        let mut copied = Vec::new();
        let filled = self.victim.fill_buf(1, most).map(|filled| {
            copied = vec![NOTHING; filled.len()];
            assert_eq!(filled.copy_to(&mut copied), copied.len());
        });
        assert!(copied.len() <= most);
        self.check_end(copied.len());
        self.check_bytes(&copied);
        self.expect(filled);
        if input.one_in(8) {
            self.overwrite(input);
        }
        if !copied.is_empty() {
            let len = copied.len() - input.below(copied.len());
            let consumed = self.victim.consume(1, len);
            self.received += len as u64;
            self.expect(consumed);
        }
    }

    /// Puts bytes into the window that the peer claims to have, and sends them if there is none.
    fn put(&mut self, input: &mut Input) {
        let (offset, bytes) = (input.below(2 * REGION_BYTES), vec![REGION; input.below(MESSAGE_BYTES_MAX)]);
        let put = self.victim.try_put(1, 0, offset, &bytes);
        match put {
            Ok(None) => self.send(bytes.len()),
            Ok(Some(put)) => self.sent += put as u64,
            Err(error) => self.expect(Err(error)),
        }
    }

    fn send(&mut self, len: usize) {
        let sent = self.victim.try_send(1, &[IoSlice::new(&vec![RING; len])]);
        let accepted = *sent.as_ref().unwrap_or(&0);
        self.check_end(accepted);
        assert!(accepted <= len);
        self.sent += accepted as u64;
        assert!(self.victim.released(1) <= self.sent, "more is released than was sent");
        self.expect(sent.map(drop));
    }

    /// Draws a position: often one that is possible.
    fn position(&self, input: &mut Input) -> u64 {
        match input.below(3) {
            0 => self.received + input.below(100) as u64,
            1 => input.below(3 * CAPACITY) as u64,
            _ => input.number(),
        }
    }

    /// Writes something that no correct peer writes.
    fn overwrite(&mut self, input: &mut Input) {
        let position = |input: &mut Input| self.position(input);
        let (out, back) = (self.segment.control(Direction::Out), self.segment.control(Direction::Back));
        match input.below(9) {
            8 => {
                let region = *input.pick(&[self.region.id(), 1, u64::MAX]);
                let (start, len) = (input.below(2 * REGION_BYTES) as u64, 3 * REGION_BYTES as u64);
                let (start, len) = *input.pick(&[(0, REGION_BYTES as u64), (start, len), (u64::MAX, len)]);
                out.open_window(Window { call: 0, region, start, len });
            }
            0 | 1 => back.overwrite(Some(position(input)), None),
            2 => out.overwrite(None, Some(position(input))),
            3 | 4 => self.describe(input),
            5 => {
                let boxes = self.segment.boxes(Direction::Back);
                let (size, number) = (*input.pick(&BoxSize::ALL), input.below(3));
                let (end, len) = (position(input), [input.below(200) as u64, input.number()][input.below(2)]);
                boxes.overwrite(size, number, end, len, position(input));
                Writer::new(CAPACITY).open_boxes(back);
            }
            6 => {
                back.reader().overwrite(input.number() as u32);
                out.writer().overwrite(input.number() as u32);
                if input.one_in(4) {
                    back.revoke();
                }
                socket::notify(&self.socket);
            }
            _ => self.send_packet(input),
        }
    }

    /// Makes a descriptor: the next one of the stream, which may name any bytes, or any.
    fn describe(&mut self, input: &mut Input) {
        let back = self.segment.control(Direction::Back);
        let region = *input.pick(&[7, 7, 7, 1, CMA_REGION, u64::MAX]);
        let offset = [input.below(2 * REGION_BYTES) as u64, input.number()][input.below(2)];
        let len = [1 + input.below(2 * REGION_BYTES) as u64, input.number()][usize::from(input.one_in(4))];
        if input.one_in(3) {
            let descriptor = Descriptor { start: self.position(input), len, region, offset };
            let made = [input.below(2 * DESCRIPTORS_MAX) as u64, input.number()][input.below(2)];
            back.overwrite_descriptor(input.below(4) as u64, descriptor, made);
        } else {
            let file = input.pick(&self.files).as_fd();
            let message = RegionMessage { region, evicted: 0 };
            drop(socket::send(&self.socket, &message.encode(), Some(file)));
            let descriptor = Descriptor { start: self.received, len, region, offset };
            back.overwrite_descriptor(self.described, descriptor, self.described + 1);
            back.overwrite(Some(self.received.saturating_add(len)), None);
        }
        self.described += 1;
    }

    fn send_packet(&self, input: &mut Input) {
        let message = RegionMessage {
            region: *input.pick(&[self.region.id(), 1, 0, u64::MAX]),
            evicted: *input.pick(&[0, 0, 1, self.region.id()]),
        };
        let mut bytes = message.encode().to_vec();
        if input.one_in(4) {
            bytes = input.alter(&bytes);
            bytes.truncate(4 * REGION_MESSAGE_BYTES);
        }
        let file = if input.one_in(8) { None } else { Some(input.pick(&self.files).as_fd()) };
        // The victim may have closed its end.
        drop(socket::send(&self.socket, &bytes, file));
    }
}

comm_sim::hostile_input!(no_memory_but_the_shared_one_is_read_or_written: 4000, |input| {
    let mut pair = Pair::new(input.one_in(4));
    for _ in 0..200 {
        pair.step(input);
        if input.is_empty() {
            break;
        }
    }
    // All that has arrived can be received, or there is an error.
    for _ in 0..4 {
        pair.receive(MESSAGE_BYTES_MAX);
    }
});
