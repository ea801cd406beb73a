//! Tests of ranks that open channels.

use std::thread;
use std::time::Duration;

use comm_core::{Armed, ChannelId, ChannelKind, Error, Fabric, GroupId, Result, Transport, wire};

use super::CreateFabrics;
use super::port::{Gate, Port, channel, each, lost, open};
use super::sleep::{drain, fill};

/// Fabrics and transports know their rank, and clocks do not run backwards.
pub fn ranks_know_their_own_rank<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    for n in [1, 2, 5] {
        let ranks = each(create, n, |fabric| {
            let before = fabric.now();
            let port = open(fabric)?;
            let (ours, theirs) = (fabric.group(), port.transport.group());
            assert_eq!((theirs.id(), theirs.rank(), theirs.size()), (GroupId::WORLD, ours.rank(), n));
            assert_eq!(ours.size(), n);
            assert!(port.transport.now() >= before);
            Ok(ours.rank())
        })?;
        assert_eq!(ranks, (0..n).collect::<Vec<_>>());
    }
    Ok(())
}

/// A single rank can open a channel, sleep on it, and be woken by an abort.
pub fn a_world_of_one_has_channels<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    each(create, 1, |fabric| {
        let mut port = open(fabric)?;
        while port.arm(&[], &[])? == Armed::Ready {}
        let cause = Error::Aborted { by: 0, reason: "done".into() };
        port.transport.abort_handle().abort(cause);
        assert!(port.sleep(Duration::from_secs(30))?, "an abort must wake the rank");
        assert!(port.arm(&[], &[]).is_err());
        Ok(())
    })?;
    Ok(())
}

/// Ranks open the same channels in different orders, each in a separate thread, and no byte ends up
/// on another channel.
pub fn channels_open_in_any_order<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    const RANKS: usize = 3;
    let ids = [
        channel(ChannelKind::Control),
        channel(ChannelKind::Collective),
        channel(ChannelKind::PointToPoint),
        ChannelId { group: GroupId(0x5eed), kind: ChannelKind::Collective },
    ];
    each(create, RANKS, |fabric| {
        let talk = |at: usize| -> Result<()> {
            thread::sleep(Duration::from_millis(5 * ((at + fabric.group().rank() * 3) % ids.len()) as u64));
            let mut port = Port::open(fabric, ids[at])?;
            let peers: Vec<usize> = fabric.group().peers().collect();
            for &peer in &peers {
                port.send(peer, &[at as u8, port.rank() as u8])?;
            }
            for &peer in &peers {
                let mut received = [0; 2];
                port.recv(peer, &mut received)?;
                assert_eq!(received, [at as u8, peer as u8], "a byte arrived on the wrong channel");
            }
            Ok(())
        };
        crate::run_each((0..ids.len()).collect(), talk).into_iter().collect::<Result<Vec<()>>>()
    })?;
    Ok(())
}

/// A full channel does not block others.
pub fn a_full_channel_does_not_block_others<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let full = Gate::new(2);
    each(create, 2, |fabric| {
        let mut stalled = open(fabric)?;
        let mut free = Port::open(fabric, channel(ChannelKind::PointToPoint))?;
        let peer = 1 - free.rank();
        let filled = if free.rank() == 0 { fill(&mut stalled, peer)? } else { 0 };
        full.wait();
        for round in 0..100_u8 {
            free.send(peer, &[round; 100])?;
            let mut into = [0; 100];
            free.recv(peer, &mut into)?;
            assert_eq!(into, [round; 100]);
        }
        if free.rank() == 0 {
            stalled.send(peer, &[0xff])?;
            // A transport may hold accepted bytes until it is called again.
            stalled.flush(peer, filled + 1)?;
            free.send(peer, &wire::words::<1, 8>([filled]))?;
            return free.recv_byte(peer).map(drop);
        }
        let drained = drain(&mut stalled, peer)?;
        let mut expected = [0; 8];
        free.recv(peer, &mut expected)?;
        assert_eq!([drained], wire::read_words(&expected));
        free.send(peer, &[1])
    })?;
    Ok(())
}

/// At the deadline, the rank that did not open the channel is named.
pub fn a_missing_rank_is_named<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let over = Gate::new(3);
    each(create, 3, |fabric| {
        let rank = fabric.group().rank();
        if rank != 2 {
            let id = channel(ChannelKind::PointToPoint);
            let opened = fabric.open(id, fabric.now() + Duration::from_millis(300)).map(drop);
            let named = match &opened {
                Err(Error::Timeout { waiting_for, .. }) => &waiting_for[..],
                _ => &[],
            };
            assert!(named.contains(&2) && !named.contains(&rank), "{opened:?}");
        }
        over.wait();
        Ok(())
    })?;
    Ok(())
}

/// A rank that has exited is named: immediately if its exit is detected, otherwise at the deadline.
pub fn a_rank_that_left_is_named_by_the_deadline<L: Fabric>(create: CreateFabrics<'_, L>) -> Result<()> {
    let over = Gate::new(2);
    let mut all = create(3);
    drop(all.pop());
    crate::run_each(all, |fabric| {
        let opened =
            fabric.open(channel(ChannelKind::Collective), fabric.now() + Duration::from_secs(2)).map(drop);
        let timed_out =
            matches!(&opened, Err(Error::Timeout { waiting_for, .. }) if waiting_for.contains(&2));
        assert!(timed_out || lost(&opened) == Some(2), "{opened:?}");
        over.wait();
    });
    Ok(())
}
