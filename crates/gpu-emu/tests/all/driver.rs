//! cudarc on the emulator: contexts, memory, copies, streams, events, kernels.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::CString;
use std::thread;
use std::time::Duration;

use cudarc::driver::{CudaContext, result, sys};
use gpu_emu::{Control, Launch, Setting};

use crate::common::{DEVICES, control, device, devices, hold};

const LENGTHS: [usize; 6] = [1, 2, 63, 64, 65, 100_000];

#[test]
fn devices_have_distinct_properties() {
    let control = control();
    let (a, b) = (device(), device());
    assert_eq!(a.name().unwrap(), format!("Emulated device {}", a.ordinal()));
    assert_ne!(a.uuid().unwrap().bytes, b.uuid().unwrap().bytes);
    assert_eq!(a.compute_capability().unwrap(), (9, 0));
    assert_eq!(CudaContext::device_count().unwrap(), DEVICES as i32);
    assert!(CudaContext::new(DEVICES).is_err());
    assert_eq!(control.path().file_name().unwrap(), "libgpu_emu.so");
}

#[test]
fn copies_to_the_host_and_back_keep_the_bytes() {
    let context = device();
    for stream in [context.default_stream(), context.per_thread_stream(), context.new_stream().unwrap()] {
        for length in LENGTHS {
            let data: Vec<u32> = (0..length as u32).collect();
            let there = stream.clone_htod(&data).unwrap();
            let copy = stream.clone_dtod(&there).unwrap();
            assert_eq!(stream.clone_dtoh(&copy).unwrap(), data);
        }
    }
}

#[test]
fn pinned_memory_is_copied_when_the_stream_reaches_the_copy() {
    let context = device();
    let stream = context.new_stream().unwrap();
    // SAFETY: every byte is written before it is read.
    let mut from = unsafe { context.alloc_pinned::<u32>(1000) }.unwrap();
    from.as_mut_slice().unwrap().fill(7);
    let start = from.as_mut_ptr().unwrap();
    let mut there = stream.alloc_zeros::<u32>(1000).unwrap();
    let release = hold(&stream);
    stream.memcpy_htod(&from, &mut there).unwrap();
    // SAFETY: the address is that of 1000 numbers; the test checks that the stream reads them
    // later.
    unsafe { start.write(8) };
    drop(release);
    let back = stream.clone_dtoh(&there).unwrap();
    assert_eq!((back[0], back[1]), (8, 7));
}

#[test]
fn pageable_memory_is_read_before_the_call_returns() {
    let context = device();
    let stream = context.new_stream().unwrap();
    let mut there = stream.alloc_zeros::<u32>(3).unwrap();
    let release = hold(&stream);
    let mut from = vec![1, 2, 3];
    stream.memcpy_htod(&from, &mut there).unwrap();
    from.fill(0);
    drop(release);
    assert_eq!(stream.clone_dtoh(&there).unwrap(), [1, 2, 3]);
}

#[test]
fn copies_reach_other_devices() {
    let (a, b) = (device().new_stream().unwrap(), device().new_stream().unwrap());
    let there = a.clone_htod(&[1.5_f64, 2.5]).unwrap();
    let copy = b.clone_dtod(&there).unwrap();
    assert_ne!(copy.ordinal(), there.ordinal());
    assert_eq!(b.clone_dtoh(&copy).unwrap(), [1.5, 2.5]);
}

#[test]
fn memory_is_poisoned_until_it_is_written() {
    let context = device();
    let stream = context.default_stream();
    // SAFETY: this test intentionally reads uninitialized memory.
    let fresh = unsafe { stream.alloc::<f32>(5) }.unwrap();
    assert!(stream.clone_dtoh(&fresh).unwrap().iter().all(|value| value.is_nan()));
}

