//! A peer that never stops sending on the control channel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::IoSlice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comm_core::{
    Armed, ChannelId, ChannelKind, Comm, During, Error, Fabric, GroupId, Interest, Loss, Result, Transport,
    Until,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, NetworkFabric, NetworkTransport, VirtualClock};
use comm_sim::{Alteration, AlteredFabric, AlteredTransport};

const TIMEOUT: Duration = Duration::from_secs(1);
/// The time until the peer stops sending. A rank that reads until then has missed its deadline.
const TALKS: Duration = Duration::from_secs(20);
/// The time that a read takes.
const READ: Duration = Duration::from_millis(1);
/// The most memory that the received frames may take.
const MEMORY: u64 = 2 << 20;

/// The bytes that the peer repeats, once they are set.
type Words = Arc<OnceLock<Vec<u8>>>;

/// Makes a channel on which more bytes can always be read, once the peer has begun to repeat them.
struct Endless {
    clock: VirtualClock,
    words: Words,
    sent: usize,
}

impl Alteration<NetworkTransport> for Endless {
    fn try_recv(&mut self, inner: &mut NetworkTransport, from: usize, into: &mut [u8]) -> Result<usize> {
        let Some(words) = self.words.get() else { return inner.try_recv(from, into) };
        self.clock.sleep(READ);
        if self.clock.elapsed() > TALKS {
            return Err(Error::PeerLost { peer: from, during: During::Receiving, loss: Loss::Closed });
        }
        for byte in into.iter_mut() {
            *byte = words[self.sent % words.len()];
            self.sent += 1;
        }
        Ok(into.len())
    }

    fn arm(&mut self, inner: &mut NetworkTransport, interest: &Interest) -> Result<Armed> {
        if self.words.get().is_some() { Ok(Armed::Ready) } else { inner.arm(interest) }
    }
}

/// Waits for the first frame of rank 0, and returns it.
fn first_frame(control: &mut NetworkTransport, clock: &VirtualClock) -> Vec<u8> {
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
        clock.sleep(READ);
    }
}

/// Makes a call while a peer repeats the announcement of this call, as a question or not.
fn barrier_beside_endless_talk(question: bool) {
    let words = Words::default();
    network::run(2, 0, &FaultPlan::calm(), |fabric, clock| {
        if fabric.group().rank() == 1 {
            let open = |kind| {
                let channel = ChannelId { group: GroupId::WORLD, kind };
                fabric.open(channel, fabric.now() + TIMEOUT).unwrap()
            };
            let mut control = open(ChannelKind::Control);
            let (_data, _messages) = (open(ChannelKind::Collective), open(ChannelKind::PointToPoint));
            let mut frame = first_frame(&mut control, &clock);
            // The byte after the length and the kind.
            frame[5] = u8::from(question);
            words.set(frame).unwrap();
            // Stays until the other rank has left, without reading.
            while control.try_send(0, &[IoSlice::new(&[0])]).is_ok() {
                clock.sleep(READ);
            }
            return;
        }
        let (words, own_clock) = (Arc::clone(&words), clock.clone());
        let open = move |fabric: &NetworkFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
            let is_control = channel.kind == ChannelKind::Control;
            let words = if is_control { Arc::clone(&words) } else { Words::default() };
            let transport = fabric.open_among(channel, members, until)?;
            let alteration = Endless { clock: own_clock.clone(), words, sent: 0 };
            Ok(AlteredTransport { transport, alteration })
        };
        let fabric = AlteredFabric { fabric, open };
        let ring = RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT).unwrap();
        let comm = Comm::new(ring).with_timeout(TIMEOUT);
        let began = clock.elapsed();
        let mut outcome = Ok(());
        let memory = allocation_counter::measure(|| outcome = comm.barrier());
        let took = clock.elapsed() - began;
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        assert!(took < TIMEOUT * 5 / 4, "returned after {took:?} of {TIMEOUT:?}");
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
