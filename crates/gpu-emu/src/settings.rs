//! Settings for tests, such as the number of devices, reported versions and random delays.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A setting that a test may change at any time with [`Control::set`](crate::Control::set). A
/// process that the test starts reads its initial value from the environment, where `JitterSeed` is
/// called `GPU_EMU_JITTER_SEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Setting {
    /// The number of devices; 8 by default, 256 at most.
    Devices = 0,
    /// The seed of the random delays.
    JitterSeed = 1,
    /// The longest random delay before work on a stream, in microseconds; 0 for none.
    JitterMicroseconds = 2,
    /// The result of `ncclGetVersion`; 23007 by default, which is version 2.30.7. Calls that a
    /// later version introduced return an error.
    NcclVersion = 3,
    /// The result of `cuDriverGetVersion`; 13000 by default.
    DriverVersion = 4,
    /// Whether devices support stream-ordered allocation; 1 by default.
    AsyncAllocation = 5,
    /// Whether two ranks may be on one device; 0 by default, as in NCCL below 2.30.3.
    SharedDevices = 6,
    /// Whether an operation that waits for a dead rank fails. By default, 0, it hangs until it is
    /// aborted.
    PeerLossFails = 7,
    /// Whether an operation fails if another rank runs a different one. By default, 0, it hangs
    /// until it is aborted.
    MismatchFails = 8,
    /// The duration of a communicator's initialization in milliseconds; 0 by default.
    InitMilliseconds = 9,
    /// The time for which a call of a non-blocking communicator stays in progress, in milliseconds;
    /// 0 by default.
    CallMilliseconds = 10,
    /// The memory of each device in bytes; 1 GiB by default.
    DeviceMemory = 11,
}

/// The name and default of each setting, by number.
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

/// Changes a setting by its number in the C interface. Returns false if there is no such setting.
pub(crate) fn set(number: u32, value: u64) -> bool {
    let found = usize::try_from(number).ok().and_then(|number| VALUES.get(number));
    found.map(|place| place.store(value, Ordering::Relaxed)).is_some()
}
