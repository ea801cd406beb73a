//! Memory that is allocated and registered in other ways, and what an address says about itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::{DevicePtr, result, sys};
use nccl_sys::ncclResult_t;

use common::ranks::{OK, nccl, world};
use common::{control, device, devices, hold};

const INVALID: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;

/// One attribute of an address, as a number of type `T`.
fn attribute<T: Default>(kind: sys::CUpointer_attribute, address: u64) -> Result<T, sys::CUresult> {
    let mut value = T::default();
    // SAFETY: the answer has the type that the documentation of CUDA says for this attribute.
    let answer = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), kind, address) };
    answer.result().map(|()| value).map_err(|error| error.0)
}

#[test]
fn an_address_says_what_it_is() {
    use sys::CUpointer_attribute as Kind;
    let context = device();
    let stream = context.default_stream();
    let memory = stream.alloc_zeros::<u64>(10).unwrap();
    let base = memory.device_ptr(&stream).0;
    assert_eq!(attribute::<u32>(Kind::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base + 79), Ok(2));
    let ordinal = attribute::<i32>(Kind::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base);
    assert_eq!(ordinal, Ok(context.ordinal() as i32));
    assert_eq!(attribute::<u64>(Kind::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base + 8), Ok(base));
    assert_eq!(attribute::<usize>(Kind::CU_POINTER_ATTRIBUTE_RANGE_SIZE, base), Ok(80));
    assert_eq!(attribute::<u32>(Kind::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, base + 80), Err(INVALID));
    // SAFETY: nothing is done with the memory.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(10) }.unwrap();
    let address = pinned.as_mut_ptr().unwrap() as u64;
    assert_eq!(attribute::<u32>(Kind::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), Ok(1));
    assert_eq!(
        attribute::<u32>(Kind::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr::from_ref(&address) as u64),
        Err(INVALID)
    );
}

#[test]
fn registered_memory_of_the_host_is_left_to_the_stream() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[7_u8; 100]).unwrap();
    let mut host = vec![0_u8; 100];
    let start: *mut c_void = host.as_mut_ptr().cast();
    // SAFETY: the memory stays until it is not registered any more.
    unsafe { sys::cuMemHostRegister_v2(start, 100, 0).result() }.unwrap();
    let release = hold(&stream);
    // SAFETY: the memory is read only after the stream has written it.
    unsafe { result::memcpy_dtoh_async(&mut host, memory.device_ptr(&stream).0, stream.cu_stream()) }
        .unwrap();
    assert_eq!(host, [0; 100]);
    drop(release);
    stream.synchronize().unwrap();
    assert_eq!(host, [7; 100]);
    // SAFETY: it was registered above.
    unsafe { sys::cuMemHostUnregister(start).result() }.unwrap();
    // SAFETY: as above; that it is refused is what is tried here.
    assert_eq!(unsafe { sys::cuMemHostUnregister(start) }, INVALID);
}

#[test]
fn pinned_memory_that_is_freed_too_early_is_not_touched() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[7_u8; 8]).unwrap();
    let mut host = [0_u8; 8];
    let start: *mut c_void = host.as_mut_ptr().cast();
    // SAFETY: the memory stays until it is not registered any more.
    unsafe { sys::cuMemHostRegister_v2(start, 8, 0).result() }.unwrap();
    let release = hold(&stream);
    // SAFETY: the emulator looks whether it is still registered, which is what is tried here.
    unsafe { result::memcpy_dtoh_async(&mut host, memory.device_ptr(&stream).0, stream.cu_stream()) }
        .unwrap();
    let other = device();
    other.bind_to_thread().unwrap();
    // SAFETY: another device has nothing to wait for, so that this comes before the copy.
    unsafe { sys::cuMemHostUnregister(start).result() }.unwrap();
    drop(release);
    assert!(stream.synchronize().is_err());
    assert_eq!(host, [0; 8]);
    control().heal(context.ordinal());
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
        // SAFETY: the emulator checks the length, which is what is tried here.
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
            // SAFETY: handles are looked up, never followed.
            assert_eq!(unsafe { nccl().ncclCommDeregister(member.comm, handle) }.unwrap(), wanted);
        }
        // SAFETY: addresses are looked up, never followed; that it is refused is what is tried
        // here.
        assert_eq!(unsafe { sys::cuMemFree_v2(at) }, INVALID);
        for wanted in [OK, ncclResult_t::ncclInvalidArgument] {
            // SAFETY: addresses are looked up, never followed.
            assert_eq!(unsafe { nccl().ncclMemFree(address) }.unwrap(), wanted);
        }
    });
}
