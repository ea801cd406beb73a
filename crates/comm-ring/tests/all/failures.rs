//! Failures: every rank gets an error that names the cause, and nothing hangs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::common::{virtual_world, virtual_world_on, world};
use comm_core::{ChannelId, ChannelKind, Comm, Desync, Error, Fabric, ReduceOp, Result, Transport, Until};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport, Release};
use comm_sim::network::{FaultPlan, VirtualClock};
use comm_sim::{AlteredFabric, AlteredTransport};

fn run<R: Send>(ranks: usize, rank: impl Fn(Comm, &VirtualClock) -> R + Sync) -> Vec<R> {
    virtual_world(ranks, 0, &RingConfig::default(), rank)
}

fn desync(error: Error) -> Desync {
    match error.root_cause().clone() {
        Error::Desync(desync) => *desync,
        other => panic!("expected a desync, got: {other}"),
    }
}

/// Rank 0 calls `first`, every other rank `second`; both fail with a desync that names
/// both calls.
fn mismatch(
    ranks: usize,
    (first, first_name): (impl Fn(&Comm) -> Result<(), Error> + Sync, &str),
    (second, second_name): (impl Fn(&Comm) -> Result<(), Error> + Sync, &str),
) {
    let errors = run(ranks, |comm, clock| {
        // A rank that has not left the last barrier yet may get the error there.
        let call = || if comm.rank() == 0 { first(&comm) } else { second(&comm) };
        let result = (0..500).try_for_each(|_| comm.barrier()).and_then(|()| call());
        // A rank that only sends may complete the call before the others detect the mismatch, and
        // gets the error in its next call.
        let error = result.and_then(|()| comm.barrier()).unwrap_err();
        assert!(clock.elapsed() < Duration::from_secs(1), "{:?}", clock.elapsed());
        assert!(matches!(comm.barrier(), Err(Error::Poisoned(_))));
        error
    });
    for error in errors {
        let desync = desync(error);
        assert_eq!(desync.sequence, 501);
        let text = desync.to_string();
        assert!(text.contains(first_name) && text.contains(second_name), "{text}");
    }
}

#[test]
fn two_ranks_that_each_name_the_other_as_root() {
    let broadcast = |root| move |comm: &Comm| comm.broadcast(root, &mut [0.0_f32; 8]);
    mismatch(2, (broadcast(1), "root 1"), (broadcast(0), "root 0"));
}

#[test]
fn different_collectives() {
    mismatch(
        3,
        (|comm: &Comm| comm.broadcast(0, &mut [0_u8; 4]), "broadcast(root 0, 4 x u8"),
        (|comm: &Comm| comm.all_reduce(&mut [0_u8; 4], ReduceOp::Sum), "all_reduce(sum, 4 x u8"),
    );
}

#[test]
fn different_operators_types_and_lengths() {
    let all_reduce = |op| move |comm: &Comm| comm.all_reduce(&mut [1.0_f32; 8], op);
    mismatch(2, (all_reduce(ReduceOp::Sum), "sum"), (all_reduce(ReduceOp::Max), "max"));
    mismatch(
        4,
        (all_reduce(ReduceOp::Sum), "f32"),
        (|comm: &Comm| comm.all_reduce(&mut [1_i32; 8], ReduceOp::Sum), "i32"),
    );
    mismatch(
        3,
        (all_reduce(ReduceOp::Sum), "8 x f32"),
        (|comm: &Comm| comm.all_reduce(&mut [1.0_f32; 9000], ReduceOp::Sum), "9000 x f32"),
    );
}

#[test]
fn counts_that_differ_between_ranks() {
    let errors = run(3, |comm, _| {
        // Rank 1 sends more than the root expects.
        let send = vec![1_u8; if comm.rank() == 1 { 6 } else { 5 }];
        let mut recv = [0; 15];
        comm.gather_v(0, &send, &mut recv, &[5, 5, 5]).and_then(|()| comm.barrier()).unwrap_err()
    });
    for error in errors {
        let text = desync(error).to_string();
        assert!(text.ends_with("where rank 0 expected 5 bytes and rank 1 sent 6"), "{text}");
    }
}

#[test]
fn a_call_that_would_not_send_a_byte() {
    let nothing = |op| move |comm: &Comm| comm.all_reduce(&mut [0_u8; 0], op);
    mismatch(2, (nothing(ReduceOp::Sum), "sum"), (nothing(ReduceOp::BitXor), "bxor"));
}

#[test]
fn a_rank_that_panics_is_not_reported_as_finished() {
    let errors = run(3, |comm, _| {
        let call = catch_unwind(AssertUnwindSafe(move || {
            assert_ne!(comm.rank(), 1, "a bug of the program");
            comm.barrier().unwrap_err()
        }));
        call.ok()
    });
    for error in [&errors[0], &errors[2]] {
        let error = error.as_ref().unwrap();
        assert!(matches!(error, Error::Aborted { by: 1, reason } if reason.contains("panicked")), "{error}");
    }
}

