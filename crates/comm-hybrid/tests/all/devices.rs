//! Groups with a communicator for the host and one for devices: the path of device buffers, and
//! common failures.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Fabric, ReduceOp, Result, ShrinkOptions};
use comm_hybrid::{DeviceChoice, DeviceConfig, DevicePath, HybridCommunicator};
use comm_nccl::{Cuda, DeviceBuffer, Search, ShrinkMode};
use comm_sim::in_process::{InProcessConfig, run};
use gpu_emu::Setting;
use nccl_sys::ncclResult_t;

use crate::device::{
    JITTERS, SOON, WORLDS, assert_bits, control, devices, faults_of, library, on_host, options,
};

/// The longest time until a failure is known everywhere. Deadlines of calls are much later.
const SOON_KNOWN: Duration = Duration::from_secs(5);

fn config(path: DevicePath, ordinal: usize) -> DeviceConfig {
    let mut config = DeviceConfig::with_path(path);
    config.device = DeviceChoice::Ordinal(ordinal);
    config.library = Some(library());
    config.timeout = SOON;
    config
}

/// Runs `body` on one thread per configuration, with the result of connecting the group there.
fn rendezvous<T: Send>(
    configs: &[DeviceConfig],
    body: impl Fn(usize, Result<HybridCommunicator>) -> T + Sync,
) -> Vec<T> {
    run(configs.len(), &InProcessConfig::default(), |fabric| {
        let rank = fabric.group().rank();
        let connected = HybridCommunicator::connect(on_host(fabric), &configs[rank]);
        body(rank, connected.map(|connected| connected.with_timeout(SOON)))
    })
}

/// Ranks that all request the same path, each with its own device.
fn world<T: Send>(
    path: DevicePath,
    ordinals: &[usize],
    body: impl Fn(usize, HybridCommunicator) -> T + Sync,
) -> Vec<T> {
    let configs: Vec<_> = ordinals.iter().map(|ordinal| config(path, *ordinal)).collect();
    rendezvous(&configs, |rank, connected| body(rank, connected.unwrap()))
}

fn buffer(comm: &HybridCommunicator, elements: &[i32]) -> DeviceBuffer<i32> {
    DeviceBuffer::from_host(&comm.device().new_stream().unwrap(), elements).unwrap()
}

/// A sum of `len` elements on the device, and its result on the host.
fn sum(comm: &HybridCommunicator, len: usize) -> Result<Vec<i32>> {
    let mut buffer = buffer(comm, &vec![1; len]);
    comm.cuda().all_reduce(&mut buffer, ReduceOp::Sum)?;
    buffer.to_vec()
}

/// Asserts that calls of both communicators work.
fn assert_works(comm: &HybridCommunicator) {
    let size = comm.group().size() as i32;
    assert_bits(&sum(comm, 100).unwrap(), &[size; 100], "on devices");
    let mut host = [2_i32; 3];
    comm.host().all_reduce(&mut host, ReduceOp::Sum).unwrap();
    assert_bits(&host, &[2 * size; 3], "on hosts");
}