#[test]
fn a_device_out_of_memory_can_allocate_after_a_free() {
    let context = device();
    let stream = context.default_stream();
    let all = context.total_mem().unwrap();
    let most = stream.alloc_zeros::<u8>(all / 2 + 1).unwrap();
    let error = stream.alloc_zeros::<u8>(all / 2).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(most);
    stream.synchronize().unwrap();
    assert_eq!(context.mem_get_info().unwrap(), (all, all));
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let context = device();
    let (slow, quick) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let release = hold(&slow);
    let event = slow.record_event(None).unwrap();
    assert_eq!(quick.clone_dtoh(&quick.clone_htod(&[1, 2]).unwrap()).unwrap(), [1, 2]);
    assert!(!event.is_complete());
    drop(release);
    event.synchronize().unwrap();
    assert!(event.is_complete());
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let context = device();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let release = hold(&first);
    second.wait(&first.record_event(None).unwrap()).unwrap();
    let after = second.record_event(None).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert!(!after.is_complete());
    drop(release);
    second.synchronize().unwrap();
    assert!(after.is_complete());
}

#[test]
fn a_planned_call_does_nothing_and_returns_the_planned_code() {
    let context = device();
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let release = hold(&first);
    let event = first.record_event(None).unwrap();
    control().plan_code(context.ordinal(), c"cuStreamWaitEvent", 0, 0);
    second.wait(&event).unwrap();
    second.synchronize().unwrap();
    assert!(!event.is_complete());
    control().plan_code(context.ordinal(), c"cuStreamWaitEvent", 0, 2);
    assert_eq!(second.wait(&event).unwrap_err().0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(release);
}

#[test]
fn the_legacy_stream_waits_for_blocking_ones_and_they_for_it() {
    let context = device();
    let (legacy, own) = (context.default_stream(), context.per_thread_stream());
    let free = context.new_stream().unwrap();
    for (held, waiting) in [(&legacy, &own), (&own, &legacy)] {
        let release = hold(held);
        let after = waiting.record_event(None).unwrap();
        free.synchronize().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!after.is_complete());
        drop(release);
        waiting.synchronize().unwrap();
    }
}

#[test]
fn every_thread_has_a_stream_of_its_own() {
    let context = device();
    let release = hold(&context.per_thread_stream());
    thread::scope(|scope| {
        scope.spawn(|| {
            context.bind_to_thread().unwrap();
            context.per_thread_stream().synchronize().unwrap();
        });
    });
    drop(release);
}

/// y += a * x, on as many numbers as there are threads.
extern "C" fn axpy(launch: &Launch) {
    let control = Control::load().unwrap();
    let arguments = (launch.argument::<f32>(0), launch.argument::<u64>(1), launch.argument::<u64>(2));
    let (Some(a), Some(x), Some(y)) = arguments else { return };
    let bytes = launch.block[0] as usize * 4;
    let (Some(xs), Some(mut ys)) = (control.read(x, bytes), control.read(y, bytes)) else { return };
    for (x, y) in xs.chunks_exact(4).zip(ys.chunks_exact_mut(4)) {
        let sum = f32::from_ne_bytes(y.try_into().unwrap()) + a * f32::from_ne_bytes(x.try_into().unwrap());
        y.copy_from_slice(&sum.to_ne_bytes());
    }
    let _written = control.write(y, &ys);
}

