//! Streams of messages between two ranks, through relays, and the calls of a communicator.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Armed, Comm, Error, Fabric, Interest, ReduceOp, Result, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::MemoryStore;
use comm_tcp::{RendezvousConfig, TcpFabric};

use super::relay::{Alteration, Direction, Tampering, with_relays};
use super::{SOON, WORLD};

/// The lengths of messages: small ones, and around the borders of one and two frames.
pub(crate) const LENGTHS: [usize; 12] =
    [1, 2, 7, 32, 4096, 65_599, 65_600, 65_601, 131_199, 131_200, 131_201, 300_000];

pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// Pseudorandom numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The bytes that arrived, and the error that ended the stream.
pub(crate) type Arrived = (Vec<u8>, Error);

/// Sends the messages to the peer, and then ends the stream.
fn send_all(fabric: &TcpFabric, lengths: &[usize], open_for: Duration) -> Result<()> {
    let mut transport = fabric.open(WORLD, Instant::now() + open_for)?;
    let peer = 1 - fabric.group().rank();
    let (mut waiting, all) = (Interest::default(), content(lengths.iter().sum()));
    waiting.add_send(peer);
    let mut sent = 0;
    for length in lengths {
        let end = sent + length;
        while sent < end || transport.released(peer) < sent as u64 {
            match transport.try_send(peer, &[IoSlice::new(&all[sent..end])])? {
                0 if transport.arm(&waiting)? == Armed::Sleep => {
                    transport.sleep(None, Duration::from_millis(100))?;
                }
                more => sent += more,
            }
        }
    }
    Ok(())
}

/// Receives up to the end of the stream.
fn receive_all(fabric: &TcpFabric, open_for: Duration) -> Result<Arrived> {
    let mut transport = fabric.open(WORLD, Instant::now() + open_for)?;
    let peer = 1 - fabric.group().rank();
    let (mut waiting, mut all, mut into) = (Interest::default(), Vec::new(), vec![0; 50_000]);
    waiting.add_recv(peer);
    let limit = Instant::now() + SOON;
    loop {
        match transport.try_recv(peer, &mut into) {
            Ok(0) if transport.arm(&waiting)? == Armed::Sleep => {
                transport.sleep(None, Duration::from_millis(100))?;
            }
            Ok(more) => all.extend_from_slice(&into[..more]),
            Err(error) => return Ok((all, error)),
        }
        assert!(Instant::now() < limit, "nothing arrives after {} bytes", all.len());
    }
}

/// Sends messages from one of two ranks to the other, through relays. Returns what the receiver
/// got, and the number of bytes that passed from the sender.
pub(crate) fn stream(
    config: impl Fn(usize) -> RendezvousConfig + Sync,
    sender: Direction,
    alteration: Option<Alteration>,
    open_for: Duration,
) -> (Result<Arrived>, u64) {
    let tampering = Arc::new(Tampering::new(alteration));
    let arrived = stream_through(config, sender, &tampering, open_for);
    assert_eq!(alteration.is_some(), tampering.applied.load(Ordering::Relaxed), "{alteration:?}");
    (arrived, tampering.passed[sender as usize].load(Ordering::Relaxed))
}

/// Sends messages as [`stream`] does.
pub(crate) fn stream_through(
    config: impl Fn(usize) -> RendezvousConfig + Sync,
    sender: Direction,
    tampering: &Arc<Tampering>,
    open_for: Duration,
) -> Result<Arrived> {
    let store = with_relays(MemoryStore::default(), Arc::clone(tampering));
    let sending_rank = match sender {
        Direction::FromDialer => 1,
        Direction::FromAcceptor => 0,
    };
    let fabric = |rank| TcpFabric::rendezvous(&store, &config(rank)).unwrap();
    thread::scope(|scope| {
        let fabric = &fabric;
        let sending = scope.spawn(move || {
            let fabric = fabric(sending_rank);
            // It fails if the receiver stops because of the alteration.
            let _ = send_all(&fabric, &LENGTHS, open_for);
        });
        let arrived = receive_all(&fabric(1 - sending_rank), open_for);
        sending.join().unwrap();
        arrived
    })
}

/// Runs collectives and messages, and checks that their results are exact.
pub(crate) fn compute(fabric: TcpFabric, timeout: Duration) -> Result<()> {
    let (rank, size) = (fabric.group().rank(), fabric.group().size());
    let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), timeout)?);
    for length in [0, 1, 2, 1000, 8191, 16_400, 16_401, 70_000, 300_000] {
        let mut data: Vec<u64> = (0..length).map(|at| at * (rank as u64 + 1)).collect();
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        let ranks: u64 = (1..=size as u64).sum();
        assert!(data.iter().zip(0..).all(|(sum, at)| *sum == at * ranks), "wrong sum of {length}");
    }
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let sent = content(200_000 + rank);
    let mut received = vec![0_u8; 200_000 + from];
    let envelope = comm.send_recv((to, 7), &sent[..], (from, 7), &mut received[..])?;
    assert!(envelope.source == from && received == content(200_000 + from), "a wrong message");
    comm.barrier()?;
    comm.finalize()
}

pub(crate) fn whole() -> Vec<u8> {
    content(LENGTHS.iter().sum())
}
