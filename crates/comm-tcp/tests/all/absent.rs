//! Members that never open a channel, open it late, or have exited, and the hosts of ranks.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{SOON, WORLD, config, introduce, open, rendezvous, run, store};
use comm_core::{ChannelId, Error, Fabric, GroupId, Loss, Result};

#[test]
fn a_rank_that_never_opens_the_channel_is_named() {
    let (_server, store) = store();
    let others_failed = Barrier::new(3);
    let outcomes = run((0..3).map(|rank| config(rank, 3)).collect(), &store, |fabric| {
        if fabric.group().rank() == 1 {
            others_failed.wait();
            return Ok(());
        }
        let opened = fabric.open(WORLD, Instant::now() + Duration::from_millis(400)).map(drop);
        others_failed.wait();
        assert!(
            matches!(&opened, Err(Error::Timeout { waiting_for, .. }) if waiting_for == &[1]),
            "{opened:?}"
        );
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok));
}

#[test]
fn an_exited_rank_is_an_error_with_its_address_and_the_reason() {
    let (_server, store) = store();
    let mut fabrics: Vec<_> = rendezvous((0..2).map(|rank| config(rank, 2)).collect(), &store)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let address = fabrics[0].addresses()[0];
    drop(fabrics.remove(0));
    let error = open(&fabrics[0], WORLD).unwrap_err();
    assert!(matches!(&error, Error::PeerLost { peer: 0, loss: Loss::Io(_), .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains(&address.to_string()) && message.contains("refused"), "{message}");
    assert!(message.contains("attempts"), "{message}");
}

#[test]
fn a_rank_that_exits_before_it_connects_is_named_long_before_the_deadline() {
    let (_server, store) = store();
    let outcomes = run((0..4).map(|rank| config(rank, 4)).collect(), &store, |fabric| {
        let rank = fabric.group().rank();
        if rank == 3 {
            return Ok(None);
        }
        let channel = ChannelId { group: GroupId(1), ..WORLD };
        Ok(fabric.open_among(channel, &[3, 2, 1, 0], (Instant::now() + SOON).into()).err())
    });
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        match outcome.unwrap() {
            Some(Error::PeerLost { peer: 0, loss: Loss::Io(_), .. }) => {}
            other => assert!(rank == 3 && other.is_none(), "rank {rank}: {other:?}"),
        }
    }
}

#[test]
fn a_rank_that_is_only_late_is_waited_for() {
    let (_server, store) = store();
    let outcomes = run((0..3).map(|rank| config(rank, 3)).collect(), &store, |fabric| {
        if fabric.group().rank() == 2 {
            thread::sleep(Duration::from_millis(3500));
        }
        introduce(&mut open(&fabric, WORLD)?);
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn ranks_with_the_same_address_are_on_one_host() {
    let (_server, store) = store();
    // Every address of 127.0.0.0/8 belongs to this machine.
    let bind = |rank, host: u8| {
        let mut config = config(rank, 5);
        config.bind = Some([127, 0, 0, host].into());
        config
    };
    for (round, (hosts, expected)) in
        [([1, 1, 1, 1, 1], 5), ([1, 1, 2, 2, 3], 2), ([1, 2, 2, 1, 1], 1)].into_iter().enumerate()
    {
        let configs = hosts.iter().enumerate().map(|(rank, host)| {
            let mut config = bind(rank, *host);
            config.member.round = round as u64;
            config
        });
        for outcome in run(configs.collect(), &store, |fabric| Ok(fabric.links().ranks_per_host)) {
            assert_eq!(outcome.unwrap(), expected, "{hosts:?}");
        }
    }
}