#[test]
fn host_and_device_calls_run_concurrently_with_and_without_nccl() {
    let devices = devices(5);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        for size in WORLDS {
            for path in DevicePath::ALL {
                world(path, &devices[..size], |rank, comm| {
                    let taken = if path == DevicePath::Staged { path } else { DevicePath::Nccl };
                    assert_eq!((comm.path(), comm.obstacle()), (taken, None));
                    assert_eq!(comm.nccl().is_some(), taken == DevicePath::Nccl);
                    assert_eq!((comm.group().rank(), comm.device().ordinal()), (rank, devices[rank]));
                    let mut device = buffer(&comm, &[1; 100]);
                    for _ in 0..3 {
                        comm.cuda().all_reduce(&mut device, ReduceOp::Sum).unwrap();
                        comm.host().all_reduce(&mut [1.0_f64; 10], ReduceOp::Sum).unwrap();
                    }
                    comm.device_barrier().unwrap();
                    comm.barrier().unwrap();
                    comm.cuda().barrier().unwrap();
                    comm.synchronize().unwrap();
                    assert_bits(&device.to_vec().unwrap(), &[(size * size * size) as i32; 100], "three sums");
                });
            }
        }
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn an_id_that_rank_0_cannot_make_is_an_error_on_every_rank() {
    let devices = devices(2);
    control().plan_answer(devices[0], c"ncclGetUniqueId", 0, ncclResult_t::ncclSystemError);
    let configs: Vec<_> = devices.iter().map(|ordinal| config(DevicePath::Nccl, *ordinal)).collect();
    let errors = rendezvous(&configs, |_, connected| connected.map(drop).unwrap_err());
    for error in errors {
        assert!(error.to_string().contains("ncclGetUniqueId"), "{error}");
    }
}

/// Two threads call the two communicators concurrently.
#[test]
fn host_and_device_calls_do_not_wait_for_each_other() {
    let devices = devices(3);
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        world(path, &devices, |rank, comm| {
            thread::scope(|scope| {
                let on_device = || (0..20).for_each(|_| drop(sum(&comm, 50).unwrap()));
                let on_host = || {
                    (0..20).for_each(|_| comm.host().all_reduce(&mut [1_u8; 9], ReduceOp::Max).unwrap());
                };
                // One rank begins with the other communicator, on which the other ranks have not
                // yet made their calls.
                if rank == 0 {
                    on_host();
                    on_device();
                } else {
                    let device = scope.spawn(on_device);
                    on_host();
                    device.join().unwrap();
                }
            });
        });
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

/// A rank that does not find NCCL at the configured path.
fn without_nccl(path: DevicePath, ordinal: usize) -> DeviceConfig {
    let mut config = config(path, ordinal);
    config.library = Some(Search::new().at("/nowhere/libnccl.so.2"));
    config
}

#[test]
fn a_group_with_a_rank_without_nccl_stages_through_the_host_if_allowed() {
    let devices = devices(3);
    let configs = [config(DevicePath::Auto, devices[0]), without_nccl(DevicePath::Auto, devices[1])];
    let configs = [&configs[..], &[config(DevicePath::Auto, devices[2])]].concat();
    rendezvous(&configs, |_, connected| {
        let comm = connected.unwrap();
        assert_eq!(comm.path(), DevicePath::Staged);
        let obstacle = comm.obstacle().unwrap();
        assert!(obstacle.starts_with("rank 1: ") && obstacle.contains("/nowhere/libnccl.so.2"), "{obstacle}");
        assert!(comm.nccl().is_none());
        assert_works(&comm);
    });
}

#[test]
fn a_rank_without_nccl_is_an_error_on_every_rank_otherwise() {
    let devices = devices(3);
    let configs = [
        config(DevicePath::Nccl, devices[0]),
        without_nccl(DevicePath::Nccl, devices[1]),
        config(DevicePath::Nccl, devices[2]),
    ];
    let began = Instant::now();
    let errors = rendezvous(&configs, |_, connected| connected.map(drop).unwrap_err());
    for error in &errors {
        let is_unavailable = matches!(error, Error::BackendUnavailable { backend: "nccl", .. });
        assert!(is_unavailable && error.to_string().contains("rank 1: cannot load NCCL"), "{error}");
    }
    assert!(began.elapsed() < SOON / 2, "no rank waits");
}

#[test]
fn two_ranks_on_one_device_are_named_before_nccl_is_called() {
    let devices = devices(2);
    let ordinals = [devices[0], devices[1], devices[0]];
    let on = |path| ordinals.map(|ordinal| config(path, ordinal));
    for error in rendezvous(&on(DevicePath::Nccl), |_, connected| connected.map(drop).unwrap_err()) {
        assert!(error.to_string().contains("ranks 0 and 2 are both on device GPU-"), "{error}");
    }
    for path in [DevicePath::Auto, DevicePath::Staged] {
        rendezvous(&on(path), |_, connected| {
            let comm = connected.unwrap();
            assert_eq!(comm.path(), DevicePath::Staged);
            assert_eq!(comm.obstacle().is_some(), path == DevicePath::Auto);
            assert_works(&comm);
        });
    }
}

#[test]
fn a_device_that_there_is_not_is_an_error_on_every_rank() {
    let ordinal = devices(1)[0];
    for path in DevicePath::ALL {
        let configs = [config(path, ordinal), config(path, 1000)];
        for error in rendezvous(&configs, |_, connected| connected.map(drop).unwrap_err()) {
            let words = error.to_string();
            assert!(words.contains("rank 1: ") && words.contains("1000"), "{words}");
        }
    }
}

#[test]
fn ranks_that_ask_for_unlike_ways_are_all_refused() {
    let devices = devices(2);
    let configs = [config(DevicePath::Auto, devices[0]), config(DevicePath::Nccl, devices[1])];
    for error in rendezvous(&configs, |_, connected| connected.map(drop).unwrap_err()) {
        assert!(matches!(&error, Error::Invalid(_)) && error.to_string().contains("rank 1"), "{error}");
    }
}

#[test]
fn a_failure_of_nccl_fails_the_host_communicator_on_every_rank() {
    let devices = devices(3);
    control().plan_answer(devices[1], c"ncclAllReduce", 1, ncclResult_t(99));
    let (began, together) = (Instant::now(), Barrier::new(3));
    let errors = world(DevicePath::Nccl, &devices, |rank, comm| {
        assert_works(&comm);
        together.wait();
        if rank == 1 {
            let error = sum(&comm, 10).unwrap_err();
            assert!(error.to_string().contains("code 99"), "{error}");
        }
        // The others are in no device call, and detect it here.
        let error = comm.host().barrier().unwrap_err();
        let device = sum(&comm, 10).unwrap_err();
        assert!(matches!(device, Error::Poisoned(_)), "{device}");
        (error.root_cause().clone(), device.root_cause().clone())
    });
    for error in errors.iter().flat_map(|(host, device)| [host, device]) {
        assert!(error.to_string().contains("code 99"), "{error}");
    }
    for (host, device) in [&errors[0], &errors[2]] {
        for error in [host, device] {
            assert!(matches!(error, Error::Aborted { by: 1, .. }), "{error}");
        }
    }
    assert!(began.elapsed() < SOON_KNOWN, "{:?}", began.elapsed());
}

#[test]
fn ranks_waiting_for_a_rank_that_cannot_connect_get_its_error() {
    let devices = devices(3);
    control().plan_answer(devices[1], c"ncclCommInitRankConfig", 0, ncclResult_t::ncclSystemError);
    let configs: Vec<_> = devices.iter().map(|ordinal| config(DevicePath::Nccl, *ordinal)).collect();
    let began = Instant::now();
    let errors = rendezvous(&configs, |_, connected| connected.map(drop).unwrap_err());
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.to_string().contains("ncclCommInitRankConfig"), "{error}");
        let is_own = matches!(error, Error::Backend { code: 2, .. });
        let is_told = matches!(error, Error::Aborted { by: 1, .. });
        assert!(if rank == 1 { is_own } else { is_told }, "{error}");
    }
    assert!(began.elapsed() < SOON_KNOWN, "{:?}", began.elapsed());
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn a_failure_of_the_hosts_side_ends_calls_on_devices_everywhere() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let devices = devices(3);
        let (began, together) = (Instant::now(), Barrier::new(3));
        world(path, &devices, |rank, comm| {
            assert_works(&comm);
            together.wait();
            if rank == 2 {
                // No other rank makes the call.
                let error = comm.host().with_timeout(Duration::from_millis(200)).barrier().unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "{error}");
                let device = sum(&comm, 10).unwrap_err();
                assert_eq!(device.root_cause().to_string(), error.to_string());
            } else {
                // Waits for its device, without a host call.
                let error = sum(&comm, 10).unwrap_err().root_cause().clone();
                assert!(
                    matches!(&error, Error::Aborted { by: 2, reason } if reason.contains("timed out")),
                    "{error}"
                );
            }
            assert!(matches!(comm.barrier(), Err(Error::Poisoned(_))));
        });
        assert!(began.elapsed() < SOON_KNOWN, "{:?}", began.elapsed());
        assert_eq!(faults_of(&devices), Vec::<String>::new());
    }
}

