//! The bytes that ranks send, counted in the transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::{ChannelId, ChannelKind, Comm, Fabric, Transport, Until};
use comm_ddp::{BlockCodec, DataParallel, LocalOptions, LocalTraining, Options, Parameter, ParameterSet};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric};
use comm_sim::{AlteredFabric, AlteredTransport};

use crate::slices;

const TIMEOUT: Duration = Duration::from_secs(20);
const PARAMETERS: usize = 4;
const LEN: usize = 30_000;
/// More than the headers of a call, and the words that ranks exchange besides gradients.
const OVERHEAD: u64 = 4096;

/// Runs ranks whose collectives count the bytes that they send.
fn on_ranks<R: Send>(ranks: usize, rank_main: impl Fn(Comm, &AtomicU64) -> R + Sync) -> Vec<R> {
    in_process::run(ranks, &InProcessConfig::default(), |fabric| {
        let sent = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&sent);
        let open = move |fabric: &InProcessFabric,
                         channel: ChannelId,
                         members: &[usize],
                         until: Until<'_>| {
            let (counter, counts) = (Arc::clone(&counter), channel.kind == ChannelKind::Collective);
            let send = move |transport: &mut <InProcessFabric as Fabric>::Channel,
                             to,
                             bytes: &[std::io::IoSlice<'_>]| {
                let moved = transport.try_send(to, bytes)?;
                counter.fetch_add(if counts { moved as u64 } else { 0 }, Ordering::SeqCst);
                Ok(moved)
            };
            Ok(AlteredTransport { transport: fabric.open_among(channel, members, until)?, alteration: send })
        };
        let ring = RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), TIMEOUT);
        rank_main(Comm::new(ring.unwrap()).with_timeout(TIMEOUT), &sent)
    })
}

fn parameters() -> ParameterSet {
    let named = |index: usize| Parameter::new::<f32>(format!("p{index}"), [LEN]);
    ParameterSet::new((0..PARAMETERS).map(named)).unwrap()
}

/// Trains for one period. Returns the bytes that each rank counted, and those that it reports.
fn local(ranks: usize, options: LocalOptions) -> Vec<(u64, u64)> {
    on_ranks(ranks, |comm, sent| {
        let mut values = vec![vec![1.0_f32; LEN]; PARAMETERS];
        let mut training = LocalTraining::new(&comm, parameters(), options, slices(&mut values)).unwrap();
        let (before, mut reported) = (sent.load(Ordering::SeqCst), 0);
        for step in 0..options.sync_every {
            values[step % PARAMETERS][step] += comm.rank() as f32;
            reported += training.step(slices(&mut values)).unwrap().bytes_sent;
        }
        assert_eq!(reported, training.bytes_sent());
        drop(training);
        (sent.load(Ordering::SeqCst) - before, reported)
    })
}

/// The bytes that rank 0 sends in one step of data parallel training.
fn data_parallel(ranks: usize) -> u64 {
    on_ranks(ranks, |comm, sent| {
        let options = Options::default().follow_first_step(false);
        let mut replicas = DataParallel::new(&comm, parameters(), options).unwrap();
        let before = sent.load(Ordering::SeqCst);
        let mut step = replicas.step().unwrap();
        (0..PARAMETERS).for_each(|index| step.ready(index, &vec![1.0_f32; LEN]).unwrap());
        step.finish().unwrap();
        sent.load(Ordering::SeqCst) - before
    })[0]
}

#[test]
fn the_reported_number_of_bytes_is_sent() {
    for ranks in [1, 2, 3, 4, 5, 8] {
        for codec in [None, Some(BlockCodec::Int8), Some(BlockCodec::Int4)] {
            for options in [LocalOptions::new(8), LocalOptions::new(8).fragments(4).delay(1)] {
                for (sent, reported) in local(ranks, options.codec(codec)) {
                    let range = reported..=reported + reported / 100 + OVERHEAD;
                    assert!(range.contains(&sent), "{sent} for {reported}: {options:?}, {codec:?}, {ranks}");
                    assert_eq!(reported == 0, ranks == 1);
                }
            }
        }
    }
}

#[test]
fn five_hundred_steps_and_four_bits_send_less_than_a_400th_of_data_parallel_training() {
    for ranks in [2, 4] {
        let options = LocalOptions::new(500).fragments(4).delay(5).codec(Some(BlockCodec::Int4));
        let (local, parallel) = (local(ranks, options)[0].0, 500 * data_parallel(ranks));
        assert!(parallel > 3000 * local && parallel < 4000 * local, "{local} of {parallel}");
    }
}
