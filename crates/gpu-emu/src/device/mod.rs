//! The devices: memory, streams and, after a failure, a sticky error.

pub(crate) mod access;
pub(crate) mod memory;
pub(crate) mod pinned;
pub(crate) mod stream;

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, Weak};

use crate::driver::CuError;
use crate::record;
use crate::settings::{self, Setting};
use crate::sync::lock;

use memory::Memory;
use stream::{Stream, StreamCore};

/// The largest number of devices.
pub(crate) const DEVICES_MAX: usize = 256;

/// One device, which exists as long as the process.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    /// Its number on the machine, which differs from its number in the process if
    /// `CUDA_VISIBLE_DEVICES` is set.
    pub(crate) physical: usize,
    pub(crate) memory: Memory,
    pub(crate) legacy: OnceLock<Arc<Stream>>,
    pub(crate) lines: Mutex<Vec<Weak<StreamCore>>>,
    retained: AtomicUsize,
    error: AtomicI32,
}

static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// The list in `CUDA_VISIBLE_DEVICES`. Like CUDA, it ends before the first entry that is not a
/// number.
static VISIBLE: LazyLock<Option<Vec<usize>>> = LazyLock::new(|| {
    let list = std::env::var("CUDA_VISIBLE_DEVICES").ok()?;
    Some(list.split(',').map_while(|entry| entry.trim().parse().ok()).collect())
});

fn on_the_machine() -> usize {
    usize::try_from(settings::get(Setting::Devices)).unwrap_or(DEVICES_MAX).min(DEVICES_MAX)
}

/// Returns the number of devices that this process can see.
pub(crate) fn count() -> usize {
    let machine = on_the_machine();
    VISIBLE.as_ref().map_or(machine, |list| list.iter().take_while(|physical| **physical < machine).count())
}

/// Returns the device with this number in the process.
pub(crate) fn get(ordinal: usize) -> Option<Arc<Device>> {
    if ordinal >= count() {
        return None;
    }
    let mut devices = lock(&DEVICES);
    while devices.len() <= ordinal {
        let device = Device::new(devices.len());
        devices.push(Arc::new(device));
    }
    devices.get(ordinal).cloned()
}

/// Returns the device whose memory contains `address`, if it is an address of a device.
pub(crate) fn of_address(address: u64) -> Option<Arc<Device>> {
    memory::ordinal_of(address).and_then(get)
}

/// Returns the total number of bytes allocated on all devices.
pub(crate) fn bytes_in_use() -> usize {
    lock(&DEVICES).iter().map(|device| device.memory.in_use()).sum()
}

impl Device {
    fn new(ordinal: usize) -> Self {
        let physical = VISIBLE.as_ref().and_then(|list| list.get(ordinal).copied()).unwrap_or(ordinal);
        Self {
            ordinal,
            physical,
            memory: Memory::new(ordinal),
            legacy: OnceLock::new(),
            lines: Mutex::default(),
            retained: AtomicUsize::new(0),
            error: AtomicI32::new(0),
        }
    }

    /// Returns the error of the device if it has failed.
    pub(crate) fn healthy(&self) -> Result<(), CuError> {
        match self.error.load(Ordering::SeqCst) {
            0 => Ok(()),
            code => Err(CuError(code)),
        }
    }

    /// Records a failure of asynchronous work. As on a real device, every later call returns
    /// `error`.
    pub(crate) fn fail(&self, error: CuError, why: &str) {
        record::fault(Some(self.ordinal), why);
        let _already_failed = self.error.compare_exchange(0, error.0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Makes the device usable again. A real device would need a new process.
    pub(crate) fn reset(&self) {
        self.error.store(0, Ordering::SeqCst);
    }

    /// Returns the streams that exist, and the destroyed ones that still have work.
    pub(crate) fn stream_cores(&self) -> Vec<Arc<StreamCore>> {
        lock(&self.lines).iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until all work so far has ended on all streams.
    pub(crate) fn synchronize(&self) {
        for line in self.stream_cores() {
            line.last().wait();
        }
    }

    pub(crate) fn retain(&self) {
        self.retained.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn is_retained(&self) -> bool {
        self.retained.load(Ordering::SeqCst) > 0
    }

    /// Releases the primary context once. The last release waits for all work, and then frees the
    /// memory.
    pub(crate) fn release(&self) -> Result<(), CuError> {
        let one_less = |count: usize| count.checked_sub(1);
        let before = self.retained.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        match before {
            Ok(1) => {
                self.synchronize();
                self.memory.free_all();
            }
            Ok(_) => {}
            Err(_) => return Err(CuError::INVALID_CONTEXT),
        }
        Ok(())
    }
}