#[test]
fn an_abort_ends_both_communicators_on_all_ranks() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let devices = devices(2);
        let (began, together) = (Instant::now(), Barrier::new(2));
        world(path, &devices, |rank, comm| {
            assert_works(&comm);
            together.wait();
            if rank == 1 {
                comm.abort("enough");
            }
            let error = sum(&comm, 10).unwrap_err().root_cause().clone();
            assert!(
                matches!(&error, Error::Aborted { by: 1, reason } if reason.contains("enough")),
                "{error}"
            );
            let error = comm.barrier().unwrap_err().root_cause().clone();
            assert!(
                matches!(&error, Error::Aborted { by: 1, reason } if reason.contains("enough")),
                "{error}"
            );
        });
        assert!(began.elapsed() < SOON_KNOWN, "{:?}", began.elapsed());
    }
}

#[test]
fn an_abort_of_the_devices_side_ends_the_hosts_side_too() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let (devices, together) = (devices(2), Barrier::new(2));
        world(path, &devices, |rank, comm| {
            assert_works(&comm);
            together.wait();
            if rank == 0 {
                comm.cuda().abort("enough");
            }
            let error = comm.barrier().unwrap_err().root_cause().clone();
            assert!(
                matches!(&error, Error::Aborted { by: 0, reason } if reason.contains("enough")),
                "{error}"
            );
        });
    }
}

