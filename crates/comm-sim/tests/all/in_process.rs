//! The in-process transport passes the conformance suite, in every configuration.

use std::io::IoSlice;
use std::sync::Barrier;
use std::time::Duration;

use comm_core::{Armed, ChannelId, ChannelKind, Error, Fabric, GroupId, Interest, Invalid, Transport};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport, Release};
use comm_sim::{conformance, transport_conformance};

const CHANNEL: ChannelId = ChannelId { group: GroupId::WORLD, kind: ChannelKind::Collective };

/// An odd capacity that is smaller than most messages of the suite.
const TINY: usize = 509;

fn with(change: impl Fn(&mut InProcessConfig)) -> impl Fn(usize) -> Vec<InProcessFabric> {
    let mut config = InProcessConfig::default();
    change(&mut config);
    move |n| InProcessFabric::with_config(n, &config)
}

transport_conformance!(default, InProcessFabric::create);
transport_conformance!(tiny, with(|config| config.capacity = TINY));
transport_conformance!(released_on_consume, with(|config| config.release = Release::OnConsume));
transport_conformance!(dribbling, with(|config| config.dribble = Some(1)));
transport_conformance!(
    all_at_once,
    with(|config| *config = InProcessConfig::default().capacity(TINY).release(Release::OnConsume).dribble(2))
);

/// Returns the fabrics and transports of `N` ranks, which are opened in separate threads.
fn opened<const N: usize>(config: &InProcessConfig) -> Option<[(InProcessFabric, InProcessTransport); N]> {
    let open = |fabric: InProcessFabric| {
        let transport = fabric.open(CHANNEL, fabric.now() + Duration::from_secs(30)).ok()?;
        Some((fabric, transport))
    };
    in_process::run(N, config, open).into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

fn released_on_consume() -> InProcessConfig {
    InProcessConfig::default().release(Release::OnConsume)
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, Error>, rank: usize) -> bool {
    matches!(result, Err(Error::PeerLost { peer, .. }) if peer == rank)
}

#[test]
fn bytes_are_unreleased_until_they_are_consumed() {
    let [(fabric, mut sender), (_, mut receiver)] = opened(&released_on_consume()).unwrap();
    assert_eq!(sender.try_send(1, &[IoSlice::new(b"abcdef")]).unwrap(), 6);
    assert_eq!((sender.released(1), fabric.unreleased()), (0, 6));
    assert_eq!(receiver.fill_buf(0, 9).unwrap().len(), 6);
    assert_eq!(sender.released(1), 0);
    receiver.consume(0, 4).unwrap();
    assert_eq!((sender.released(1), fabric.unreleased()), (4, 2));
    assert_eq!(receiver.try_recv(0, &mut [0; 9]).unwrap(), 2);
    assert_eq!((sender.released(1), fabric.unreleased()), (6, 0));
}

#[test]
fn a_sleeping_sender_wakes_when_its_bytes_are_released() {
    let [(_, mut sender), (_, mut receiver)] = opened(&released_on_consume()).unwrap();
    let mut interest = Interest::default();
    interest.add_send(1);
    assert_eq!(sender.arm(&interest).unwrap(), Armed::Ready);
    assert_eq!(sender.try_send(1, &[IoSlice::new(b"ab")]).unwrap(), 2);
    sender.released(1);
    assert_eq!(sender.arm(&interest).unwrap(), Armed::Sleep);
    receiver.consume(0, 0).unwrap();
    assert_eq!(receiver.try_recv(0, &mut [0]).unwrap(), 1);
    assert_eq!(sender.arm(&interest).unwrap(), Armed::Ready);
}

#[test]
fn revoked_bytes_never_count_as_received() {
    let [(fabric, mut sender), (_, mut receiver), (_, mut other)] = opened(&released_on_consume()).unwrap();
    sender.try_send(1, &[IoSlice::new(b"abcdef")]).unwrap();
    receiver.fill_buf(0, 6).unwrap();
    sender.revoke();
    assert!(is_lost(receiver.consume(0, 6), 0));
    assert!(is_lost(receiver.try_recv(0, &mut [0]), 0));
    assert!(is_lost(sender.try_send(1, &[IoSlice::new(b"g")]), 1));
    assert_eq!((sender.released(1), fabric.unreleased()), (6, 0));
    // Nothing was sent to the third rank.
    sender.try_send(2, &[IoSlice::new(b"h")]).unwrap();
    assert_eq!(other.try_recv(0, &mut [0]).unwrap(), 1);
}

#[test]
fn a_dropped_receiver_releases_unread_bytes() {
    let [(_, mut sender), (_, receiver)] = opened(&released_on_consume()).unwrap();
    sender.try_send(1, &[IoSlice::new(b"abcdef")]).unwrap();
    drop(receiver);
    assert_eq!(sender.released(1), 6);
}

#[test]
fn only_ranks_that_never_arrived_are_named() {
    let together = Barrier::new(3);
    let waiting = in_process::run(3, &InProcessConfig::default(), |fabric| {
        let rank = fabric.group().rank();
        let wait = Duration::from_millis([50, 1000, 0][rank]);
        together.wait();
        let opened = if rank == 2 { None } else { Some(fabric.open(CHANNEL, fabric.now() + wait)) };
        together.wait();
        match opened {
            Some(Err(Error::Timeout { waiting_for, .. })) => waiting_for,
            _ => vec![],
        }
    });
    assert_eq!(waiting, [vec![2], vec![2], vec![]]);
}

#[test]
fn a_rank_that_left_is_named_without_waiting() {
    let opened = in_process::run(2, &InProcessConfig::default(), |fabric| {
        let deadline = fabric.now() + Duration::from_secs(300);
        if fabric.group().rank() == 0 { Some(fabric.open(CHANNEL, deadline)) } else { None }
    });
    assert!(matches!(opened[0], Some(Err(Error::PeerLost { peer: 1, .. }))), "{opened:?}");
}

#[test]
fn a_rank_that_gave_up_may_open_the_channel_again() {
    let gave_up = Barrier::new(2);
    let opened = in_process::run(2, &InProcessConfig::default(), |fabric| {
        let late = Duration::from_secs(30);
        if fabric.group().rank() == 1 {
            gave_up.wait();
            return fabric.open(CHANNEL, fabric.now() + late).is_ok();
        }
        let first = fabric.open(CHANNEL, fabric.now() + Duration::from_millis(20));
        gave_up.wait();
        let second = fabric.open(CHANNEL, fabric.now() + late);
        first.is_err() && second.is_ok()
    });
    assert_eq!(opened, [true, true]);
}

#[test]
fn a_channel_opens_again_once_every_rank_has_opened_it() {
    let waits = in_process::run(3, &InProcessConfig::default(), |fabric| {
        let open = || fabric.open(CHANNEL, fabric.now() + Duration::from_secs(30));
        (0..50).map(|_| open()).filter(Result::is_ok).count()
    });
    assert_eq!(waits, [50; 3]);
}

#[test]
fn a_peer_out_of_range_is_rejected() {
    let [(_, mut first), _second] = opened(&InProcessConfig::default()).unwrap();
    for peer in [0, 2, usize::MAX] {
        let refused = first.try_recv(peer, &mut [0]);
        assert!(matches!(refused, Err(Error::Invalid(Invalid::Rank { rank, size: 2 })) if rank == peer));
    }
}

#[test]
fn queues_of_one_byte_suffice() {
    let config = InProcessConfig::default().capacity(1);
    conformance::all_pairs_exchange_ordered_bytes(&|n| InProcessFabric::with_config(n, &config)).unwrap();
}
