//! All-reduces of encoded elements: one result on all ranks, in few bytes.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comm_core::{Comm, Fabric, Invalid, ReduceOp, Transport, Until, wire};
use comm_ddp::{BlockCodec, EncodedAllReduce, Error};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

use crate::on_ranks;

const CODECS: [BlockCodec; 2] = [BlockCodec::Int8, BlockCodec::Int4];
const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];

fn lengths(size: usize) -> [usize; 10] {
    [0, 1, size - 1, size, size + 1, 63, 64, 65, 64 * size + 1, 1000]
}

fn noise(rank: usize, call: usize, len: usize) -> Vec<f32> {
    let number = |at: usize| {
        let bits = wire::digest([rank as u64, call as u64, at as u64]);
        ((bits >> 40) as f32 / 8_388_608.0 - 1.0) * 2_f32.powi((bits % 8) as i32)
    };
    (0..len).map(number).collect()
}

/// Returns the elements that other ranks decode.
fn decoded(codec: BlockCodec, elements: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; codec.encoded_len(elements.len())];
    codec.encode(elements, &mut bytes).unwrap();
    let mut decoded = vec![0.0; elements.len()];
    codec.decode(&bytes, &mut decoded).unwrap();
    decoded
}

fn bits(elements: &[f32]) -> Vec<u32> {
    elements.iter().map(|element| element.to_bits()).collect()
}

#[test]
fn the_result_is_the_encoded_sum_of_decoded_elements_in_rank_order() {
    for codec in CODECS {
        for size in WORLDS {
            for len in lengths(size) {
                let mut expected = vec![0.0; len];
                for rank in 0..size {
                    let decoded = decoded(codec, &noise(rank, 0, len));
                    expected.iter_mut().zip(decoded).for_each(|(sum, element)| *sum += element);
                }
                let results = on_ranks(size, |comm| {
                    [(ReduceOp::Sum, 1.0), (ReduceOp::Avg, 1.0 / size as f32)].map(|(op, factor)| {
                        let mut elements = noise(comm.rank(), 0, len);
                        let mut encoded = EncodedAllReduce::new(codec).error_feedback(false);
                        encoded.all_reduce(&comm, &mut elements, op).unwrap();
                        assert!(encoded.residual().is_empty());
                        (elements, factor)
                    })
                });
                for (elements, factor) in results.iter().flatten() {
                    let scaled: Vec<f32> = expected.iter().map(|sum| sum * factor).collect();
                    assert_eq!(bits(elements), bits(&decoded(codec, &scaled)), "{codec:?} {size} {len}");
                }
            }
        }
    }
}

#[test]
fn elements_that_are_multiples_of_the_scale_are_summed_exactly() {
    for (codec, levels) in [(BlockCodec::Int8, 127), (BlockCodec::Int4, 7)] {
        for size in WORLDS {
            on_ranks(size, |comm| {
                // Every block has the largest integer.
                let integer =
                    move |at: i32| if at % 60 == 0 { levels } else { at % (2 * levels + 1) - levels };
                let times = |factor: usize| (0..700).map(move |at| (integer(at) * factor as i32) as f32);
                let mut elements: Vec<f32> = times(comm.rank() + 1).collect();
                EncodedAllReduce::new(codec).all_reduce(&comm, &mut elements, ReduceOp::Sum).unwrap();
                assert!(elements.iter().copied().eq(times(size * (size + 1) / 2)));
            });
        }
    }
}

/// Makes `calls` calls, and returns the sums of exact and of decoded averages, and the residual.
fn accumulate(
    comm: &Comm,
    codec: BlockCodec,
    feedback: bool,
    calls: usize,
) -> (Vec<f64>, Vec<f64>, Vec<f32>) {
    const LEN: usize = 333;
    let mut encoded = EncodedAllReduce::new(codec).error_feedback(feedback);
    let (mut exact, mut sum) = (vec![0.0; LEN], vec![0.0; LEN]);
    for call in 0..calls {
        for rank in 0..comm.size() {
            let part = |element: f32| f64::from(element) / comm.size() as f64;
            exact.iter_mut().zip(noise(rank, call, LEN)).for_each(|(sum, element)| *sum += part(element));
        }
        let mut elements = noise(comm.rank(), call, LEN);
        encoded.all_reduce(comm, &mut elements, ReduceOp::Avg).unwrap();
        sum.iter_mut().zip(elements).for_each(|(sum, element)| *sum += f64::from(element));
    }
    (exact, sum, encoded.residual().to_vec())
}

#[test]
fn residuals_make_up_the_error_of_the_sum() {
    for codec in CODECS {
        for size in WORLDS {
            let results = on_ranks(size, |comm| accumulate(&comm, codec, true, 40));
            for (at, (exact, sum)) in results[0].0.iter().zip(&results[0].1).enumerate() {
                let lacking: f64 = results.iter().map(|(.., residual)| f64::from(residual[at])).sum();
                let tracked = sum + lacking / size as f64;
                assert!((tracked - exact).abs() < 2e-3, "{codec:?} {size}: {tracked} {exact}");
            }
            // Without feedback, errors add up.
            let results = on_ranks(size, |comm| accumulate(&comm, codec, false, 40));
            let (exact, sum, _) = &results[0];
            let error = exact.iter().zip(sum).map(|(exact, sum)| (exact - sum).abs()).fold(0.0, f64::max);
            assert!(error > 0.1, "{codec:?} {size}: {error}");
        }
    }
}

