//! Tests of bytes that are received in place, and of the release of their memory to the sender.

use std::io::IoSlice;
use std::ops::Range;
use std::time::Instant;

use comm_core::{Fabric, Result, Transport};

use super::CreateFabrics;
use super::port::{Port, byte, bytes, each, limit, open};
use crate::random::Random;

/// Fills the receive buffer with up to `at_most` bytes, checks them against the stream from
/// `position`, and returns their number.
fn fill_buf<T: Transport>(port: &mut Port<T>, from: usize, position: usize, at_most: usize) -> Result<usize> {
    let rank = port.rank();
    let filled = port.transport.fill_buf(from, at_most)?;
    assert!(filled.len() <= at_most, "{} bytes, although at most {at_most} were requested", filled.len());
    let mut copy = vec![0; filled.len()];
    assert_eq!(filled.copy_to(&mut copy), copy.len());
    for (offset, &found) in copy.iter().enumerate() {
        assert_eq!(found, byte(from, rank, position + offset), "byte {} from {from}", position + offset);
    }
    Ok(copy.len())
}

/// Runs `recv` on rank 1, with the position in the stream, until rank 1 has received the `total`
/// bytes that rank 0 sends.
fn drain<L: Fabric>(
    create: CreateFabrics<'_, L>,
    total: usize,
    recv: impl Fn(&mut Port<L::Channel>, usize, &mut Random) -> Result<usize> + Sync,
) -> Result<()> {
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        if port.rank() == 0 {
            port.send(1, &bytes(0, 1, total))?;
            return port.recv_byte(1).map(drop);
        }
        let (mut position, mut random, limit) = (0, Random::new(3, 0), limit());
        while position < total {
            let taken = recv(&mut port, position, &mut random)?;
            position += taken;
            if taken == 0 {
                port.wait(&[0], &[])?;
            }
            assert!(Instant::now() < limit, "nothing arrives from byte {position} on");
        }
        assert_eq!(position, total);
        port.send(0, &[1])
    })?;
    Ok(())
}

/// Bytes that were not consumed are returned again, perhaps followed by later bytes, for arbitrary
/// sizes.
pub fn bytes_stay_until_they_are_consumed<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    drain(create, 50_021, |port, position, random| {
        let at_most = random.below(777);
        let first = fill_buf(port, 0, position, at_most)?;
        let consumed = random.below(first + 1);
        port.transport.consume(0, consumed)?;
        let left = first - consumed;
        let again = fill_buf(port, 0, position + consumed, at_most)?;
        assert!(again >= left, "of {left} bytes that were not consumed, {again} are returned again");
        port.transport.consume(0, again)?;
        Ok(consumed + again)
    })
}

/// After part of the buffer was consumed, a receive starts after that part.
pub fn receives_start_after_the_consumed_bytes<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    drain(create, 50_021, |port, position, random| {
        let filled = fill_buf(port, 0, position, random.below(99))?;
        let consumed = random.below(filled + 1);
        port.transport.consume(0, consumed)?;
        let mut buffer = vec![0; random.below(99)];
        let received = port.transport.try_recv(0, &mut buffer)?;
        for (offset, &found) in buffer[..received].iter().enumerate() {
            let at = position + consumed + offset;
            assert_eq!(found, byte(0, 1, at), "byte {at}");
        }
        Ok(consumed + received)
    })
}

/// A receiver that consumes only whole elements never gets stuck with part of one, wherever
/// elements start.
pub fn whole_elements_can_be_consumed_at_any_offset<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const ODD: usize = 3;
    const ELEMENT: usize = 8;
    drain(create, ODD + 40_000 * ELEMENT, |port, position, random| {
        if position < ODD {
            let filled = fill_buf(port, 0, position, ODD - position)?;
            port.transport.consume(0, filled)?;
            return Ok(filled);
        }
        let filled = fill_buf(port, 0, position, ELEMENT * (1 + random.below(100)))?;
        let whole = filled - filled % ELEMENT;
        port.transport.consume(0, whole)?;
        Ok(whole)
    })
}

