//! Host functions that run in place of the kernels with their names.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytemuck::AnyBitPattern;

use crate::sync::lock;

/// A launch of a kernel. The function runs once per launch, not once per thread of the grid.
#[derive(Debug)]
#[repr(C)]
pub struct Launch {
    /// The number of blocks in each dimension.
    pub grid: [u32; 3],
    /// The number of threads per block in each dimension.
    pub block: [u32; 3],
    /// The shared memory per block in bytes.
    pub shared_bytes: u32,
    count: usize,
    sizes: *const usize,
    bytes: *const u8,
}

/// A function that runs in place of a kernel. It accesses device memory with
/// [`Control::read`](crate::Control::read) and [`Control::write`](crate::Control::write), and must
/// not panic.
pub type Kernel = extern "C" fn(&Launch);

impl Launch {
    pub(crate) fn new(grid: [u32; 3], block: [u32; 3], shared_bytes: u32, arguments: &Arguments) -> Self {
        let Arguments { sizes, bytes } = arguments;
        Self { grid, block, shared_bytes, count: sizes.len(), sizes: sizes.as_ptr(), bytes: bytes.as_ptr() }
    }

    /// Returns the argument with this index, if there is one and it has the size of a `T`.
    #[must_use]
    pub fn argument<T: AnyBitPattern>(&self, index: usize) -> Option<T> {
        // SAFETY: the creator of the launch keeps `count` sizes alive as long as the kernel runs.
        let sizes = unsafe { std::slice::from_raw_parts(self.sizes, self.count) };
        let size = *sizes.get(index)?;
        let start: usize = sizes[..index].iter().sum();
        // SAFETY: the arguments are contiguous, and their sizes sum to the length of the memory.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes.wrapping_add(start), size) };
        bytemuck::try_pod_read_unaligned(bytes).ok()
    }
}

/// Copies of the arguments of a launch.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) sizes: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Arguments {
    /// Returns the arguments as numbers, decoded as little-endian. No argument has more than 8
    /// bytes.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut rest = &self.bytes[..];
        let word = |size: &usize| {
            let (argument, after) = rest.split_at(*size);
            rest = after;
            argument.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        self.sizes.iter().map(word).collect()
    }
}

/// A kernel and the sizes of its arguments, which a real kernel's compiled code contains.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub(crate) sizes: Vec<usize>,
    pub(crate) function: Kernel,
}

static KERNELS: Mutex<BTreeMap<String, Registered>> = Mutex::new(BTreeMap::new());

pub(crate) fn register(name: String, kernel: Registered) {
    lock(&KERNELS).insert(name, kernel);
}

pub(crate) fn named(name: &str) -> Option<Registered> {
    lock(&KERNELS).get(name).cloned()
}
