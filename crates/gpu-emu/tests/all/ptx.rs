//! Kernels in PTX: they are interpreted, and their errors are faults of the device.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::{CStr, CString};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DriverError, result, sys};

use crate::common::{device, faults_of};

/// Stores the index of each thread, in reverse order.
const NUMBERS: &CStr = c"// Numbers.
.version 6.0
.target sm_50
.address_size 64

.visible .entry numbers(.param .u64 into, .param .u32 len)
{
    .reg .pred %inside;
    .reg .u32 %len, %block, %threads, %at;
    .reg .u64 %into, %offset;
    ld.param.u64 %into, [into];
    ld.param.u32 %len, [len];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mul.lo.u32 %block, %block, %threads;
    mov.u32 %at, %tid.x;
    add.u32 %at, %at, %block;
    setp.lt.u32 %inside, %at, %len;
    @!%inside bra DONE;
    cvt.u64.u32 %offset, %at;
    shl.b64 %offset, %offset, 2;
    add.u64 %into, %into, %offset;
    st.global.u32 [%into], %at;
DONE:
    ret;
}

.visible .entry forever(.param .u64 into)
{
AGAIN:
    bra AGAIN;
}
";

fn load(text: &CStr) -> Result<sys::CUmodule, DriverError> {
    // SAFETY: the text ends with a zero byte.
    unsafe { result::module::load_data(text.as_ptr().cast()) }
}

fn function(module: sys::CUmodule, name: &str) -> Result<sys::CUfunction, DriverError> {
    // SAFETY: the module was loaded, and is never unloaded.
    unsafe { result::module::get_function(module, CString::new(name).unwrap()) }
}

/// Launches a kernel with an address and a number as arguments, and waits for it.
fn launch(
    stream: &CudaStream,
    function: sys::CUfunction,
    (address, len): (u64, u32),
) -> Result<(), DriverError> {
    let mut arguments =
        [(&raw const address).cast_mut().cast::<std::ffi::c_void>(), (&raw const len).cast_mut().cast()];
    // SAFETY: the kernel has at most these parameters, and the emulator checks its accesses.
    unsafe { result::launch_kernel(function, (3, 1, 1), (32, 1, 1), 0, stream.cu_stream(), &mut arguments) }?;
    stream.synchronize()
}

fn address(memory: &CudaSlice<u32>, stream: &CudaStream) -> u64 {
    memory.device_ptr(stream).0
}

#[test]
fn all_threads_of_a_launch_run() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.alloc_zeros::<u32>(100).unwrap();
    let numbers = function(load(NUMBERS).unwrap(), "numbers").unwrap();
    launch(&stream, numbers, (address(&memory, &stream), 70)).unwrap();
    let wanted: Vec<u32> = (0..70).chain([0; 30]).collect();
    assert_eq!(stream.clone_dtoh(&memory).unwrap(), wanted);
    assert_eq!(faults_of(context.ordinal()), Vec::<String>::new());
}

#[test]
fn a_module_that_is_not_understood_is_refused_with_its_line() {
    let context = device();
    let text = CString::new(NUMBERS.to_str().unwrap().replace("st.global", "st.shared")).unwrap();
    assert_eq!(load(&text).unwrap_err().0, sys::CUresult::CUDA_ERROR_INVALID_PTX);
    let faults = faults_of(context.ordinal());
    assert!(
        faults.len() == 1 && faults[0].contains("line 23") && faults[0].contains("st.shared"),
        "{faults:?}"
    );
    let missing = function(load(NUMBERS).unwrap(), "letters").unwrap_err();
    assert_eq!(missing.0, sys::CUresult::CUDA_ERROR_NOT_FOUND);
}

/// An access fails, and with it all later work on the device.
#[test]
fn a_kernel_that_writes_where_it_must_not_is_a_fault() {
    for (skipped, len, reason) in [(0, 11, "out of bounds"), (2, 1, "not aligned")] {
        let context = device();
        let stream = context.new_stream().unwrap();
        let memory = stream.alloc_zeros::<u32>(10).unwrap();
        let numbers = function(load(NUMBERS).unwrap(), "numbers").unwrap();
        let start = address(&memory, &stream);
        stream.synchronize().unwrap();
        assert!(launch(&stream, numbers, (start + skipped, len)).is_err());
        let faults = faults_of(context.ordinal());
        assert!(faults[0].contains("numbers: ") && faults[0].contains(reason), "{faults:?}");
    }
}

#[test]
fn memory_that_is_freed_is_a_fault_of_the_next_launch() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let memory = stream.alloc_zeros::<u32>(10).unwrap();
    let numbers = function(load(NUMBERS).unwrap(), "numbers").unwrap();
    let start = address(&memory, &stream);
    launch(&stream, numbers, (start, 10)).unwrap();
    drop(memory);
    assert!(launch(&stream, numbers, (start, 10)).is_err());
    assert!(faults_of(context.ordinal())[0].contains("use after free"));
}

#[test]
fn a_kernel_that_does_not_end_is_a_fault() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let forever = function(load(NUMBERS).unwrap(), "forever").unwrap();
    assert!(launch(&stream, forever, (0, 0)).is_err());
    assert!(faults_of(context.ordinal())[0].contains("does not end"));
}