#[test]
fn a_rank_that_finishes_first_and_leaves_is_no_failure() {
    for seed in 0..20 {
        virtual_world(4, seed, &RingConfig::default(), |comm, _| {
            let mut buffer = vec![1_u32; 50_000];
            comm.broadcast(0, &mut buffer).unwrap();
            comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
            assert!(buffer.iter().all(|&element| element == 4));
        });
    }
}

#[test]
fn a_rank_that_leaves_waits_for_space_for_its_goodbye() {
    // A message of the call fits, a goodbye does not.
    let plan = FaultPlan::calm().capacity(40);
    virtual_world_on(&plan, 2, 0, &RingConfig::default(), |comm, clock| {
        let mut value = [comm.rank() as u32 + 1];
        if comm.rank() == 0 {
            return comm.broadcast(0, &mut value).unwrap();
        }
        clock.sleep(Duration::from_secs(2));
        comm.broadcast(0, &mut value).unwrap();
        assert_eq!(value, [1]);
        while comm.departed().is_empty() {
            comm.check().unwrap();
            clock.sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn a_rank_that_left_before_the_call_is_named_at_once() {
    let errors = run(6, |comm, clock| {
        comm.barrier().unwrap();
        if comm.rank() == 5 {
            return None;
        }
        // All have received the goodbye by then, and rank 2 makes its call alone.
        clock.sleep(Duration::from_secs(if comm.rank() == 2 { 1 } else { 5 }));
        let start = clock.elapsed();
        let error = comm.with_algorithm("ring").all_reduce(&mut [1_u8; 60], ReduceOp::Sum).unwrap_err();
        assert_eq!(clock.elapsed(), start);
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        assert!(matches!(error, Error::PeerLost { peer: 5, .. }), "{error}");
    }
}

#[test]
fn the_most_distant_deadline_is_accepted() {
    run(2, |comm, _| comm.with_timeout(Duration::MAX).barrier().unwrap());
}

#[test]
fn a_call_whose_data_keeps_moving_ends_at_its_deadline() {
    let outcomes = world(2, &InProcessConfig::default(), &RingConfig::default(), |comm| {
        let comm = comm.with_timeout(Duration::from_millis(1));
        comm.all_reduce(&mut vec![1.0_f32; 16 << 20], ReduceOp::Sum)
    });
    // The rank that is first past its deadline ends the call on the other.
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
}

#[test]
fn an_abort_from_another_thread_ends_the_call_on_every_rank() {
    for _ in 0..20 {
        let (network, others_failed) = (InProcessConfig::default(), Barrier::new(4));
        let errors = world(4, &network, &RingConfig::default(), |comm| {
            let aborter = comm.clone();
            thread::scope(|scope| {
                if comm.rank() == 1 {
                    scope.spawn(|| aborter.abort("the user pressed a key"));
                }
                // Only the abort ends the calls of the others.
                if comm.rank() == 3 {
                    others_failed.wait();
                    // The others may have done their part of the first call.
                    return (0..2).find_map(|_| comm.barrier().err()).unwrap();
                }
                let error = comm.barrier().unwrap_err();
                others_failed.wait();
                error
            })
        });
        for error in errors {
            match error.root_cause() {
                Error::Aborted { by: 1, reason } => assert!(reason.contains("pressed a key")),
                other => panic!("expected an abort, got: {other}"),
            }
        }
    }
}

#[test]
fn a_call_whose_data_has_arrived_completes_after_an_abort() {
    run(3, |comm, clock| {
        let mut buffer = [comm.rank() as u32 + 1; 8];
        // The abort arrives before the others check for the data.
        clock.sleep(Duration::from_secs(comm.rank() as u64));
        comm.broadcast(0, &mut buffer).unwrap();
        if comm.rank() == 0 {
            comm.abort("enough");
        }
        assert_eq!(buffer, [1; 8]);
        let error = comm.barrier().unwrap_err();
        assert!(matches!(error.root_cause(), Error::Aborted { by: 0, .. }), "{error}");
    });
}

#[test]
fn an_abort_between_calls_reaches_everybody() {
    for seed in 0..20 {
        let errors = virtual_world(3, seed, &RingConfig::default(), |comm, _| {
            // A rank that has not left the barrier yet may receive the abort there.
            let barrier = comm.barrier();
            if comm.rank() == 0 {
                comm.abort("no more");
            }
            barrier.and_then(|()| comm.barrier()).unwrap_err()
        });
        for error in errors {
            assert!(matches!(error.root_cause(), Error::Aborted { by: 0, .. }), "{error}");
        }
    }
}

/// Opens a channel. A channel for collectives panics once it is armed, right after the next bytes
/// were sent, so that the executor does not know of them.
fn explosive(
    fabric: &Arc<InProcessFabric>,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
    armed: &Arc<AtomicBool>,
) -> Result<impl Transport + use<>> {
    let transport = fabric.open_among(channel, members, until)?;
    let (armed, is_it) = (Arc::clone(armed), channel.kind == ChannelKind::Collective);
    let send = move |transport: &mut InProcessTransport, to: usize, bytes: &[IoSlice<'_>]| {
        let sent = transport.try_send(to, bytes)?;
        assert!(!(is_it && sent > 0 && armed.swap(false, Ordering::SeqCst)), "a transport with a fault");
        Ok(sent)
    };
    Ok(AlteredTransport { transport, alteration: send })
}

/// After a caught panic, no other rank reads the memory of the call, and none hangs.
#[test]
fn a_call_that_panics_retracts_its_sends_and_aborts_the_group() {
    let network = InProcessConfig::default().release(Release::OnConsume);
    for ranks in [2, 3, 5, 8] {
        let panicked = Barrier::new(ranks);
        let errors = in_process::run(ranks, &network, |fabric| {
            let (fabric, armed) = (Arc::new(fabric), Arc::new(AtomicBool::new(false)));
            let arm = Arc::clone(&armed);
            let open = move |fabric: &Arc<_>, channel, members: &[usize], until: Until<'_>| {
                explosive(fabric, channel, members, until, &armed)
            };
            let altered = AlteredFabric { fabric: Arc::clone(&fabric), open };
            let ring =
                RingCommunicator::new(altered, RingConfig::default(), Duration::from_secs(20)).unwrap();
            let comm = Comm::new(ring).with_timeout(Duration::from_secs(20));
            comm.barrier().unwrap();
            let mut buffer = vec![1_u64; 1000];
            let is_broken = comm.rank() == 0;
            let returned = is_broken.then(|| {
                arm.store(true, Ordering::SeqCst);
                let call = catch_unwind(AssertUnwindSafe(|| comm.broadcast(0, &mut buffer)));
                (call.is_ok(), fabric.unreleased())
            });
            // No other rank has read anything before this point.
            panicked.wait();
            if let Some((is_ok, unreleased)) = returned {
                assert!(!is_ok, "the call did not panic");
                // The control frames that report the panic have not been read yet.
                assert!(unreleased < 1000, "{unreleased} sent bytes can still be read");
            }
            comm.broadcast(0, &mut buffer).unwrap_err()
        });
        for (rank, error) in errors.into_iter().enumerate() {
            match error.root_cause() {
                Error::Internal(cause) if rank == 0 => assert!(cause.contains("panicked"), "{error}"),
                Error::Aborted { by: 0, reason } if rank > 0 => {
                    assert!(reason.contains("panicked"), "{error}")
                }
                other => panic!("rank {rank}: {other}"),
            }
        }
    }
}

/// Opens a channel. Rank 1's channel for collectives corrupts one byte of the next message, once
/// the position of the byte is set.
fn garbling(
    fabric: &InProcessFabric,
    channel: ChannelId,
    members: &[usize],
    until: Until<'_>,
    at: &Arc<AtomicUsize>,
) -> Result<impl Transport + use<>> {
    let transport = fabric.open_among(channel, members, until)?;
    let (is_it, at) = (channel.kind == ChannelKind::Collective && fabric.group().rank() == 1, Arc::clone(at));
    let send = move |transport: &mut InProcessTransport, to: usize, bytes: &[IoSlice<'_>]| {
        let at = if is_it { at.swap(usize::MAX, Ordering::SeqCst) } else { usize::MAX };
        if at == usize::MAX {
            return transport.try_send(to, bytes);
        }
        let mut message: Vec<u8> = bytes.iter().flat_map(|piece| piece.iter().copied()).collect();
        message[at] ^= 0x10;
        let sent = transport.try_send(to, &[IoSlice::new(&message)])?;
        assert_eq!(sent, message.len(), "there is space for the whole message");
        Ok(sent)
    };
    Ok(AlteredTransport { transport, alteration: send })
}

/// A message is accepted only if every byte of its header is correct.
#[test]
fn every_byte_of_a_header_counts() {
    for byte in 0..32 {
        let errors = in_process::run(2, &InProcessConfig::default(), |fabric| {
            let at = Arc::new(AtomicUsize::new(usize::MAX));
            let position = Arc::clone(&at);
            let open = move |fabric: &InProcessFabric, channel, members: &[usize], until: Until<'_>| {
                garbling(fabric, channel, members, until, &position)
            };
            let ring = RingCommunicator::new(
                AlteredFabric { fabric, open },
                RingConfig::default(),
                Duration::from_secs(20),
            )
            .unwrap();
            let comm = Comm::new(ring).with_timeout(Duration::from_secs(20));
            comm.barrier().unwrap();
            at.store(byte, Ordering::SeqCst);
            comm.broadcast(1, &mut [comm.rank() as u64]).and_then(|()| comm.barrier()).unwrap_err()
        });
        for error in errors {
            let cause = error.root_cause();
            assert!(matches!(cause, Error::Desync(_)), "byte {byte}: {cause}");
        }
    }
}
