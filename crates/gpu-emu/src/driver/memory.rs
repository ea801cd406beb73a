//! Memory: allocated and freed at once or in the order of a stream, on the device or pinned on the
//! host; and attributes of addresses.

use std::ffi::c_void;

use crate::device::memory::Owner;
use crate::device::{self, pinned};
use crate::ffi::{HostMemory, In, Out};
use crate::handles::Handle;

use super::context::current;
use super::device::total_memory;
use super::{CuError, CuResult, answer, given, recorded, refused, stream};

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<u64>, length: usize) -> i32 {
    recorded("cuMemAlloc", &format_args!("bytes={length}"), || {
        let device = current()?;
        if length == 0 || address.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        let base = device.memory.allocate(length, Owner::Driver).ok_or(CuError::OUT_OF_MEMORY)?;
        device.memory.begin(base);
        given(address.put(base))
    })
}

/// Waits for all work of the device first, as CUDA does.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> i32 {
    recorded("cuMemFree", &format_args!("address={address:#x}"), || {
        let device = current()?;
        if address == 0 {
            return Ok(());
        }
        let owner = device::of_address(address).ok_or(CuError::INVALID_VALUE)?;
        owner.synchronize();
        owner.memory.free(address, Owner::Driver).map_err(|error| refused(device.ordinal, "cuMemFree", error))
    })
}

/// Work after this point of the stream can use the memory. Zero bytes allocate nothing.
#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: Out<u64>, length: usize, stream: Handle) -> i32 {
    recorded("cuMemAllocAsync", &format_args!("bytes={length} stream={stream:p}"), || {
        let stream = stream::of_handle(stream)?;
        if length == 0 {
            return given(address.put(0));
        }
        let base = stream.device.memory.allocate(length, Owner::Driver).ok_or(CuError::OUT_OF_MEMORY)?;
        stream.add(move |device| device.memory.begin(base));
        given(address.put(base))
    })
}

/// Work before this point of the stream can use the memory.
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> i32 {
    recorded("cuMemFreeAsync", &format_args!("address={address:#x} stream={stream:p}"), || {
        let stream = stream::of_handle(stream)?;
        if address == 0 {
            return Ok(());
        }
        let owner = device::of_address(address).ok_or(CuError::INVALID_VALUE)?;
        let found = owner.memory.range(address);
        let (base, _) = found.map_err(|error| refused(stream.device.ordinal, "cuMemFreeAsync", error))?;
        if base != address {
            return Err(CuError::INVALID_VALUE);
        }
        stream.add(move |device| {
            if let Err(error) = owner.memory.free(address, Owner::Driver) {
                device.fail(CuError::ILLEGAL_ADDRESS, &format!("cuMemFreeAsync: {error}"));
            }
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> i32 {
    answer(|| {
        let in_use = current()?.memory.in_use();
        given(free.put(total_memory().saturating_sub(in_use)) && total.put(total_memory()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: Out<u64>, length: Out<usize>, address: u64) -> i32 {
    answer(|| {
        let owner = device::of_address(address).ok_or(CuError::INVALID_VALUE)?;
        let (start, bytes) = owner.memory.range(address).map_err(|_| CuError::INVALID_VALUE)?;
        given((base.is_null() || base.put(start)) && (length.is_null() || length.put(bytes)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(memory: Out<HostMemory>, length: usize, _flags: u32) -> i32 {
    recorded("cuMemHostAlloc", &format_args!("bytes={length}"), || {
        current()?;
        if length == 0 || memory.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        given(memory.put(pinned::allocate(length)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(memory: HostMemory) -> i32 {
    recorded("cuMemFreeHost", &format_args!("address={:#x}", memory.address()), || {
        current()?.synchronize();
        if pinned::free(memory) { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(memory: HostMemory, length: usize, _flags: u32) -> i32 {
    answer(|| {
        current()?;
        let registered = length > 0 && !memory.is_null() && pinned::register(memory, length);
        given(registered)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(memory: HostMemory) -> i32 {
    answer(|| {
        current()?.synchronize();
        given(pinned::unregister(memory))
    })
}

/// Host and device share one address space, so that pinned memory has the same address on both.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(address: Out<u64>, memory: HostMemory, _flags: u32) -> i32 {
    answer(|| {
        let pinned = pinned::contains(memory.address(), 1);
        given(pinned && address.put(memory.address() as u64))
    })
}

/// Numbers of `CUpointer_attribute`, and of the two kinds of memory.
const MEMORY_TYPE: i32 = 2;
const DEVICE_ORDINAL: i32 = 9;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const IS_MANAGED: i32 = 8;
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// Writes an attribute. The addresses of all types are the same.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(out: Out<c_void>, attribute: i32, address: u64) -> i32 {
    answer(|| attribute_of(&out, attribute, address))
}

fn attribute_of(out: &Out<c_void>, attribute: i32, address: u64) -> CuResult {
    let Some(device) = device::of_address(address) else {
        let host = usize::try_from(address).is_ok_and(|address| pinned::contains(address, 1));
        return match attribute {
            MEMORY_TYPE if host => given(out.cast().put(HOST)),
            IS_MANAGED if host => given(out.cast().put(0_u8)),
            _ => Err(CuError::INVALID_VALUE),
        };
    };
    let (base, length) = device.memory.range(address).map_err(|_| CuError::INVALID_VALUE)?;
    given(match attribute {
        MEMORY_TYPE => out.cast().put(DEVICE),
        DEVICE_ORDINAL => out.cast().put(i32::try_from(device.ordinal).unwrap_or(i32::MAX)),
        RANGE_START => out.cast().put(base),
        RANGE_SIZE => out.cast().put(length),
        IS_MANAGED => out.cast().put(0_u8),
        _ => return Err(CuError::NOT_SUPPORTED),
    })
}

/// Like the single call, for several attributes; those that an address does not have are not
/// written.
#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(count: u32, kinds: In<i32>, outs: In<*mut c_void>, address: u64) -> i32 {
    answer(|| {
        for index in 0..count as usize {
            let kind = kinds.get(index).ok_or(CuError::INVALID_VALUE)?;
            let out = outs.get(index).ok_or(CuError::INVALID_VALUE)?;
            // SAFETY: the caller listed it, as the memory for the attribute of this index.
            let out = unsafe { Out::listed(out) };
            let _not_every_address_has_it = attribute_of(&out, kind, address);
        }
        Ok(())
    })
}