#[test]
fn the_remaining_ranks_shrink_and_keep_their_devices() {
    let (devices, together) = (devices(3), Barrier::new(3));
    world(DevicePath::Nccl, &devices, |rank, comm| {
        assert_works(&comm);
        together.wait();
        if rank == 1 {
            return comm.abort("its data is gone");
        }
        let error = sum(&comm, 10).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Aborted { by: 1, .. }), "{error}");
        let left = comm.nccl().unwrap().shrink(&[1], ShrinkMode::Abort, &options()).unwrap();
        let mut elements = buffer(&comm, &[1 + rank as i32; 10]);
        Comm::<Cuda>::over(Arc::new(left)).all_reduce(&mut elements, ReduceOp::Sum).unwrap();
        assert_bits(&elements.to_vec().unwrap(), &[4; 10], "of those that are left");
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn a_rank_that_leaves_in_order_ends_nothing() {
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        let devices = devices(3);
        world(path, &devices, |rank, comm| {
            assert_works(&comm);
            let pair = comm.cuda().new_group(&[0, 1]).unwrap();
            if rank == 2 {
                return;
            }
            let pair = pair.unwrap();
            thread::sleep(Duration::from_millis(300));
            let mut elements = buffer(&comm, &[1; 10]);
            pair.all_reduce(&mut elements, ReduceOp::Sum).unwrap();
            assert_bits(&elements.to_vec().unwrap(), &[2; 10], "of those that are left");
            // The group and its host communicator still work.
            comm.synchronize().unwrap();
            comm.host().send(1 - rank, 5, &[rank as u8]).unwrap();
            let mut received = [9_u8];
            comm.host().recv(1 - rank, 5, &mut received).unwrap().exactly(received.len()).unwrap();
            assert_eq!(received, [1 - rank as u8]);
        });
        assert_eq!(faults_of(&devices), Vec::<String>::new());
    }
}

#[test]
fn the_host_communicator_outlives_the_group() {
    let devices = devices(2);
    world(DevicePath::Nccl, &devices, |_, comm| {
        let host = comm.host().clone();
        drop(comm);
        // Then a handle to the host communicator works like any other communicator.
        host.barrier().unwrap();
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn the_remaining_ranks_go_on_with_host_and_device_buffers() {
    let devices = devices(4);
    for path in [DevicePath::Nccl, DevicePath::Staged] {
        world(path, &devices, |rank, comm| {
            assert_works(&comm);
            let mut members: Vec<usize> = (0..4).collect();
            let mut comm = comm;
            for leaves in [0, 2] {
                if rank == leaves {
                    return comm.abort("it leaves");
                }
                while sum(&comm, 10).is_ok() {}
                let shrunk = comm.shrink(&ShrinkOptions::default()).unwrap();
                let former = members.clone();
                members.retain(|&member| member != leaves);
                assert_eq!(shrunk.ranks.iter().map(|&rank| former[rank]).collect::<Vec<_>>(), members);
                comm = shrunk.comm;
                assert_eq!((comm.path(), comm.group().size()), (path, members.len()));
                assert_works(&comm);
            }
        });
    }
}
