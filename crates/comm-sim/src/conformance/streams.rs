//! Tests that exactly the sent bytes arrive, in order.

use std::io::IoSlice;

use comm_core::{Fabric, Result, Transport};

use super::CreateFabrics;
use super::port::{Port, byte, bytes, each, open};
use crate::random::Random;

/// Every rank sends to every other at the same time, in pieces of random sizes, which are received
/// in place or into a buffer.
pub fn all_pairs_exchange_ordered_bytes<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    each(create, 4, |fabric| exchange(open(fabric)?.transport, 100_003))?;
    Ok(())
}

/// Sends `total` bytes to every peer, receives as many from each at the same time, and checks them.
/// Every rank of a channel that was just opened must call this.
///
/// # Errors
/// As the transport.
///
/// # Panics
/// If wrong bytes arrive, or none for 30 seconds.
pub fn exchange<T: Transport>(transport: T, total: usize) -> Result<()> {
    let group = transport.group();
    let mut port = Port::new(transport);
    let mut random = Random::new(7, group.rank() as u64);
    let outgoing: Vec<Vec<u8>> = (0..group.size()).map(|to| bytes(group.rank(), to, total)).collect();
    let (mut sent, mut received) = (vec![0; group.size()], vec![0; group.size()]);
    let peers: Vec<usize> = group.peers().collect();
    loop {
        let mut moved = 0;
        for &peer in &peers {
            let out = send_some(&mut port.transport, peer, &outgoing[peer][sent[peer]..], &mut random)?;
            sent[peer] += out;
            let left = total - received[peer];
            let into = recv_some(&mut port.transport, peer, received[peer], left, &mut random)?;
            received[peer] += into;
            moved += out + into;
        }
        let recv: Vec<usize> = peers.iter().copied().filter(|&peer| received[peer] < total).collect();
        let send: Vec<usize> = peers.iter().copied().filter(|&peer| sent[peer] < total).collect();
        if recv.is_empty() && send.is_empty() {
            break;
        }
        if moved == 0 {
            port.wait(&recv, &send)?;
        }
    }
    for &peer in &peers {
        port.flush(peer, total as u64)?;
        assert_eq!(port.transport.released(peer), total as u64);
    }
    // A rank sends this last byte once it has received everything, so no stream ends too early.
    for &peer in &peers {
        port.send(peer, &[0xbe])?;
    }
    for &peer in &peers {
        assert_eq!(port.recv_byte(peer)?, 0xbe, "rank {peer} sent too much");
    }
    Ok(())
}

/// The bounds of random sizes: transports may treat messages of a few bytes, of a few cache lines
/// and longer ones differently.
const BYTES_BELOW: [usize; 3] = [60, 2000, 10_000];

/// Draws a number of bytes.
fn some_bytes(random: &mut Random) -> usize {
    let below = BYTES_BELOW[random.below(BYTES_BELOW.len())];
    random.below(below)
}

/// Sends a random number of the bytes, gathered from pieces, some of them empty.
fn send_some(transport: &mut impl Transport, to: usize, bytes: &[u8], random: &mut Random) -> Result<usize> {
    let (bytes, _) = bytes.split_at(some_bytes(random).min(bytes.len()));
    let (first, rest) = bytes.split_at(random.below(bytes.len() + 1));
    let (second, third) = rest.split_at(random.below(rest.len() + 1));
    let parts = [first, &[], second, third].map(IoSlice::new);
    let sent = transport.try_send(to, &parts)?;
    assert!(sent <= bytes.len(), "{sent} bytes sent of {}", bytes.len());
    Ok(sent)
}

/// The size of the largest element.
const ELEMENT_BYTES_MAX: usize = 8;

/// Receives a random number of the `left` bytes, in place or into a buffer, and checks them.
fn recv_some(
    transport: &mut impl Transport,
    from: usize,
    position: usize,
    left: usize,
    random: &mut Random,
) -> Result<usize> {
    let rank = transport.group().rank();
    let mut buffer = vec![0; some_bytes(random).max(1).min(left)];
    let in_place = random.one_in(2);
    let received = if in_place {
        transport.fill_buf(from, buffer.len())?.copy_to(&mut buffer)
    } else {
        transport.try_recv(from, &mut buffer)?
    };
    for (offset, &found) in buffer[..received].iter().enumerate() {
        assert_eq!(found, byte(from, rank, position + offset), "byte {} from {from}", position + offset);
    }
    if !in_place {
        return Ok(received);
    }
    // A receiver that leaves less than an element is not woken for it, so it consumes everything.
    let least = if received < ELEMENT_BYTES_MAX { received } else { 0 };
    let used = least + random.below(received - least + 1);
    transport.consume(from, used)?;
    Ok(used)
}

/// Two ranks send 8 MiB to each other at the same time, which is more than any buffer between them
/// holds.
pub fn large_transfers_run_both_ways<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const LARGE: usize = 8 << 20;
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let (rank, peer) = (port.rank(), 1 - port.rank());
        let (out, mut into) = (bytes(rank, peer, LARGE), vec![0; LARGE]);
        port.exchange(peer, &out, &mut into)?;
        assert!(into == bytes(peer, rank, LARGE), "rank {rank} received bytes that differ from those sent");
        port.flush(peer, LARGE as u64)
    })?;
    Ok(())
}

/// Calls with nothing to move succeed, and leave the stream unchanged.
pub fn empty_calls_move_nothing<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        assert_eq!(port.transport.try_send(peer, &[])?, 0);
        assert_eq!(port.transport.try_send(peer, &[IoSlice::new(&[]), IoSlice::new(&[])])?, 0);
        assert_eq!(port.transport.released(peer), 0);
        port.send(peer, &[42])?;
        assert_eq!(port.transport.try_recv(peer, &mut [])?, 0);
        assert_eq!(port.transport.fill_buf(peer, 0)?.len(), 0);
        port.transport.consume(peer, 0)?;
        assert_eq!(port.recv_byte(peer)?, 42);
        Ok(())
    })?;
    Ok(())
}
