//! What a test sets: how many devices there are, which versions they report, how much disorder
//! there is.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that a test may set at any time, with [`Control::set`](crate::Control::set). A process
/// that the test starts takes it from the environment, where `JitterSeed` is called
/// `GPU_EMU_JITTER_SEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Setting {
    /// How many devices there are; 8 unless set, 64 at most.
    Devices = 0,
    /// Seed of the random delays.
    JitterSeed = 1,
    /// The longest random delay before work of a stream, in microseconds; 0 for none.
    JitterMicroseconds = 2,
    /// What `ncclGetVersion` answers; 23007, that is 2.30.7, unless set. What came later answers an
    /// error.
    NcclVersion = 3,
    /// What `cuDriverGetVersion` answers; 13000 unless set.
    DriverVersion = 4,
    /// Whether devices can allocate in the order of a stream; 1 unless set.
    AsyncAllocation = 5,
    /// Whether two ranks may be on one device; 0 unless set, as it is in NCCL below 2.30.3.
    SharedDevices = 6,
    /// Whether an operation that waits for a rank that has died fails; 0 unless set: it hangs until
    /// it is aborted.
    PeerLossFails = 7,
    /// Whether an operation that meets another one in its place fails; 0 unless set: it hangs until
    /// it is aborted.
    MismatchFails = 8,
    /// How long the initialisation of a communicator takes, in milliseconds; 0 unless set.
    InitMilliseconds = 9,
    /// How long a call of a non-blocking communicator stays in progress, in milliseconds; 0 unless
    /// set.
    CallMilliseconds = 10,
    /// Memory of each device in bytes; 1 GiB unless set.
    DeviceMemory = 11,
}

/// (name, value unless set), by number.
const DEFAULTS: [(&str, u64); 12] = [
    ("DEVICES", 8),
    ("JITTER_SEED", 0),
    ("JITTER_MICROSECONDS", 0),
    ("NCCL_VERSION", 23_007),
    ("DRIVER_VERSION", 13_000),
    ("ASYNC_ALLOCATION", 1),
    ("SHARED_DEVICES", 0),
    ("PEER_LOSS_FAILS", 0),
    ("MISMATCH_FAILS", 0),
    ("INIT_MILLISECONDS", 0),
    ("CALL_MILLISECONDS", 0),
    ("DEVICE_MEMORY", 1 << 30),
];

static VALUES: LazyLock<[AtomicU64; DEFAULTS.len()]> = LazyLock::new(|| DEFAULTS.map(initial));

fn initial((name, unless_set): (&str, u64)) -> AtomicU64 {
    let given = std::env::var(format!("GPU_EMU_{name}")).ok();
    AtomicU64::new(given.and_then(|value| value.parse().ok()).unwrap_or(unless_set))
}

pub(crate) fn get(setting: Setting) -> u64 {
    VALUES[setting as usize].load(Ordering::Relaxed)
}

pub(crate) fn is_on(setting: Setting) -> bool {
    get(setting) != 0
}

/// Sets by number, as it comes through the C interface. False if there is no such setting.
pub(crate) fn set(number: u32, value: u64) -> bool {
    let found = usize::try_from(number).ok().and_then(|number| VALUES.get(number));
    found.map(|place| place.store(value, Ordering::Relaxed)).is_some()
}
