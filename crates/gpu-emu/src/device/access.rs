//! The memory that work on a device can access: that of every device, and pinned memory of the
//! host, in one address space.

use crate::ffi::HostMemory;

use super::memory::AccessError;
use super::{of_address, pinned};

/// Checks that `length` bytes at `address` are allocated, in one piece.
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