#[test]
fn a_kernel_is_a_function_of_its_name() {
    use cudarc::driver::{DevicePtr, DevicePtrMut};
    let context = device();
    control().register_kernel(c"axpy", &[4, 8, 8], axpy);
    let stream = context.new_stream().unwrap();
    let x = stream.clone_htod(&[1.0_f32, 2.0, 3.0]).unwrap();
    let mut y = stream.clone_htod(&[10.0_f32, 20.0, 30.0]).unwrap();
    // SAFETY: any text is valid, because the emulator does not read it.
    let module = unsafe { result::module::load_data(c"code".as_ptr().cast()) }.unwrap();
    // SAFETY: the module was loaded above.
    let missing = unsafe { result::module::get_function(module, CString::new("other").unwrap()) };
    assert_eq!(missing.unwrap_err().0, sys::CUresult::CUDA_ERROR_NOT_FOUND);
    // SAFETY: as above.
    let function = unsafe { result::module::get_function(module, CString::new("axpy").unwrap()) }.unwrap();
    {
        let ((x, _reads), (y, _writes)) = (x.device_ptr(&stream), y.device_ptr_mut(&stream));
        let a = 2.0_f32;
        let mut arguments = [
            (&raw const a).cast_mut().cast(),
            (&raw const x).cast_mut().cast(),
            (&raw const y).cast_mut().cast(),
        ];
        let (grid, block) = ((1, 1, 1), (3, 1, 1));
        // SAFETY: the arguments are those that the kernel was registered with.
        unsafe { result::launch_kernel(function, grid, block, 0, stream.cu_stream(), &mut arguments) }
            .unwrap();
    }
    assert_eq!(stream.clone_dtoh(&y).unwrap(), [12.0, 24.0, 36.0]);
}

#[test]
fn work_keeps_its_order_when_its_time_is_random() {
    let control = control();
    control.set(Setting::JitterMicroseconds, 300);
    let context = device();
    let streams = [(); 3].map(|()| context.new_stream().unwrap());
    let mut values = streams[0].clone_htod(&[0_u32]).unwrap();
    for round in 1..=30_u32 {
        let stream = &streams[round as usize % 3];
        let next = stream.clone_htod(&[round]).unwrap();
        stream.memcpy_dtod(&next, &mut values).unwrap();
    }
    assert_eq!(streams[0].clone_dtoh(&values).unwrap(), [30]);
    control.set(Setting::JitterMicroseconds, 0);
}

#[test]
fn whatever_is_dropped_is_gone() {
    let context = device();
    let before = context.mem_get_info().unwrap();
    {
        let stream = context.new_stream().unwrap();
        let _memory = stream.alloc_zeros::<u64>(1000).unwrap();
        assert_eq!(context.mem_get_info().unwrap().0, before.0 - 8000);
    }
    context.synchronize().unwrap();
    while context.mem_get_info().unwrap() != before {
        thread::yield_now();
    }
}

#[test]
fn the_driver_reports_the_version_that_is_set() {
    let mut version = 0;
    let control = control();
    control.set(Setting::DriverVersion, 12_080);
    // SAFETY: the answer is written to a number that lives here.
    unsafe { sys::cuDriverGetVersion(&raw mut version).result() }.unwrap();
    control.set(Setting::DriverVersion, 13_000);
    assert_eq!(version, 12_080);
    assert_eq!(devices(1).len(), 1);
}

/// cudarc makes other streams wait for the event that a guard records when it is dropped, so it
/// must live until work is enqueued.
#[test]
fn a_guard_that_is_dropped_before_the_call_lets_another_stream_overtake() {
    use cudarc::driver::DevicePtrMut;
    let context = device();
    let (writer, reader) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    for kept in [false, true] {
        let mut memory = writer.clone_htod(&[1_u8]).unwrap();
        let before = hold(&writer);
        let (address, guard) = memory.device_ptr_mut(&writer);
        let mut guard = Some(guard);
        if !kept {
            guard = None;
        }
        let between = hold(&writer);
        // SAFETY: the memory has one byte.
        unsafe { result::memset_d8_async(address, 2, 1, writer.cu_stream()) }.unwrap();
        drop(guard);
        drop(before);
        let read = thread::scope(|scope| {
            let read = scope.spawn(|| reader.clone_dtoh(&memory).unwrap());
            thread::sleep(Duration::from_millis(50));
            assert_eq!(read.is_finished(), !kept);
            drop(between);
            read.join().unwrap()
        });
        assert_eq!(read, [if kept { 2 } else { 1 }]);
    }
}
