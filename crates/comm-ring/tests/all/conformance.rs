//! The conformance suite of communicators, with every algorithm over in-process channels.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use comm_core::{Collective, Comm};
use comm_ring::RingCommunicator;
use comm_ring::schedule::Algorithm;
use comm_sim::communicator_conformance::{Features, HostMember};
use comm_sim::in_process::{InProcessConfig, InProcessFabric, Release};

const TIMEOUT: Duration = Duration::from_secs(60);

fn names(collective: Collective) -> Vec<&'static str> {
    Algorithm::for_collective(collective).map(|row| row.name).collect()
}

/// Ranks with small segments, which check every `step`-th combination with every row of the table.
fn create(ranks: usize, network: &InProcessConfig, step: usize) -> Vec<HostMember> {
    let mut config = crate::common::small_segments();
    config.announce_after = Duration::from_millis(10);
    comm_sim::run_each(InProcessFabric::with_config(ranks, network), |fabric| {
        let mut features = Features::default();
        (features.algorithms, features.step) = (names, step);
        let communicator = RingCommunicator::new(fabric, config.clone(), TIMEOUT).unwrap();
        HostMember::new(Comm::new(communicator).with_timeout(TIMEOUT), features)
    })
}

comm_sim::communicator_conformance!(defaults, [1, 2, 3, 4, 5, 6, 7, 8, 9, 13], |ranks| {
    create(ranks, &InProcessConfig::default(), 1)
});
comm_sim::communicator_conformance!(larger_worlds, [16, 24], |ranks| {
    create(ranks, &InProcessConfig::default(), 53)
});
comm_sim::communicator_conformance!(tiny_channels, [2, 3, 5], |ranks| {
    create(ranks, &InProcessConfig::default().capacity(7), 7)
});
comm_sim::communicator_conformance!(bytes_that_dribble, [2, 3, 5], |ranks| {
    create(ranks, &InProcessConfig::default().dribble(1), 7)
});
comm_sim::communicator_conformance!(memory_that_is_read_until_consumed, [2, 3, 5], |ranks| {
    let network = InProcessConfig::default().release(Release::OnConsume).capacity(100).dribble(2);
    create(ranks, &network, 7)
});
