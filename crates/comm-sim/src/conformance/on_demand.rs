//! Tests of transports that connect two ranks when one of them first uses the stream.

use comm_core::{Armed, Fabric, Result, Transport};

use super::CreateFabrics;
use super::port::{Gate, Port, TIMEOUT, bytes, each, open};

fn connected<T: Transport>(port: &Port<T>) -> Vec<usize> {
    let transport = &port.transport;
    transport.group().peers().filter(|&peer| transport.is_open(peer)).collect()
}

/// Only the pairs that exchange something are connected.
pub fn only_used_streams_are_connected<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const RANKS: usize = 5;
    let done = Gate::new(RANKS);
    each(create, RANKS, |fabric| {
        let mut port = open(fabric)?;
        assert!(connected(&port).is_empty());
        let rank = port.rank();
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        port.send(next, &bytes(rank, next, 100))?;
        let mut into = [0; 100];
        port.recv(before, &mut into)?;
        assert_eq!(into[..], bytes(before, rank, 100));
        done.wait();
        let mut expected = [next, before];
        expected.sort_unstable();
        assert_eq!(connected(&port), expected);
        Ok(())
    })?;
    Ok(())
}

/// A rank that makes no call of its transport is connected by both lower and higher ranks, and gets
/// their bytes later.
pub fn a_rank_in_no_call_is_connected<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    for receiver in [0, 1, 2] {
        let sent = Gate::new(3);
        each(create, 3, |fabric| {
            let mut port = open(fabric)?;
            let rank = port.rank();
            if rank != receiver {
                port.send(receiver, &bytes(rank, receiver, 100))?;
                assert_eq!(connected(&port), [receiver]);
                sent.wait();
                return port.recv_byte(receiver).map(drop);
            }
            sent.wait();
            for peer in fabric.group().peers() {
                let mut into = [0; 100];
                port.recv(peer, &mut into)?;
                assert_eq!(into[..], bytes(peer, rank, 100));
                port.send(peer, &[1])?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A rank that finds a new stream when it is about to sleep does not sleep: its interest does not
/// contain that stream yet.
pub fn a_new_stream_keeps_a_rank_from_sleeping<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    for receiver in [0, 1] {
        let (sender, opened) = (1 - receiver, Gate::new(2));
        each(create, 2, |fabric| {
            let mut port = open(fabric)?;
            opened.wait();
            if port.rank() == sender {
                port.send(receiver, &[7])?;
                return port.recv_byte(receiver).map(drop);
            }
            loop {
                let armed = port.arm(&[], &[])?;
                if port.transport.is_open(sender) {
                    assert_eq!(armed, Armed::Ready);
                    break;
                }
                assert!(armed == Armed::Ready || port.sleep(TIMEOUT)?, "rank {receiver} is not connected");
            }
            assert_eq!(port.recv_byte(sender)?, 7);
            port.send(sender, &[8])
        })?;
    }
    Ok(())
}
