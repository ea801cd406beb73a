//! Ranks as threads, each with a device of the emulator.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; each program uses a part of this")]

use std::sync::Arc;
use std::time::Duration;

use comm_core::{CallOptions, Comm, Element, Fabric, Host, HostCommunicator, HostView};
use comm_hybrid::StagedCommunicator;
use comm_nccl::{Cuda, Device, DeviceBuffer, Search, Stream};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{InProcessConfig, InProcessFabric, run};
use gpu_emu::{Control, Setting};

/// World sizes of tests.
pub(crate) const WORLDS: [usize; 4] = [1, 2, 3, 5];
/// The time after which a test is considered to hang.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// The longest delay of work on a device, in microseconds, without and with disorder.
pub(crate) const JITTERS: [u64; 2] = [0, 300];

/// The emulator, loaded before anything else.
pub(crate) fn control() -> &'static Control {
    Control::load().unwrap()
}

/// The path of the emulator's NCCL.
pub(crate) fn library() -> Search {
    Search::new().at(control().path())
}

/// Numbers of devices that no other test of the process uses, because errors of a device persist.
pub(crate) fn devices(count: usize) -> Vec<usize> {
    control().reserve_devices(count)
}

/// Returns the faults of these devices so far. Faults of others are kept for their tests.
pub(crate) fn faults_of(devices: &[usize]) -> Vec<String> {
    control().faults_of(devices)
}

pub(crate) fn options() -> CallOptions {
    within(SOON)
}

pub(crate) fn within(timeout: Duration) -> CallOptions {
    let mut options = CallOptions::default();
    options.timeout = timeout;
    options
}

/// A communicator for the host over these channels.
pub(crate) fn on_host(fabric: InProcessFabric) -> Arc<dyn HostCommunicator> {
    Arc::new(RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap())
}

/// One rank, in its thread.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) device: Device,
    /// Not the streams on which pieces are copied.
    pub(crate) stream: Stream,
    pub(crate) host: Comm<Host>,
    pub(crate) communicator: Arc<StagedCommunicator>,
    pub(crate) staged: Comm<Cuda>,
}

impl Rank {
    pub(crate) fn buffer<T: Element>(&self, elements: &[T]) -> DeviceBuffer<T> {
        DeviceBuffer::from_host(&self.stream, elements).unwrap()
    }
}

/// Runs `body` on one thread per device, all in one group with pieces of `piece_bytes`.
pub(crate) fn staged<T: Send>(
    devices: &[usize],
    piece_bytes: usize,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    run(devices.len(), &InProcessConfig::default(), |fabric| {
        let (rank, size) = (fabric.group().rank(), fabric.group().size());
        let host = on_host(fabric);
        let device = Device::open(devices[rank]).unwrap();
        let own = Arc::from(host.duplicate(&options()).unwrap());
        // Rank 0's value applies.
        let bytes = if rank == 0 { piece_bytes } else { 1 };
        let communicator = Arc::new(StagedCommunicator::new(own, &device, bytes, SOON).unwrap());
        assert_eq!(communicator.piece_bytes(), piece_bytes);
        let staged = Comm::<Cuda>::over(Arc::<StagedCommunicator>::clone(&communicator)).with_timeout(SOON);
        let host = Comm::<Host>::over(host).with_timeout(SOON);
        let stream = device.new_stream().unwrap();
        body(Rank { rank, size, device, stream, host, communicator, staged })
    })
}

/// Runs `body` in worlds of all sizes, with and without disorder on the devices. Checks at the end
/// that the devices have no faults.
pub(crate) fn in_all_worlds(piece_bytes: usize, body: impl Fn(Rank) + Sync) {
    let devices = devices(5);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        for size in WORLDS {
            staged(&devices[..size], piece_bytes, &body);
        }
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

/// Compares elements bit by bit.
#[track_caller]
pub(crate) fn assert_bits<T: Element + std::fmt::Debug>(got: &[T], wanted: &[T], what: &str) {
    let bytes = |elements| HostView::new(elements).bytes();
    assert!(bytes(got) == bytes(wanted), "{what}: got {got:?}, wanted {wanted:?}");
}
