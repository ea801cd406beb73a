//! The selection of algorithms for collectives that move data.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::world;
use comm_core::{Collective, LinkModel};
use comm_ring::RingConfig;
use comm_ring::choose::{CallShape, choose};
use comm_sim::in_process::InProcessConfig;

#[test]
fn an_algorithm_for_equal_shares_is_refused_where_counts_are_given() {
    world(4, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let (send, mut recv) = ([comm.rank() as u8; 3], [0; 12]);
        let refused = comm.with_algorithm("binomial").gather_v(0, &send, &mut recv, &[3; 4]).unwrap_err();
        assert!(!refused.is_fatal() && refused.to_string().contains("linear"), "{refused}");
        comm.gather_v(0, &send, &mut recv, &[3; 4]).unwrap();
        assert_eq!(comm.rank() == 0, recv == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    });
}

#[test]
fn the_algorithm_follows_the_length_and_the_number_of_ranks() {
    let link = comm_core::Link { latency: 1e-5, overhead: 1e-6, per_byte: 1e-9 };
    let tuning = RingConfig::default().tuning(LinkModel::uniform(link, 1e-10));
    let choice = |collective, ranks, bytes| {
        let question = CallShape::new(collective).ranks(ranks).bytes(bytes);
        choose(&question, None, &tuning).unwrap().algorithm.name
    };
    assert_eq!(choice(Collective::Broadcast, 8, 64), "binomial");
    assert_eq!(choice(Collective::Broadcast, 8, 200_000), "scatter_all_gather");
    assert_eq!(choice(Collective::Broadcast, 3, 16 << 20), "chain");
    assert_eq!(choice(Collective::Broadcast, 256, 16 << 20), "circulant");
    assert_eq!(choice(Collective::Gather, 256, 256), "binomial");
    assert_eq!(choice(Collective::Gather, 256, 256 << 20), "linear");
    assert_eq!(choice(Collective::GatherV, 256, 0), "linear");
    assert_eq!(choice(Collective::AllToAll, 8, 8 * 8), "pairwise");
    assert_eq!(choice(Collective::AllToAll, 64, 64 * 8), "all_gather");
    assert_eq!(choice(Collective::AllToAll, 64, 64 << 10), "pairwise");
    assert_eq!(choice(Collective::AllGather, 256, 256), "recursive_doubling");
    assert_eq!(choice(Collective::AllGather, 255, 255), "bruck");
    assert_eq!(choice(Collective::AllGather, 8, 1 << 20), "direct");
}
