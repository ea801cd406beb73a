//! Ranks as threads, each with a device of the emulator.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; each program uses a part of this")]

pub(crate) mod hold;
pub(crate) mod process;

use std::thread;
use std::time::Duration;

use comm_core::{CallOptions, Communicator, Element, Fabric, Membership, Result};
use comm_nccl::{Device, DeviceBuffer, Library, NcclCommunicator, NcclConfig, Search, Stream, UniqueId};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{InProcessConfig, run};
use gpu_emu::{Control, Setting};

/// World sizes of tests.
pub(crate) const WORLDS: [usize; 4] = [1, 2, 3, 5];

/// The time after which an operation is considered to hang.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The longest delay of work on a device, in microseconds, without and with disorder.
pub(crate) const JITTERS: [u64; 2] = [0, 300];

/// The emulator, loaded before anything else.
pub(crate) fn control() -> &'static Control {
    Control::load().unwrap()
}

/// The emulator's NCCL.
pub(crate) fn library() -> Library {
    Library::load(&Search::new().at(control().path())).unwrap()
}

/// Numbers of devices that no other test of the process uses, because errors of a device persist.
pub(crate) fn devices(count: usize) -> Vec<usize> {
    control().reserve_devices(count)
}

/// One rank, in its thread.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: Device,
    /// Not the stream of the communicator.
    pub(crate) stream: Stream,
    pub(crate) comm: NcclCommunicator,
}

impl Rank {
    pub(crate) fn buffer<T: Element>(&self, elements: &[T]) -> DeviceBuffer<T> {
        DeviceBuffer::from_host(&self.stream, elements).unwrap()
    }

    pub(crate) fn zeros<T: Element>(&self, len: usize) -> DeviceBuffer<T> {
        DeviceBuffer::zeros(&self.stream, len).unwrap()
    }
}

pub(crate) fn config(rank: usize, size: usize) -> NcclConfig {
    let mut config = NcclConfig::new(Membership { rank, size }).unwrap();
    config.timeout = SOON;
    config
}

pub(crate) fn options() -> CallOptions {
    within(SOON)
}

pub(crate) fn within(timeout: Duration) -> CallOptions {
    let mut options = CallOptions::default();
    options.timeout = timeout;
    options
}

/// Runs `body` on one thread per device, all in one communicator.
pub(crate) fn world<T: Send>(devices: &[usize], body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    world_with(devices, config, body)
}

pub(crate) fn world_with<T: Send>(
    devices: &[usize],
    config: impl Fn(usize, usize) -> NcclConfig + Sync,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let (library, size) = (library(), devices.len());
    Device::open(devices[0]).unwrap();
    let id = UniqueId::generate(&library).unwrap();
    let connect =
        |rank, device: &Device| NcclCommunicator::with_id(&library, device, &id, config(rank, size)).unwrap();
    each(devices, connect, body)
}

/// Runs `body` on one thread per device, all in one communicator that was connected over a
/// communicator for the host.
pub(crate) fn world_over_host<T: Send>(devices: &[usize], body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    connect_over_host(devices, |rank, connected| {
        let comm = connected.unwrap();
        let (size, device) = (comm.group().size(), comm.device().clone());
        let stream = device.new_stream().unwrap();
        body(Rank { rank, size, device, stream, comm })
    })
}

/// Runs `body` with the result of connecting over a communicator for the host, on one thread per
/// device.
pub(crate) fn connect_over_host<T: Send>(
    devices: &[usize],
    body: impl Fn(usize, Result<NcclCommunicator>) -> T + Sync,
) -> Vec<T> {
    run(devices.len(), &InProcessConfig::default(), |fabric| {
        let rank = fabric.group().rank();
        let device = Device::open(devices[rank]).unwrap();
        let host = RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap();
        let comm = NcclCommunicator::connect(&library(), &device, &host, config(rank, devices.len()));
        // It is no longer needed.
        drop(host);
        body(rank, comm)
    })
}

fn each<T: Send>(
    devices: &[usize],
    connect: impl Fn(usize, &Device) -> NcclCommunicator + Sync,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |(rank, ordinal): (usize, &usize)| {
            let (body, connect, ordinal, size) = (&body, &connect, *ordinal, devices.len());
            scope.spawn(move || {
                let device = Device::open(ordinal).unwrap();
                let comm = connect(rank, &device);
                let stream = device.new_stream().unwrap();
                body(Rank { rank, size, device, stream, comm })
            })
        };
        let threads: Vec<_> = devices.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs `body` in worlds of all sizes, with and without disorder on the devices. At the end, the
/// devices have no faults.
pub(crate) fn in_all_worlds(body: impl Fn(Rank) + Sync) {
    let devices = devices(5);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        for size in WORLDS {
            world(&devices[..size], &body);
        }
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

/// Returns the faults of these devices so far. Those of other devices are kept.
pub(crate) fn faults_of(devices: &[usize]) -> Vec<String> {
    control().faults_of(devices)
}
