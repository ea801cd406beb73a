//! Connections that break in virtual time. Every error names one of the two ends, also on ranks
//! that learn of it only by reports of reports, and the rank that knows the cause states it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::IoSlice;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Comm, During, Error, Fabric, Loss, ReduceOp, Result, Transport, Until,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::network::{self, FaultPlan, Incident, NetworkFabric, NetworkTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

const TIMEOUT: Duration = Duration::from_secs(5);
/// The ends of the connection that breaks.
const ENDS: [usize; 2] = [0, 5];

fn work(fabric: NetworkFabric) -> Result<()> {
    let comm = Comm::new(RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT)?);
    for call in 0..20 {
        let mut sum = [call; 97];
        comm.with_timeout(TIMEOUT).all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [6 * call; 97]);
    }
    comm.finalize()
}

/// Returns the rank that an error names.
fn named(error: &Error) -> Option<usize> {
    match error.root_cause() {
        Error::PeerLost { peer, .. } => Some(*peer),
        Error::Aborted { by, .. } => Some(*by),
        _ => None,
    }
}

#[test]
fn ranks_that_learn_of_a_broken_connection_by_reports_name_one_of_its_ends() {
    let mut failed = 0;
    for seed in 0..300 {
        let plan = FaultPlan::rough().capacity(4096);
        let time = Duration::from_micros(1000 + 97 * seed);
        let plan = plan.and(time, Incident::Corruption { from: ENDS[0], to: ENDS[1] });
        let errors = network::run(6, seed, &plan, |fabric, _| work(fabric).err());
        for rank in (0..6).filter(|rank| !ENDS.contains(rank)) {
            let Some(error) = &errors[rank] else { continue };
            failed += 1;
            let is_named = named(error).is_some_and(|rank| ENDS.contains(&rank));
            assert!(is_named, "seed {seed}: rank {rank}: {error}");
        }
    }
    assert!(failed > 500, "only {failed} errors");
}

/// Opens a channel. On one for collectives, sends find the peer lost once `loss` is set.
fn breakable(
    fabric: &NetworkFabric,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
    loss: &Arc<OnceLock<Loss>>,
) -> Result<impl Transport + use<>> {
    let transport = fabric.open_among(channel, members, until)?;
    let (loss, is_it) = (Arc::clone(loss), channel.kind == ChannelKind::Collective);
    let send = move |transport: &mut NetworkTransport, to: usize, bytes: &[IoSlice<'_>]| {
        let lost = |loss: &Loss| Error::PeerLost { peer: to, during: During::Sending, loss: loss.clone() };
        loss.get().filter(|_| is_it).map_or_else(|| transport.try_send(to, bytes), |loss| Err(lost(loss)))
    };
    Ok(AlteredTransport { transport, alteration: send })
}

/// Returns the errors of two ranks whose connection breaks. Rank 0 sees the end of the stream, and
/// rank 1, this long later, that the host of rank 0 does not answer.
fn errors_after_silence(later: Duration) -> Vec<Error> {
    network::run(2, 0, &FaultPlan::calm(), |fabric, clock| {
        let (rank, loss) = (fabric.group().rank(), Arc::default());
        let breaks = Arc::clone(&loss);
        let open = move |fabric: &NetworkFabric, channel, members: &[usize], until: Until<'_>| {
            breakable(fabric, channel, members, until, &loss)
        };
        let ring = RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), TIMEOUT);
        let comm = Comm::new(ring.unwrap()).with_timeout(TIMEOUT);
        let losses = [Loss::Closed, Loss::HostUnreachable { after: TIMEOUT }];
        breaks.set(losses[rank].clone()).unwrap();
        clock.sleep(later * rank as u32);
        comm.all_reduce(&mut [1_u8], ReduceOp::Sum).unwrap_err()
    })
}

#[test]
fn a_rank_whose_peer_does_not_answer_says_so_even_if_the_peer_noticed_something_first() {
    for millis in [0, 1, 100] {
        let errors = errors_after_silence(Duration::from_millis(millis));
        let [told, knows] = &errors[..] else { unreachable!() };
        let is_known = matches!(knows, Error::PeerLost { peer: 0, loss: Loss::HostUnreachable { .. }, .. });
        assert!(is_known, "{millis} ms: {knows}");
        let what = "this rank's host has not answered";
        let is_told = matches!(told, Error::Aborted { by: 1, reason } if reason.starts_with(what));
        assert!(is_told, "{millis} ms: {told}");
    }
}