/// The buffer is empty only if nothing has arrived, and its bytes stay until they are consumed. No
/// more bytes are sent in the meantime, so a receiver waits forever if the transport withholds the
/// last ones because they are less than an element or fewer than requested.
pub fn the_buffer_is_empty_only_if_nothing_has_arrived<L: Fabric>(
    create: CreateFabrics<'_, L>,
) -> Result<()> {
    const ROUNDS: usize = 60;
    const MOST: usize = 21;
    let count = |round: usize| 1 + round % MOST;
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let (mut start, mut random) = (0, Random::new(5, 0));
        for round in 0..ROUNDS {
            let end = start + count(round);
            if port.rank() == 0 {
                // In pieces, so that an element may begin in one piece and end in another.
                let out = bytes(0, 1, end);
                out[start..].chunks(1 + round % 5).try_for_each(|piece| port.send(1, piece))?;
                port.recv_byte(1)?;
            } else {
                take_all(&mut port, start..end, &mut random)?;
                port.send(0, &[1])?;
            }
            start = end;
        }
        Ok(())
    })?;
    Ok(())
}

/// Receives the bytes in this range, which are the last that rank 0 has sent.
fn take_all<T: Transport>(port: &mut Port<T>, range: Range<usize>, random: &mut Random) -> Result<()> {
    let (mut position, mut seen, limit) = (range.start, 0, limit());
    while position < range.end {
        for _ in 0..5 {
            let at_most = 1 + random.below(2 * range.len());
            let filled = fill_buf(port, 0, position, at_most)?;
            assert!(
                filled >= seen.min(at_most),
                "{filled} bytes, although {at_most} of {seen} were requested"
            );
            seen = seen.max(filled);
        }
        seen = seen.max(fill_buf(port, 0, position, range.len())?);
        let consumed = random.below(seen + 1);
        port.transport.consume(0, consumed)?;
        position += consumed;
        seen -= consumed;
        if seen == 0 && position < range.end {
            port.wait(&[0], &[])?;
        }
        assert!(Instant::now() < limit, "nothing arrives from byte {position} on");
    }
    Ok(())
}

/// Bytes are never released before they are accepted, the released position never decreases, and
/// all bytes are released once they are received. A rank that sleeps until the release is woken.
pub fn all_accepted_bytes_are_released<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const TOTAL: usize = 300_000;
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        if port.rank() == 1 {
            let mut into = vec![0; TOTAL];
            port.recv(peer, &mut into)?;
            return port.send(peer, &[1]);
        }
        let out = bytes(0, 1, TOTAL);
        let (mut accepted, mut released) = (0, 0);
        while accepted < TOTAL {
            let sent = port.transport.try_send(peer, &[IoSlice::new(&out[accepted..])])?;
            accepted += sent;
            let now = port.transport.released(peer);
            assert!(
                released <= now && now <= accepted as u64,
                "{released}, then {now} of {accepted} released"
            );
            released = now;
            if sent == 0 {
                port.wait(&[], &[peer])?;
            }
        }
        port.flush(peer, TOTAL as u64)?;
        assert_eq!(port.transport.released(peer), TOTAL as u64);
        port.recv_byte(peer).map(drop)
    })?;
    Ok(())
}

/// Revocation has no effect if everything is released, and the streams continue.
pub fn revoking_without_registered_memory_has_no_effect<L: Fabric>(
    create: CreateFabrics<'_, L>,
) -> Result<()> {
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        for round in 1..=3_u8 {
            port.send(peer, &[round; 100])?;
            let mut into = [0; 100];
            port.recv(peer, &mut into)?;
            assert_eq!(into, [round; 100]);
            port.flush(peer, u64::from(round) * 100)?;
            port.transport.revoke();
        }
        Ok(())
    })?;
    Ok(())
}
