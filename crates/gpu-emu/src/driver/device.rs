//! Queries of a device.

use std::ffi::c_char;

use crate::device;
use crate::ffi::Out;
use crate::settings::{self, Setting};

use super::context::{device_numbered, is_initialized};
use super::{CuError, CuResult, answer, given};

/// Values of `CUdevice_attribute`. All other attributes are 0, including the minor number of the
/// compute capability.
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
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
        device_numbered(ordinal)?;
        let found = match attribute {
            MEMORY_POOLS_SUPPORTED => i32::from(settings::is_on(Setting::AsyncAllocation)),
            COMPUTE_CAPABILITY_MAJOR => 9,
            _ => 0,
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

/// Writes as much of `text` as fits, and a NUL.
fn put_text(out: &Out<c_char>, capacity: i32, text: &str) -> CuResult {
    let capacity = usize::try_from(capacity).ok().filter(|capacity| *capacity > 0);
    let length = capacity.ok_or(CuError::INVALID_VALUE)? - 1;
    let bytes = text.bytes().take(length).chain([0]);
    let written = bytes.enumerate().all(|(index, byte)| out.put_at(index, c_char::from_ne_bytes([byte])));
    given(written)
}

/// Returns the UUID of a device. It is the same in every process, and devices of one machine differ
/// in the last byte.
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
