//! Actions that no correct program takes are detected and described.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use cudarc::driver::{DevicePtr, result, sys};

use crate::common::{control, device, faults, faults_of, hold};

const ILLEGAL: sys::CUresult = sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
const INVALID: sys::CUresult = sys::CUresult::CUDA_ERROR_INVALID_VALUE;

#[test]
fn a_copy_out_of_bounds_is_refused_and_nothing_is_written() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[1_u8, 2, 3, 4]).unwrap();
    let address = memory.device_ptr(&stream).0;
    for (at, length) in [(0, 5), (3, 2), (4, 1), (600, 1)] {
        // SAFETY: the emulator checks the length.
        let copied = unsafe { result::memcpy_htod_sync(address + at, &vec![9_u8; length]) };
        assert_eq!(copied.unwrap_err().0, INVALID, "{length} bytes at {at}");
    }
    let faults = faults_of(context.ordinal());
    assert_eq!(faults.len(), 4);
    assert!(faults[0].contains("5 bytes") && faults[0].contains("out of bounds"), "{}", faults[0]);
    assert_eq!(stream.clone_dtoh(&memory).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn use_after_free_is_refused() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[1_u8, 2]).unwrap();
    let address = memory.device_ptr(&stream).0;
    drop(memory);
    stream.synchronize().unwrap();
    // SAFETY: this test intentionally uses freed memory; the emulator detects it.
    let read = unsafe { result::memcpy_dtoh_sync(&mut [0_u8; 2], address) };
    assert_eq!(read.unwrap_err().0, INVALID);
    assert!(faults_of(context.ordinal())[0].contains("use after free"));
    stream.synchronize().unwrap();
}

#[test]
fn use_after_a_free_in_the_order_of_the_stream_stays_with_the_device() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.clone_htod(&[1_u8, 2]).unwrap();
    let address = memory.device_ptr(&stream).0;
    let release = hold(&stream);
    drop(memory);
    // SAFETY: nothing is written, because the emulator rejects the copy when the stream reaches it.
    unsafe { result::memset_d8_async(address, 0, 2, stream.cu_stream()) }.unwrap();
    drop(release);
    assert_eq!(stream.synchronize().unwrap_err().0, ILLEGAL);
    assert_eq!(stream.clone_htod(&[1]).unwrap_err().0, ILLEGAL);
    assert!(faults_of(context.ordinal())[0].contains("use after free"));
    control().reset_device(context.ordinal());
    let _kept_until_here = context.check_err();
    assert!(stream.clone_htod(&[1]).is_ok());
}

#[test]
fn memory_of_one_stream_is_not_there_for_another_before_it_is_allocated() {
    let context = device();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let release = hold(&first);
    // SAFETY: the memory is written before it is read.
    let address = unsafe { result::malloc_async(first.cu_stream(), 8) }.unwrap();
    // SAFETY: the emulator rejects it.
    unsafe { result::memset_d8_async(address, 0, 8, second.cu_stream()) }.unwrap();
    assert_eq!(second.synchronize().unwrap_err().0, ILLEGAL);
    drop(release);
    assert!(faults_of(context.ordinal())[0].contains("before its stream allocated it"));
}

#[test]
fn a_stream_is_not_used_after_it_is_destroyed() {
    let context = device();
    context.bind_to_thread().unwrap();
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking).unwrap();
    // SAFETY: the stream exists.
    unsafe { result::stream::destroy(stream) }.unwrap();
    // SAFETY: handles are looked up, and never dereferenced.
    let used = unsafe { result::stream::synchronize(stream) };
    assert_eq!(used.unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert!(faults(None).contains(&"a stream was used after it was destroyed".to_owned()));
}

#[test]
fn a_thread_without_a_context_cannot_allocate() {
    let _context = device();
    let allocated = std::thread::spawn(|| {
        // SAFETY: the memory is not accessed.
        unsafe { result::malloc_sync(8) }
    });
    assert_eq!(allocated.join().unwrap().unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn the_last_release_of_a_context_takes_the_memory_with_it() {
    let context = device();
    let ordinal = context.ordinal();
    // SAFETY: the memory is only requested.
    let address = unsafe { result::malloc_sync(8) }.unwrap();
    drop(context);
    let again = cudarc::driver::CudaContext::new(ordinal).unwrap();
    again.bind_to_thread().unwrap();
    // SAFETY: this test intentionally uses a destroyed object; the emulator detects it.
    let read = unsafe { result::memcpy_dtoh_sync(&mut [0_u8; 2], address) };
    assert_eq!(read.unwrap_err().0, INVALID);
    assert!(faults_of(ordinal)[0].contains("use after free"));
}

/// Only in a separate process, which this terminates.
#[test]
fn the_host_cannot_follow_an_address_of_a_device() {
    const CHILD: &str = "GPU_EMU_TEST_FOLLOW";
    if std::env::var_os(CHILD).is_some() {
        let context = device();
        let stream = context.default_stream();
        let memory = stream.clone_htod(&[1_u8]).unwrap();
        let address = memory.device_ptr(&stream).0 as usize;
        // SAFETY: this is not host memory, so the read ends the process.
        let value = unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
        panic!("read {value}");
    }
    let program = std::env::current_exe().unwrap();
    let name = "faults::the_host_cannot_follow_an_address_of_a_device";
    let child = Command::new(program).args(["--exact", name]).env(CHILD, "1").output().unwrap();
    let signal = child.status.signal();
    assert!(matches!(signal, Some(libc::SIGSEGV | libc::SIGBUS)), "{:?}", child.status);
}
