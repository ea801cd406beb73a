//! Queries of a device.

use std::ffi::c_char;

use crate::device;
use crate::ffi::Out;
use crate::settings::{self, Setting};

use super::context::{device_numbered, is_initialized};
use super::{CuError, CuResult, answer, given};

/// (attribute, value), under the numbers of `CUdevice_attribute`. All others are 0.
const ATTRIBUTES: [(i32, i32); 13] = [
    (1, 1024),    // threads in a block
    (2, 1024),    // size of a block in x
    (3, 1024),    // in y
    (4, 64),      // in z
    (5, 1 << 30), // size of a grid in x
    (6, 65_535),  // in y
    (7, 65_535),  // in z
    (8, 49_152),  // shared memory of a block
    (10, 32),     // threads in a warp
    (16, 16),     // multiprocessors
    (41, 1),      // one address space with the host
    (75, 9),      // compute capability
    (76, 0),
];
const PCI_BUS_ID: i32 = 33;
const MEMORY_POOLS_SUPPORTED: i32 = 115;

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<i32>) -> i32 {
    answer(|| {
        if !is_initialized() {
            return Err(CuError::NOT_INITIALIZED);
        }
        given(count.put(i32::try_from(device::count()).unwrap_or(i32::MAX)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<i32>, ordinal: i32) -> i32 {
    answer(|| {
        device_numbered(ordinal)?;
        given(device.put(ordinal))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) -> i32 {
    answer(|| {
        let device = device_numbered(ordinal)?;
        let found = match attribute {
            PCI_BUS_ID => i32::try_from(device.physical + 1).unwrap_or(0),
            MEMORY_POOLS_SUPPORTED => i32::from(settings::is_on(Setting::AsyncAllocation)),
            other => ATTRIBUTES.iter().find(|row| row.0 == other).map_or(0, |row| row.1),
        };
        given(value.put(found))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, ordinal: i32) -> i32 {
    answer(|| {
        device_numbered(ordinal)?;
        given(bytes.put(total_memory()))
    })
}

pub(super) fn total_memory() -> usize {
    usize::try_from(settings::get(Setting::DeviceMemory)).unwrap_or(usize::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<c_char>, capacity: i32, ordinal: i32) -> i32 {
    answer(|| {
        let device = device_numbered(ordinal)?;
        put_text(&name, capacity, &format!("Emulated device {}", device.physical))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(name: Out<c_char>, capacity: i32, ordinal: i32) -> i32 {
    answer(|| {
        let device = device_numbered(ordinal)?;
        put_text(&name, capacity, &format!("0000:{:02X}:00.0", device.physical + 1))
    })
}

/// Writes as much of `text` as fits, and a NUL.
fn put_text(out: &Out<c_char>, capacity: i32, text: &str) -> CuResult {
    let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity > 0);
    let length = capacity.ok_or(CuError::INVALID_VALUE)? - 1;
    let bytes = text.bytes().take(length).chain([0]);
    let written = bytes.enumerate().all(|(index, byte)| out.put_at(index, c_char::from_ne_bytes([byte])));
    given(written)
}

/// Returns the UUID of a device. Devices of one machine differ in the last byte, in every process.
fn uuid(physical: usize) -> [u8; 16] {
    let mut uuid = *b"gpu-emu-device\0\0";
    uuid[15] = u8::try_from(physical).unwrap_or(u8::MAX);
    uuid
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(out: Out<[u8; 16]>, ordinal: i32) -> i32 {
    answer(|| given(out.put(uuid(device_numbered(ordinal)?.physical))))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, ordinal: i32) -> i32 {
    cuDeviceGetUuid(out, ordinal)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<i32>, ordinal: i32, peer: i32) -> i32 {
    answer(|| {
        device_numbered(ordinal)?;
        device_numbered(peer)?;
        given(can.put(i32::from(ordinal != peer)))
    })
}
