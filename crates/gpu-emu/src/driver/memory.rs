//! Allocates and frees memory, immediately or in stream order, on the device or pinned on the host.

use crate::device::memory::Owner;
use crate::device::{self, pinned};
use crate::ffi::{HostMemory, Out};
use crate::handles::Handle;

use super::context::current;
use super::device::total_memory;
use super::{CuError, answer, given, recorded, refused, stream};

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

/// First waits for all work on the device, as in CUDA.
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
        let base = stream.device.memory.allocate(length, Owner::Pool).ok_or(CuError::OUT_OF_MEMORY)?;
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
            if let Err(error) = owner.memory.free(address, Owner::Pool) {
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
