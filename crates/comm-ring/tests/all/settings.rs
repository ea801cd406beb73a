//! A group uses the settings of its rank 0, whatever the others set, and the actual hosts of its
//! members.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::time::Duration;

use crate::common::{contributions, reduced, virtual_world};
use comm_core::{Comm, During, Error, Fabric, Link, LinkModel, ReduceOp};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig};

/// Returns a configuration that differs between ranks.
fn different(rank: usize) -> RingConfig {
    let mut config = RingConfig::default();
    let link = Link { latency: 1e-6, overhead: 1e-6, per_byte: 1e-9 };
    let costly = [Link { per_byte: 1.0, ..link }, Link { latency: 1.0, overhead: 1.0, ..link }, link];
    config.links = Some(LinkModel { ranks_per_host: rank + 1, ..LinkModel::uniform(costly[rank % 3], 1e-9) });
    (config.window, config.segment_bytes) = (2 + 3 * rank, 64 << rank);
    config.segments_per_pass = 1 + rank;
    config
}

#[test]
fn ranks_with_different_settings_use_those_of_rank_0() {
    for ranks in [2, 3, 5, 8] {
        in_process::run(ranks, &InProcessConfig::default(), |fabric| {
            let rank = fabric.group().rank();
            let ring = RingCommunicator::new(fabric, different(rank), Duration::from_secs(20)).unwrap();
            let comm = Comm::new(ring).with_timeout(Duration::from_secs(20));
            // If ranks selected algorithms by their own settings, they would make different calls.
            let reversed = comm.split(Some(0), -(rank as i64)).unwrap().unwrap();
            for len in [1, 100, 3000, 50_000] {
                for comm in [&comm, &reversed] {
                    let mut buffer = contributions::<f64>(rank, len);
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                    let expected: Vec<f64> = (0..len).map(|at| reduced(ranks, at, ReduceOp::Sum)).collect();
                    assert_eq!(buffer, expected);
                    comm.broadcast(ranks - 1, &mut buffer).unwrap();
                    comm.reduce(0, &mut buffer, ReduceOp::Max).unwrap();
                    assert_eq!(buffer, expected);
                }
            }
        });
    }
}

/// Returns the algorithm of a large all-reduce on a group, as named by the error of a call that
/// only its rank 0 makes.
fn algorithm(group: &Comm) -> String {
    let call = group.with_timeout(Duration::from_millis(100));
    match call.all_reduce(&mut [0.0_f32; 30_000], ReduceOp::Sum).unwrap_err() {
        Error::Timeout { during: During::Call { call, .. }, .. } => call.algorithm.into_owned(),
        other => panic!("expected a timeout, got: {other}"),
    }
}

#[test]
fn a_group_chooses_by_where_its_members_are() {
    let mut config = RingConfig::default();
    // Bytes are expensive within a host, messages between hosts.
    let dear_bytes = Link { latency: 0.0, overhead: 0.0, per_byte: 1e-6 };
    let dear_messages = Link { latency: 1.0, overhead: 0.0, per_byte: 0.0 };
    let links = LinkModel::uniform(dear_messages, 0.0);
    config.links = Some(LinkModel { within: dear_bytes, ranks_per_host: 3, ..links });
    let chosen = virtual_world(6, 0, &config, |comm, clock| {
        let one_host = comm.new_group(&[0, 1, 2]).unwrap();
        let two_hosts = comm.new_group(&[0, 1, 3]).unwrap();
        // A group created from a group uses the hosts of the world, which cannot be derived from
        // its parent.
        let mixed = comm.new_group(&[0, 3, 1, 4, 2]).unwrap();
        let sorted = mixed.map(|mixed| mixed.new_group(&[0, 2, 4]).unwrap());
        let chosen = (comm.rank() == 0).then(|| {
            [one_host.as_ref(), two_hosts.as_ref(), sorted.as_ref().unwrap().as_ref()]
                .map(|group| algorithm(group.unwrap()))
        });
        clock.sleep(Duration::from_secs(1));
        chosen
    });
    let [one_host, two_hosts, sorted] = chosen[0].as_ref().unwrap();
    assert_eq!((one_host == two_hosts, one_host), (false, sorted));
}

#[test]
fn settings_of_rank_0_that_cannot_be_used_are_refused_on_every_rank() {
    let unsound = |change: &(dyn Fn(&mut RingConfig) + Sync), name: &str| {
        let errors = in_process::run(5, &InProcessConfig::default(), |fabric| {
            let mut config = RingConfig::default();
            if fabric.group().rank() == 0 {
                change(&mut config);
            }
            RingCommunicator::new(fabric, config, Duration::from_secs(20)).map(drop).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Invalid(_)) && text.contains(name), "{text}");
        }
    };
    unsound(&|config| config.window = 1, "window of rank 0 = \"1\"");
    unsound(&|config| config.segment_bytes = 0, "segment_bytes of rank 0");
    unsound(&|config| config.segments_per_pass = 0, "segments_per_pass of rank 0");
    unsound(
        &|config| {
            let link = Link { latency: f64::NAN, overhead: 0.0, per_byte: 0.0 };
            config.links = Some(LinkModel::uniform(link, 0.0));
        },
        "links of rank 0",
    );
}