#[test]
fn nonfinite_elements_reach_every_rank_but_not_the_residual() {
    for codec in CODECS {
        for size in [1, 2, 3] {
            on_ranks(size, |comm| {
                let mut encoded = EncodedAllReduce::new(codec).error_feedback(true);
                let mut elements = noise(comm.rank(), 0, 200);
                encoded.all_reduce(&comm, &mut elements, ReduceOp::Avg).unwrap();
                let residual = encoded.residual().to_vec();
                let mut elements = noise(comm.rank(), 1, 200);
                if comm.rank() == size - 1 {
                    elements[70] = f32::NEG_INFINITY;
                }
                encoded.all_reduce(&comm, &mut elements, ReduceOp::Avg).unwrap();
                assert!(elements[64..128].iter().all(|element| element.is_nan()));
                assert!(elements[..64].iter().chain(&elements[128..]).all(|element| element.is_finite()));
                if comm.rank() == size - 1 {
                    assert_eq!(bits(&encoded.residual()[64..128]), bits(&residual[64..128]));
                }
                assert!(encoded.residual().iter().all(|error| error.is_finite()));
            });
        }
    }
}

#[test]
fn unsupported_operators_and_lengths_are_refused_before_anything_is_sent() {
    on_ranks(2, |comm| {
        let mut encoded = EncodedAllReduce::new(BlockCodec::Int4);
        let invalid = |outcome| match outcome {
            Err(Error::Comm(comm_core::Error::Invalid(invalid))) => invalid,
            other => panic!("{other:?}"),
        };
        let refused = encoded.all_reduce(&comm, &mut [1.0; 9], ReduceOp::Max);
        assert!(matches!(invalid(refused), Invalid::OpOf { op: ReduceOp::Max, .. }));
        encoded.all_reduce(&comm, &mut [1.0; 9], ReduceOp::Sum).unwrap();
        let refused = encoded.all_reduce(&comm, &mut [1.0; 8], ReduceOp::Sum);
        assert!(matches!(invalid(refused), Invalid::Length { expected: 8, got: 9, .. }));
        encoded.set_residual(Vec::new());
        let mut elements = [7.0; 8];
        encoded.all_reduce(&comm, &mut elements, ReduceOp::Sum).unwrap();
        assert_eq!(elements, [14.0; 8]);
    });
}

/// Returns the number of bytes that all ranks send in `call`, headers included.
fn bytes_sent(size: usize, call: impl Fn(&Comm) + Sync) -> u64 {
    let sent = AtomicU64::new(0);
    let sent: &'static AtomicU64 = Box::leak(Box::new(sent));
    in_process::run(size, &InProcessConfig::default(), |fabric| {
        let counting = AlteredFabric {
            fabric,
            open: move |fabric: &InProcessFabric, channel, members: &[usize], until: Until<'_>| {
                let transport = fabric.open_among(channel, members, until)?;
                let send = move |transport: &mut InProcessTransport, to, bytes: &[IoSlice<'_>]| {
                    let accepted = transport.try_send(to, bytes)?;
                    sent.fetch_add(accepted as u64, Ordering::Relaxed);
                    Ok(accepted)
                };
                Ok(AlteredTransport { transport, alteration: send })
            },
        };
        let timeout = Duration::from_secs(20);
        let communicator = RingCommunicator::new(counting, RingConfig::default(), timeout);
        let comm = Comm::new(communicator.unwrap());
        call(&comm);
    });
    sent.load(Ordering::Relaxed)
}

#[test]
fn encoded_elements_take_the_documented_fraction_of_the_bytes() {
    const LEN: usize = 200_000;
    for size in [2, 3, 5, 8] {
        let elements = |comm: &Comm| noise(comm.rank(), 0, LEN);
        let plain = bytes_sent(size, |comm| {
            comm.all_reduce(&mut elements(comm), ReduceOp::Avg).unwrap();
        });
        // A ring sends every element twice, except on one rank.
        assert!(plain as f64 >= 2.0 * (size - 1) as f64 * (4 * LEN) as f64, "{size}: {plain}");
        for (codec, part) in [(BlockCodec::Int8, 0.27), (BlockCodec::Int4, 0.15)] {
            let encoded = bytes_sent(size, |comm| {
                EncodedAllReduce::new(codec).all_reduce(comm, &mut elements(comm), ReduceOp::Avg).unwrap();
            });
            assert!(encoded as f64 <= part * plain as f64, "{codec:?} {size}: {encoded} of {plain}");
        }
    }
}

#[test]
fn different_lengths_or_operators_are_errors_even_if_ranks_send_equally_many_bytes() {
    let refused = |call: fn(&Comm, &mut EncodedAllReduce) -> comm_ddp::Result<()>| {
        for error in
            on_ranks(2, |comm| call(&comm, &mut EncodedAllReduce::new(BlockCodec::Int8)).unwrap_err())
        {
            let Error::Comm(error) = error else { panic!("{error}") };
            assert!(matches!(error.root_cause(), comm_core::Error::Desync(_)), "{error}");
        }
    };
    refused(|comm, encoded| encoded.all_reduce(comm, &mut vec![1.0; 65 + comm.rank()], ReduceOp::Sum));
    refused(|comm, encoded| {
        let op = if comm.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Avg };
        encoded.all_reduce(comm, &mut [1.0; 65], op)
    });
}
