//! The memory that work on a device can access: the memory of all devices and pinned host memory,
//! in one address space.

use std::sync::Arc;

use crate::ffi::HostMemory;

use super::memory::{AccessError, Allocation};
use super::{of_address, pinned};

/// Checks that `length` bytes at `address` lie in one allocation.
pub(crate) fn check(address: u64, length: usize) -> Result<(), AccessError> {
    match of_address(address) {
        Some(device) => device.memory.check(address, length),
        None if host(address).is_some_and(|memory| pinned::contains(memory.address(), length)) => Ok(()),
        None => Err(AccessError::Foreign(address)),
    }
}

pub(crate) fn read(address: u64, length: usize) -> Result<Vec<u8>, AccessError> {
    match of_address(address) {
        Some(device) => device.memory.read(address, length),
        None => {
            let bytes = host(address).and_then(|memory| pinned::read(memory, length));
            bytes.ok_or(AccessError::Foreign(address))
        }
    }
}

pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), AccessError> {
    match of_address(address) {
        Some(device) => device.memory.write(address, bytes),
        None if host(address).is_some_and(|memory| pinned::write(memory, bytes)) => Ok(()),
        None => Err(AccessError::Foreign(address)),
    }
}

fn host(address: u64) -> Option<HostMemory> {
    usize::try_from(address).ok().map(HostMemory::at)
}

/// The memory that a kernel launch accesses, element by element. It caches the allocations that it
/// has found.
#[derive(Debug, Default)]
pub(crate) struct Window {
    seen: Vec<Arc<Allocation>>,
}

impl Window {
    /// Reads up to 8 bytes as a little-endian number.
    pub(crate) fn load(&mut self, address: u64, length: usize) -> Result<u64, AccessError> {
        if let Some(number) = self.seen.iter().find_map(|allocation| allocation.load(address, length)) {
            return Ok(number);
        }
        let bytes = read(address, length)?;
        self.pin(address, length)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Writes up to 8 bytes of a number in little-endian order.
    pub(crate) fn store(&mut self, address: u64, length: usize, number: u64) -> Result<(), AccessError> {
        if self.seen.iter().any(|allocation| allocation.store(address, length, number).is_some()) {
            return Ok(());
        }
        write(address, number.to_le_bytes().get(..length).unwrap_or_default())?;
        self.pin(address, length)
    }

    fn pin(&mut self, address: u64, length: usize) -> Result<(), AccessError> {
        if let Some(device) = of_address(address) {
            self.seen.push(device.memory.existing(address, length)?.0);
        }
        Ok(())
    }
}
