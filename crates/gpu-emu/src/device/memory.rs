//! The memory of a device.
//!
//! An address is a number that no process can dereference, and is never reused. Each allocation is
//! backed by host memory that only the functions here access, after checking all bounds: an access
//! that would corrupt memory or read garbage on a real device is an error here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::settings::{self, Setting};
use crate::sync::lock;

/// No valid address of a process has these bits, so dereferencing one on the host faults.
const TAG: u64 = 0x4E << 56;
const TAG_MASK: u64 = 0xFF << 56;
const DEVICE_SHIFT: u32 = 44;
const DEVICE_MASK: u64 = 0xFF;
/// Allocations start at multiples of this, as in CUDA, and are separated by at least this many
/// unused bytes.
const GAP: u64 = 512;
/// The value of every byte before it is written, and after it is freed: NaN in every floating point
/// type, -1 in integers.
pub(crate) const POISON: u8 = 0xFF;

/// The error of an access to the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("{0:#x} is not a device address")]
    Foreign(u64),
    #[error("{address:#x} belongs to no allocation")]
    Outside { address: u64 },
    #[error("{address:#x} lies in {length} bytes at {base:#x} that were freed: use after free")]
    Freed { address: u64, base: u64, length: u64 },
    #[error(
        "{wanted} bytes at {address:#x} reach out of bounds: the allocation has {length} bytes at {base:#x}"
    )]
    OutOfBounds { address: u64, wanted: usize, base: u64, length: usize },
    #[error("{address:#x} was used before its stream allocated it")]
    NotYet { address: u64 },
    #[error("the memory at {address:#x} was allocated by {owner:?}, and cannot be freed by another API")]
    OfAnother { address: u64, owner: Owner },
}

/// The API that allocated memory, and must free it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Driver,
    /// The driver, in the order of a stream.
    Pool,
    Nccl,
}

/// Returns the device's number in the process, if `address` looks like an address of a device.
pub(crate) fn ordinal_of(address: u64) -> Option<usize> {
    let device = (address >> DEVICE_SHIFT) & DEVICE_MASK;
    (address & TAG_MASK == TAG).then(|| usize::try_from(device).ok()).flatten()
}

#[derive(Debug)]
pub(crate) struct Allocation {
    base: u64,
    length: usize,
    owner: Owner,
    bytes: Mutex<Vec<u8>>,
    /// False until the stream that allocates it has reached the allocation, and after it is freed.
    exists: AtomicBool,
}

impl Allocation {
    /// Returns up to 8 bytes as a number, or `None` unless they all lie in the allocation.
    pub(crate) fn load(&self, address: u64, length: usize) -> Option<u64> {
        let range = self.range_of(address, length)?;
        let mut number = [0; 8];
        number.get_mut(..length)?.copy_from_slice(lock(&self.bytes).get(range)?);
        Some(u64::from_le_bytes(number))
    }

    /// Writes up to 8 bytes of a number, or returns `None` unless they all lie in the allocation.
    pub(crate) fn store(&self, address: u64, length: usize, number: u64) -> Option<()> {
        let range = self.range_of(address, length)?;
        lock(&self.bytes).get_mut(range)?.copy_from_slice(number.to_le_bytes().get(..length)?);
        Some(())
    }

    fn range_of(&self, address: u64, length: usize) -> Option<Range<usize>> {
        let start = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let inside = start.checked_add(length)? <= self.length && self.exists.load(Ordering::SeqCst);
        inside.then_some(start..start + length)
    }
}

#[derive(Debug)]
pub(crate) struct Memory(Mutex<Space>);

#[derive(Debug)]
struct Space {
    next: u64,
    in_use: usize,
    live: BTreeMap<u64, Arc<Allocation>>,
    /// The lengths of freed allocations by address, which distinguish stale addresses from wrong
    /// ones.
    freed: BTreeMap<u64, u64>,
}

