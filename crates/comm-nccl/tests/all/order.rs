//! The order of work on a device, for buffers, streams, and memory of other libraries.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, DType, ReduceOp};
use comm_nccl::{CudaViewMut, DeviceBuffer, Stream};

use crate::common::hold::hold;
use crate::common::{JITTERS, control, devices, faults_of, options, world};
use gpu_emu::Setting;

/// Enqueues a write of bytes on a stream, like a kernel of the user.
fn fill(buffer: &mut DeviceBuffer<u8>, stream: &Stream, value: u8) {
    let len = buffer.len();
    let write = |pointer| {
        let handle = stream.as_cudarc().cu_stream();
        // SAFETY: the buffer has `len` bytes, and orders what comes before and after.
        unsafe { cudarc::driver::result::memset_d8_async(pointer, value, len, handle) }.unwrap();
        Ok(())
    };
    buffer.as_mut_slice().write_on(stream, write).unwrap();
}

#[test]
fn a_call_waits_for_the_streams_that_used_its_buffers_and_they_for_it() {
    let devices = devices(2);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        world(&devices, |rank| {
            let (first, second) = (rank.device.new_stream().unwrap(), rank.device.new_stream().unwrap());
            let mut buffer = rank.zeros::<u8>(1000);
            for round in 1..20 {
                let held = hold(&first);
                fill(&mut buffer, &first, round);
                rank.comm
                    .run(
                        Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                        &options(),
                    )
                    .unwrap();
                let copy = rank.zeros::<u8>(1000);
                let mut copied = copy;
                let read = |from: u64| {
                    copied.as_mut_slice().write_on(&second, |to| {
                        let handle = second.as_cudarc().cu_stream();
                        // SAFETY: both buffers have 1000 bytes, and order what comes before and
                        // after.
                        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, 1000, handle) }.unwrap();
                        Ok(())
                    })
                };
                buffer.as_slice().read_on(&second, read).unwrap();
                // The next write must not overtake the read.
                fill(&mut buffer, &first, 99);
                drop(held);
                assert_eq!(copied.to_vec().unwrap(), vec![round * 2; 1000]);
                assert_eq!(buffer.to_vec().unwrap(), vec![99; 1000]);
            }
        });
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}

#[test]
fn calls_are_asynchronous_and_a_barrier_is_not() {
    world(&devices(2), |rank| {
        let held = hold(rank.comm.stream());
        let mut buffer = rank.buffer(&[1.0_f32]);
        rank.comm
            .run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                &options(),
            )
            .unwrap();
        thread::scope(|scope| {
            let barrier = scope.spawn(|| rank.comm.run(Call::Barrier, &options()).unwrap());
            thread::sleep(Duration::from_millis(50));
            assert!(!barrier.is_finished());
            drop(held);
            barrier.join().unwrap();
        });
        assert_eq!(buffer.to_vec().unwrap(), [2.0]);
    });
}

/// The device of one rank is late, and no rank leaves the barrier before it.
#[test]
fn a_barrier_waits_for_all_devices() {
    world(&devices(3), |rank| {
        rank.comm.run(Call::Barrier, &options()).unwrap();
        let held = (rank.rank == 1).then(|| hold(rank.comm.stream()));
        let began = std::time::Instant::now();
        thread::scope(|scope| {
            let barrier = scope.spawn(|| rank.comm.run(Call::Barrier, &options()).unwrap());
            if held.is_some() {
                thread::sleep(Duration::from_millis(200));
            }
            drop(held);
            barrier.join().unwrap();
        });
        assert!(began.elapsed() > Duration::from_millis(50), "{:?}", began.elapsed());
    });
}

#[test]
fn a_buffer_is_freed_after_the_call_that_uses_it() {
    let devices = devices(2);
    world(&devices, |rank| {
        let held = hold(rank.comm.stream());
        let mut buffer = rank.buffer(&[1.0_f32; 100]);
        rank.comm
            .run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                &options(),
            )
            .unwrap();
        drop(buffer);
        drop(held);
        rank.comm.synchronize().unwrap();
    });
    assert_eq!(faults_of(&devices), Vec::<String>::new(), "no memory was used after it was freed");
}

/// Like a framework, the test owns the memory and the stream, and passes them as addresses.
#[test]
fn memory_of_others_is_used_in_the_order_of_their_stream() {
    let devices = devices(2);
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        world(&devices, |rank| {
            let theirs = rank.device.context().new_stream().unwrap();
            let memory = theirs.alloc_zeros::<u8>(64).unwrap();
            let (pointer, guard) = cudarc::driver::DevicePtr::device_ptr(&memory, &theirs);
            // SAFETY: the stream lives to the end of the test.
            let stream = unsafe { Stream::from_raw(&rank.device, theirs.cu_stream().cast()) };
            for round in 1..20_u8 {
                let held = hold(&stream);
                // SAFETY: the memory has 64 bytes.
                unsafe { cudarc::driver::result::memset_d8_async(pointer, round, 64, theirs.cu_stream()) }
                    .unwrap();
                // SAFETY: the memory lives to the end of the test, and is used only on the
                // framework's stream.
                let view = unsafe { CudaViewMut::from_raw(pointer, 64, DType::U8, &stream) };
                rank.comm
                    .run(Call::AllReduce { buffers: Buffers::InPlace(view), op: ReduceOp::Sum }, &options())
                    .unwrap();
                let mut host = [0_u8; 64];
                drop(held);
                // SAFETY: both have 64 bytes, and the host waits before it reads.
                unsafe { cudarc::driver::result::memcpy_dtoh_async(&mut host, pointer, theirs.cu_stream()) }
                    .unwrap();
                theirs.synchronize().unwrap();
                assert_eq!(host, [round * 2; 64]);
            }
            drop(guard);
        });
    }
    assert_eq!(faults_of(&devices), Vec::<String>::new());
}
