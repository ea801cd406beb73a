//! A peer that never stops talking on the control channel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{
    AbortHandle, Armed, ChannelId, ChannelKind, Comm, During, Error, Fabric, Group, GroupId, Interest, Loss,
    RecvBuf, Result, Transport, Until,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::AlteredFabric;
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};

const TIMEOUT: Duration = Duration::from_secs(1);
/// When the peer falls silent after all. A rank that reads on until then has missed its deadline.
const TALKS: Duration = Duration::from_secs(20);
/// By when a call with that timeout must have returned. The machine that tests is busy.
const SOON: Duration = Duration::from_secs(10);
/// The most memory that the talk may take.
const MEMORY: u64 = 2 << 20;

/// The bytes that the peer repeats, and the time when it began.
type Words = Arc<OnceLock<(Instant, Vec<u8>)>>;

/// A channel on which words without end have always arrived, if the peer has begun to talk.
struct Endless {
    transport: InProcessTransport,
    words: Words,
    said: usize,
}

impl Transport for Endless {
    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        let Some((began, words)) = self.words.get() else { return self.transport.try_recv(from, into) };
        if began.elapsed() > TALKS {
            return Err(Error::PeerLost { peer: from, during: During::Receiving, loss: Loss::Closed });
        }
        for byte in into.iter_mut() {
            *byte = words[self.said % words.len()];
            self.said += 1;
        }
        Ok(into.len())
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        if self.words.get().is_some() { Ok(Armed::Ready) } else { self.transport.arm(interest) }
    }

    fn group(&self) -> Group {
        self.transport.group()
    }

    fn now(&self) -> Instant {
        self.transport.now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.transport.try_send(to, bytes)
    }

    fn released(&self, to: usize) -> u64 {
        self.transport.released(to)
    }

    fn register(&mut self, memory: &[&[u8]]) {
        self.transport.register(memory);
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        self.transport.fill_buf(from, at_most)
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.transport.consume(from, bytes)
    }

    fn revoke(&mut self) {
        self.transport.revoke();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.transport.descriptor()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        self.transport.abort_handle()
    }
}

/// Waits for the first frame that rank 0 says, and returns it.
fn first_frame(control: &mut InProcessTransport) -> Vec<u8> {
    let (mut frame, mut bytes) = (Vec::new(), [0; 64]);
    loop {
        let received = control.try_recv(0, &mut bytes).unwrap();
        frame.extend_from_slice(&bytes[..received]);
        if let Some((length, rest)) = frame.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if rest.len() >= length {
                frame.truncate(4 + length);
                return frame;
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The peer says without end what this rank announces of its own call, as a question or not.
fn barrier_beside_endless_talk(question: bool) {
    let words = Words::default();
    in_process::run(2, &InProcessConfig::default(), |fabric| {
        if fabric.group().rank() == 1 {
            let open = |kind| {
                let channel = ChannelId { group: GroupId::WORLD, kind };
                fabric.open(channel, Instant::now() + SOON).unwrap()
            };
            let mut control = open(ChannelKind::Control);
            let (_data, _messages) = (open(ChannelKind::Collective), open(ChannelKind::PointToPoint));
            let mut frame = first_frame(&mut control);
            // Behind its length and its kind.
            frame[5] = u8::from(question);
            words.set((Instant::now(), frame)).unwrap();
            // Until the other rank has left, without reading.
            while control.try_send(0, &[IoSlice::new(&[0])]).is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            return;
        }
        let words = Arc::clone(&words);
        let open =
            move |fabric: &InProcessFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
                let is_control = channel.kind == ChannelKind::Control;
                let words = if is_control { Arc::clone(&words) } else { Words::default() };
                Ok(Endless { transport: fabric.open_among(channel, members, until)?, words, said: 0 })
            };
        let ring =
            RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), SOON).unwrap();
        let comm = Comm::new(ring).with_timeout(TIMEOUT);
        let began = Instant::now();
        let mut outcome = Ok(());
        let memory = allocation_counter::measure(|| outcome = comm.barrier());
        let took = began.elapsed();
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        assert!(took < SOON, "returned after {took:?} of {TIMEOUT:?}");
        assert!(memory.bytes_max < MEMORY, "{} bytes of memory", memory.bytes_max);
    });
}

#[test]
fn a_barrier_keeps_its_deadline_and_little_memory_beside_a_peer_that_announces_without_end() {
    barrier_beside_endless_talk(false);
}

#[test]
fn a_barrier_keeps_its_deadline_and_little_memory_beside_a_peer_that_asks_without_end() {
    barrier_beside_endless_talk(true);
}
