//! Bytes arrive in order, all of them, and nothing else.

use std::io::IoSlice;

use comm_core::{Fabric, Result, Transport};

use super::Meet;
use super::port::{Port, byte, bytes, each, open};
use crate::random::Random;

/// The number of bytes from each rank to each other rank.
const TOTAL: usize = 100_003;

/// Every rank sends to every other at the same time, in pieces of random sizes, received in two
/// ways.
pub fn all_pairs_exchange_ordered_bytes<L: Fabric>(meet: Meet<'_, L>) -> Result<()> {
    each(meet, 4, |fabric| {
        let mut port = open(fabric)?;
        let rank = port.rank();
        let mut random = Random::new(7, rank as u64);
        let outgoing: Vec<Vec<u8>> = (0..4).map(|to| bytes(rank, to, TOTAL)).collect();
        let (mut sent, mut received) = ([0; 4], [0; 4]);
        let peers: Vec<usize> = port.transport.group().peers().collect();
        loop {
            let mut moved = 0;
            for &peer in &peers {
                let out = send_some(&mut port.transport, peer, &outgoing[peer][sent[peer]..], &mut random)?;
                sent[peer] += out;
                let into = recv_some(&mut port.transport, peer, received[peer], &mut random)?;
                received[peer] += into;
                moved += out + into;
            }
            let recv: Vec<usize> = peers.iter().copied().filter(|&peer| received[peer] < TOTAL).collect();
            let send: Vec<usize> = peers.iter().copied().filter(|&peer| sent[peer] < TOTAL).collect();
            if recv.is_empty() && send.is_empty() {
                break;
            }
            if moved == 0 {
                port.wait(&recv, &send)?;
            }
        }
        settle(&mut port, &peers, &received)
    })?;
    Ok(())
}

/// Everything came, and nothing more.
fn settle<T: Transport>(port: &mut Port<T>, peers: &[usize], received: &[usize]) -> Result<()> {
    for &peer in peers {
        assert_eq!(received[peer], TOTAL, "from {peer}");
        port.flush(peer, TOTAL as u64)?;
        assert_eq!(port.transport.released(peer), TOTAL as u64);
    }
    // Whoever says goodbye has received all, so nobody sees a stream end too early.
    for &peer in peers {
        port.send(peer, &[0xbe])?;
    }
    for &peer in peers {
        assert_eq!(port.recv_byte(peer)?, 0xbe, "rank {peer} sent too much");
    }
    Ok(())
}

/// Sends a random number of the bytes, gathered from pieces of which some are empty.
fn send_some(transport: &mut impl Transport, to: usize, bytes: &[u8], random: &mut Random) -> Result<usize> {
    let (bytes, _) = bytes.split_at(random.below(2000).min(bytes.len()));
    let (first, rest) = bytes.split_at(random.below(bytes.len() + 1));
    let (second, third) = rest.split_at(random.below(rest.len() + 1));
    let parts = [first, &[], second, third].map(IoSlice::new);
    let sent = transport.try_send(to, &parts)?;
    assert!(sent <= bytes.len(), "{sent} bytes sent of {}", bytes.len());
    Ok(sent)
}

/// The size of the largest element.
const ELEMENT_BYTES_MAX: usize = 8;

/// Receives or borrows a random number of bytes, and checks them.
fn recv_some(
    transport: &mut impl Transport,
    from: usize,
    position: usize,
    random: &mut Random,
) -> Result<usize> {
    let rank = transport.group().rank();
    let mut buffer = vec![0; random.below(2000).max(1).min(TOTAL - position)];
    let lend = random.one_in(2);
    let received = if lend {
        transport.fill_buf(from, buffer.len())?.copy_to(&mut buffer)
    } else {
        transport.try_recv(from, &mut buffer)?
    };
    for (offset, &found) in buffer[..received].iter().enumerate() {
        assert_eq!(found, byte(from, rank, position + offset), "byte {} from {from}", position + offset);
    }
    if !lend {
        return Ok(received);
    }
    // Nobody is woken for less than an element that was lent and left.
    let least = if received < ELEMENT_BYTES_MAX { received } else { 0 };
    let used = least + random.below(received - least + 1);
    transport.consume(from, used)?;
    Ok(used)
}

/// Two ranks send 8 MiB to each other at the same time, which no buffer between them holds.
pub fn large_transfers_run_both_ways<L: Fabric>(meet: Meet<'_, L>) -> Result<()> {
    const LARGE: usize = 8 << 20;
    each(meet, 2, |fabric| {
        let mut port = open(fabric)?;
        let (rank, peer) = (port.rank(), 1 - port.rank());
        let (out, mut into) = (bytes(rank, peer, LARGE), vec![0; LARGE]);
        port.exchange(peer, &out, &mut into)?;
        assert!(into == bytes(peer, rank, LARGE), "rank {rank} received other bytes than were sent");
        port.flush(peer, LARGE as u64)
    })?;
    Ok(())
}

/// Calls with nothing to move are no errors, and leave the stream as it was.
pub fn empty_calls_move_nothing<L: Fabric>(meet: Meet<'_, L>) -> Result<()> {
    each(meet, 2, |fabric| {
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
