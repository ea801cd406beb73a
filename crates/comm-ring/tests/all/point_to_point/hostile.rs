//! Bytes that no correct peer sends.

use std::io::IoSlice;
use std::time::Duration;

use comm_core::{ANY_TAG, ChannelId, ChannelKind, Comm, Error, Fabric, GroupId, Loss, Transport};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan};

/// The channels of a communicator, for a rank that has none: control, collectives, messages.
pub(crate) fn channels<F: Fabric>(fabric: &F) -> Vec<F::Channel> {
    let kinds = [ChannelKind::Control, ChannelKind::Collective, ChannelKind::PointToPoint];
    let open = |kind| {
        let channel = ChannelId { group: GroupId::WORLD, kind };
        fabric.open(channel, fabric.now() + Duration::from_secs(20)).unwrap()
    };
    kinds.map(open).into_iter().collect()
}

/// Encodes a frame according to the specification.
fn frame(kind: u8, dtype: u8, tag: u64, length: u64, id: u64) -> Vec<u8> {
    let mut bytes = vec![kind, dtype, 0, 0, 0, 0, 0, 0];
    [tag, length, id].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes
}

/// Runs a rank against a peer that sends these bytes until the rank leaves.
fn against<R: Send>(bytes: &[u8], rank: impl Fn(Comm) -> R + Sync) -> R {
    let results = network::run(2, 0, &FaultPlan::calm(), |own, clock| {
        if own.group().rank() == 0 {
            let timeout = Duration::from_secs(20);
            let communicator = RingCommunicator::new(own, RingConfig::default(), timeout).unwrap();
            return Some(rank(Comm::new(communicator).with_timeout(timeout)));
        }
        let (mut channels, mut sent) = (channels(&own), 0);
        while channels[0].try_recv(0, &mut [0; 64]).is_ok() {
            sent += channels[2].try_send(0, &[IoSlice::new(&bytes[sent..])]).unwrap_or_default();
            clock.sleep(Duration::from_millis(1));
        }
        None
    });
    results.into_iter().flatten().next().unwrap()
}

/// Returns the error of a receive from a peer that sends these bytes.
fn receive_from_hostile_peer(bytes: &[u8]) -> Error {
    against(bytes, |comm| {
        let error = comm.recv(1, 5, &mut vec![0_u8; 100]).unwrap_err();
        assert!(comm.send(1, 0, &[0_u8]).is_err());
        error
    })
}

#[test]
fn an_invalid_frame_loses_only_its_peer() {
    const U8: u8 = 2;
    let announced = frame(2, U8, 5, 50, 7);
    let cases = [
        vec![0xff; 64],
        vec![0; 32],
        frame(9, 0, 0, 0, 0),
        // Messages of an unknown type, of half an element, and longer than any credit.
        frame(1, 99, 5, 4, 0),
        frame(1, 11, 5, 3, 0),
        frame(1, U8, 5, u64::MAX, 0),
        // More than the whole credit.
        [frame(1, U8, 1, 1_000_000, 0), vec![0; 1_000_000], frame(1, U8, 1, 1_000_000, 0)].concat(),
        // The same id twice, before and after the receiver asked for the message.
        [frame(2, U8, 1, 50, 7), frame(2, U8, 1, 50, 7)].concat(),
        [announced.clone(), announced.clone()].concat(),
        // Asks for a message that was never announced.
        frame(3, 0, 0, 0, 0),
        // Parts of a message that was never announced, or not asked for, or that is shorter.
        frame(4, 0, 0, 10, 7),
        [frame(2, U8, 1, 50, 7), frame(4, 0, 0, 10, 7)].concat(),
        [announced.clone(), frame(4, 0, 0, 51, 7)].concat(),
        [announced.clone(), frame(4, 0, 0, 40, 7), vec![0; 40], frame(4, 0, 0, 11, 7)].concat(),
        [announced, frame(4, 0, 0, 0, 7)].concat(),
        // Credit that was never used.
        frame(5, 0, 0, 1000, 0),
        frame(7, 0, 0, 1 << 40, 0),
    ];
    for (number, bytes) in cases.iter().enumerate() {
        match receive_from_hostile_peer(bytes) {
            Error::PeerLost { peer: 1, loss: Loss::Protocol(_), .. } => {}
            other => panic!("case {number}: {other}"),
        }
    }
}

#[test]
fn a_message_as_long_as_memory_can_be_costs_nothing_until_it_is_received() {
    let error = against(&frame(2, 2, 5, 1 << 60, 0), |comm| {
        assert_eq!(comm.probe(1, ANY_TAG).unwrap().len, 1 << 60);
        comm.recv(1, ANY_TAG, &mut vec![0_u8; 100]).unwrap_err()
    });
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn an_abort_carries_its_reason() {
    let bytes = [frame(7, 0, 0, 4, 1), b"done".to_vec()].concat();
    let error = receive_from_hostile_peer(&bytes);
    assert!(matches!(&error, Error::Aborted { by: 1, reason } if reason == "done"), "{error}");
    let error = receive_from_hostile_peer(&frame(7, 0, 0, 0, 99));
    assert!(matches!(&error, Error::Aborted { by: 1, reason } if reason.is_empty()), "{error}");
}
