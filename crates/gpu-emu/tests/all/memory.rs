//! Pinned memory of the host, and memory that NCCL allocates and registers.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{DevicePtr, result, sys};
use nccl_sys::ncclResult_t;

use crate::common::ranks::{OK, nccl, world};
use crate::common::{control, device, devices, hold};

const INVALID: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;

#[test]
fn pinned_memory_that_is_freed_too_early_is_not_touched() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[7_u8; 8]).unwrap();
    // SAFETY: the memory is freed once, below.
    let start = unsafe { result::malloc_host(8, 0) }.unwrap();
    let release = hold(&stream);
    // SAFETY: the memory was allocated with this length, and is not used here after it is freed.
    let host = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), 8) };
    // SAFETY: the emulator checks whether it is still allocated, which is tested here.
    unsafe { result::memcpy_dtoh_async(host, memory.device_ptr(&stream).0, stream.cu_stream()) }.unwrap();
    let other = device();
    other.bind_to_thread().unwrap();
    // SAFETY: another device has no pending work, so this runs before the copy.
    unsafe { result::free_host(start) }.unwrap();
    drop(release);
    assert!(stream.synchronize().is_err());
    control().reset_device(context.ordinal());
}

#[test]
fn nccl_allocates_and_registers_memory() {
    let devices = devices(2);
    world(&devices, |member| {
        let mut address: *mut c_void = ptr::null_mut();
        // SAFETY: the answer is written to a value that lives here.
        assert_eq!(unsafe { nccl().ncclMemAlloc(&raw mut address, 8) }.unwrap(), OK);
        let mut handle: *mut c_void = ptr::null_mut();
        // SAFETY: as above, and the memory was allocated with this length.
        let made = unsafe { nccl().ncclCommRegister(member.comm, address, 8, &raw mut handle) };
        assert_eq!(made.unwrap(), OK);
        // SAFETY: the emulator checks the length.
        let too_long = unsafe { nccl().ncclCommRegister(member.comm, address, 9, &raw mut handle) };
        assert_eq!(too_long.unwrap(), ncclResult_t::ncclInvalidArgument);
        let at = address as u64;
        // SAFETY: the memory holds two numbers.
        unsafe { result::memcpy_htod_async(at, &[1.0_f32, 2.0], member.stream.cu_stream()) }.unwrap();
        assert_eq!(member.call("AllReduce", member.args(at, at, 2)), OK);
        let mut sums = [0.0_f32; 2];
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(&mut sums, at, member.stream.cu_stream()) }.unwrap();
        assert_eq!(sums, [2.0, 4.0]);
        for wanted in [OK, ncclResult_t::ncclInvalidArgument] {
            // SAFETY: handles are looked up, and never dereferenced.
            assert_eq!(unsafe { nccl().ncclCommDeregister(member.comm, handle) }.unwrap(), wanted);
        }
        // SAFETY: addresses are looked up, and never dereferenced; the test checks that this one is
        // rejected.
        assert_eq!(unsafe { sys::cuMemFree_v2(at) }, INVALID);
        for wanted in [OK, ncclResult_t::ncclInvalidArgument] {
            // SAFETY: addresses are looked up, and never dereferenced.
            assert_eq!(unsafe { nccl().ncclMemFree(address) }.unwrap(), wanted);
        }
    });
}
