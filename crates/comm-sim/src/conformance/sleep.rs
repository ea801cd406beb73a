//! Tests that sleeping ranks are woken.

use std::io::IoSlice;
use std::time::Duration;

use comm_core::{Armed, Fabric, Result, Transport, wire};

use super::CreateFabrics;
use super::port::{Gate, Port, each, open};

/// Two ranks wake each other thousands of times.
pub fn no_wakeup_is_lost<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const ROUNDS: usize = 3000;
    let sleeps = each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        let peer = 1 - port.rank();
        for round in 0..ROUNDS {
            if port.rank() == 0 {
                port.send(peer, &[round as u8])?;
            }
            assert_eq!(port.recv_byte(peer)?, round as u8);
            if port.rank() == 1 {
                port.send(peer, &[round as u8])?;
            }
        }
        Ok(port.sleeps)
    })?;
    assert!(sleeps.iter().sum::<usize>() > 0, "no rank ever slept");
    Ok(())
}

/// Tokens travel around a ring in both directions; every rank waits for all others at the same
/// time.
pub fn tokens_wake_every_rank<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const LAPS: usize = 500;
    const RANKS: usize = 3;
    each(create, RANKS, |fabric| {
        let mut port = open(fabric)?;
        let rank = port.rank();
        let neighbours = [(rank + 1) % RANKS, (rank + RANKS - 1) % RANKS];
        // One token per direction starts at rank 0, and passes every rank `LAPS` times.
        let (mut seen, mut passed) = ([0; 2], [0; 2]);
        if rank == 0 {
            for (way, to) in neighbours.into_iter().enumerate() {
                port.send(to, &[way as u8])?;
                passed[way] += 1;
            }
        }
        while seen != [LAPS; 2] {
            let incomplete = |seen: [usize; 2]| (0..2).filter(move |&way| seen[way] < LAPS);
            let mut moved = false;
            for way in incomplete(seen) {
                let mut token = [0];
                if port.transport.try_recv(neighbours[1 - way], &mut token)? == 0 {
                    continue;
                }
                assert_eq!(usize::from(token[0]), way, "a token travels in the wrong direction");
                moved = true;
                seen[way] += 1;
                if passed[way] < LAPS {
                    port.send(neighbours[way], &token)?;
                    passed[way] += 1;
                }
            }
            if !moved {
                let from: Vec<usize> = incomplete(seen).map(|way| neighbours[1 - way]).collect();
                port.wait(&from, &[])?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// A sender without capacity sleeps until there is capacity again.
pub fn capacity_wakes_a_sleeper<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let full = Gate::new(2);
    each(create, 2, |fabric| {
        let mut port = open(fabric)?;
        if port.rank() == 0 {
            let filled = fill(&mut port, 1)?;
            full.wait();
            port.wait(&[], &[1])?;
            port.send(1, &[0xff])?;
            port.send(1, &wire::words::<1, 8>([filled]))?;
            return port.recv_byte(1).map(drop);
        }
        full.wait();
        std::thread::sleep(Duration::from_millis(30));
        let filled = drain(&mut port, 0)?;
        let mut expected = [0; 8];
        port.recv(0, &mut expected)?;
        assert_eq!([filled], wire::read_words(&expected));
        port.send(0, &[1])
    })?;
    Ok(())
}

/// Sends zeros until the sender would sleep, and returns the number of accepted bytes.
pub(super) fn fill<T: Transport>(port: &mut Port<T>, to: usize) -> Result<u64> {
    let zeros = vec![0; 64 << 10];
    let mut filled = 0;
    loop {
        let sent = port.transport.try_send(to, &[IoSlice::new(&zeros)])? as u64;
        filled += sent;
        assert!(filled < 1 << 30, "the transport buffers without bound");
        if sent == 0 && port.arm(&[], &[to])? == Armed::Sleep && settled(port, to)? {
            return Ok(filled);
        }
    }
}

/// Returns whether there is still no capacity after a moment, during which a kernel may have moved
/// bytes.
fn settled<T: Transport>(port: &mut Port<T>, to: usize) -> Result<bool> {
    Ok(!port.sleep(Duration::from_millis(20))? && port.arm(&[], &[to])? == Armed::Sleep)
}

/// Receives zeros up to the first other byte, and returns their number.
pub(super) fn drain<T: Transport>(port: &mut Port<T>, from: usize) -> Result<u64> {
    let mut zeros = 0;
    loop {
        let mut buffer = [0; 4096];
        let filled = port.transport.fill_buf(from, buffer.len())?.copy_to(&mut buffer);
        let end = buffer[..filled].iter().position(|&byte| byte != 0);
        let taken = end.unwrap_or(filled);
        zeros += taken as u64;
        port.transport.consume(from, end.map_or(filled, |end| end + 1))?;
        if end.is_some() {
            return Ok(zeros);
        }
        if filled == 0 {
            port.wait(&[from], &[])?;
        }
    }
}