impl Memory {
    pub(crate) fn new(ordinal: usize) -> Self {
        let next = TAG | (ordinal as u64) << DEVICE_SHIFT | 1 << 32;
        Self(Mutex::new(Space { next, in_use: 0, live: BTreeMap::new(), freed: BTreeMap::new() }))
    }

    /// Allocates `length` poisoned bytes, or returns `None` if the device is out of memory. They
    /// can be used after [`Self::begin`].
    pub(crate) fn allocate(&self, length: usize, owner: Owner) -> Option<u64> {
        let mut space = lock(&self.0);
        let in_use = space.in_use.checked_add(length)?;
        if in_use as u64 > settings::get(Setting::DeviceMemory) {
            return None;
        }
        let base = space.next;
        space.next += (length as u64).next_multiple_of(GAP) + GAP;
        space.in_use = in_use;
        let bytes = Mutex::new(vec![POISON; length]);
        let allocation = Allocation { base, length, owner, bytes, exists: AtomicBool::new(false) };
        space.live.insert(base, Arc::new(allocation));
        Some(base)
    }

    /// Marks the allocation at `base` as existing.
    pub(crate) fn begin(&self, base: u64) {
        if let Some(allocation) = lock(&self.0).live.get(&base) {
            allocation.exists.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn free(&self, base: u64, owner: Owner) -> Result<(), AccessError> {
        let mut space = lock(&self.0);
        let Some(allocation) = space.live.get(&base).cloned() else { return Err(space.nothing_at(base)) };
        if (allocation.owner == Owner::Nccl) != (owner == Owner::Nccl) {
            return Err(AccessError::OfAnother { address: base, owner: allocation.owner });
        }
        space.live.remove(&base);
        space.free_allocation(&allocation);
        Ok(())
    }

    pub(crate) fn free_all(&self) {
        let mut space = lock(&self.0);
        while let Some((_, allocation)) = space.live.pop_first() {
            space.free_allocation(&allocation);
        }
    }

    /// Checks that `length` bytes at `address` lie in one allocation, which need not exist yet.
    pub(crate) fn check(&self, address: u64, length: usize) -> Result<(), AccessError> {
        lock(&self.0).find(address, length).map(|_| ())
    }

    /// Returns the API that allocated the memory at `address`.
    pub(crate) fn owner(&self, address: u64) -> Result<Owner, AccessError> {
        lock(&self.0).find(address, 0).map(|(allocation, _)| allocation.owner)
    }

    /// Returns the start and length of the allocation that contains `address`.
    pub(crate) fn range(&self, address: u64) -> Result<(u64, usize), AccessError> {
        lock(&self.0).find(address, 0).map(|(allocation, _)| (allocation.base, allocation.length))
    }

    pub(crate) fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, AccessError> {
        let (allocation, start) = self.existing(address, length)?;
        let bytes = lock(&allocation.bytes);
        let found = bytes.get(start..start + length).map(<[u8]>::to_vec);
        found.ok_or(AccessError::Outside { address })
    }

    pub(crate) fn write(&self, address: u64, new: &[u8]) -> Result<(), AccessError> {
        let (allocation, start) = self.existing(address, new.len())?;
        let mut bytes = lock(&allocation.bytes);
        let place = bytes.get_mut(start..start + new.len()).ok_or(AccessError::Outside { address })?;
        place.copy_from_slice(new);
        Ok(())
    }

    pub(crate) fn in_use(&self) -> usize {
        lock(&self.0).in_use
    }

    /// Returns the allocation that contains `length` bytes at `address`, and the index of the
    /// first.
    pub(crate) fn existing(
        &self,
        address: u64,
        length: usize,
    ) -> Result<(Arc<Allocation>, usize), AccessError> {
        let (allocation, start) = lock(&self.0).find(address, length)?;
        let exists = allocation.exists.load(Ordering::SeqCst);
        if exists { Ok((allocation, start)) } else { Err(AccessError::NotYet { address }) }
    }
}

impl Space {
    fn find(&self, address: u64, wanted: usize) -> Result<(Arc<Allocation>, usize), AccessError> {
        let before = self.live.range(..=address).next_back();
        let (base, allocation) = before.ok_or_else(|| self.nothing_at(address))?;
        let start = usize::try_from(address - base).unwrap_or(usize::MAX);
        if start > allocation.length || start == allocation.length && wanted == 0 && start > 0 {
            return Err(self.nothing_at(address));
        }
        if wanted > allocation.length - start {
            return Err(AccessError::OutOfBounds { address, wanted, base: *base, length: allocation.length });
        }
        Ok((allocation.clone(), start))
    }

    fn nothing_at(&self, address: u64) -> AccessError {
        if ordinal_of(address).is_none() {
            return AccessError::Foreign(address);
        }
        match self.freed.range(..=address).next_back() {
            Some((base, length)) if address - base < *length => {
                AccessError::Freed { address, base: *base, length: *length }
            }
            _ => AccessError::Outside { address },
        }
    }

    fn free_allocation(&mut self, allocation: &Allocation) {
        self.in_use -= allocation.length;
        self.freed.insert(allocation.base, allocation.length as u64);
        allocation.exists.store(false, Ordering::SeqCst);
        // Work that found the allocation just before may still hold it.
        lock(&allocation.bytes).fill(POISON);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ten_bytes() -> (Memory, u64) {
        let memory = Memory::new(3);
        let base = memory.allocate(10, Owner::Driver).unwrap();
        memory.begin(base);
        (memory, base)
    }

    #[test]
    fn fresh_memory_is_poisoned_and_keeps_what_is_written() {
        let (memory, base) = with_ten_bytes();
        assert_eq!(memory.read(base, 10).unwrap(), [POISON; 10]);
        memory.write(base + 8, &[1, 2]).unwrap();
        assert_eq!(memory.read(base + 7, 3).unwrap(), [POISON, 1, 2]);
    }

    #[test]
    fn every_byte_out_of_bounds_is_refused() {
        let (memory, base) = with_ten_bytes();
        assert!(matches!(
            memory.read(base, 11),
            Err(AccessError::OutOfBounds { wanted: 11, length: 10, .. })
        ));
        assert!(matches!(memory.write(base + 9, &[0; 2]), Err(AccessError::OutOfBounds { .. })));
        assert!(matches!(memory.read(base + 10, 1), Err(AccessError::OutOfBounds { .. })));
        assert_eq!(memory.read(base + 11, 1), Err(AccessError::Outside { address: base + 11 }));
        assert_eq!(memory.read(base - 1, 1), Err(AccessError::Outside { address: base - 1 }));
        assert_eq!(memory.read(0x1000, 1), Err(AccessError::Foreign(0x1000)));
    }

    #[test]
    fn freed_memory_stays_freed() {
        let (memory, base) = with_ten_bytes();
        assert!(matches!(memory.free(base, Owner::Nccl), Err(AccessError::OfAnother { .. })));
        memory.free(base, Owner::Driver).unwrap();
        assert!(matches!(memory.read(base + 4, 1), Err(AccessError::Freed { length: 10, .. })));
        assert!(matches!(memory.free(base, Owner::Driver), Err(AccessError::Freed { .. })));
        assert_ne!(memory.allocate(10, Owner::Driver), Some(base));
        assert_eq!(memory.in_use(), 10);
    }

    #[test]
    fn memory_is_not_used_before_it_exists() {
        let memory = Memory::new(0);
        let base = memory.allocate(4, Owner::Driver).unwrap();
        assert_eq!(memory.check(base, 4), Ok(()));
        assert_eq!(memory.read(base, 4), Err(AccessError::NotYet { address: base }));
        memory.begin(base);
        assert!(memory.read(base, 4).is_ok());
    }

    #[test]
    fn addresses_name_their_device() {
        assert_eq!(ordinal_of(with_ten_bytes().1), Some(3));
        assert_eq!(ordinal_of(0x7FFF_0000_1000), None);
    }
}
