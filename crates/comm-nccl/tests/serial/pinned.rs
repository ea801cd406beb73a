//! Copies between devices and pinned memory: the copied bytes, the order of streams, and rejected
//! calls.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::ops::Range;
use std::thread;
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, Error, ReduceOp};
use comm_nccl::{CopyRegion, CopyStreams, CudaView, CudaViewMut, Device, DeviceBuffer, PinnedBuffer, Stream};

use crate::alone;
use crate::common::hold::hold;
use crate::common::{JITTERS, control, devices, faults_of, options, world};
use gpu_emu::Setting;

const BRIEFLY: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

/// A separate device for a test, with the streams and memory for copies.
fn device() -> (Device, Stream, CopyStreams) {
    let device = Device::open(devices(1)[0]).unwrap();
    let (stream, streams) = (device.new_stream().unwrap(), CopyStreams::new(&device).unwrap());
    (device, stream, streams)
}

fn part(elements: Range<usize>, at: usize) -> CopyRegion {
    CopyRegion { elements, at }
}

fn read(buffer: &DeviceBuffer<u16>) -> CudaView<'_> {
    buffer.view()
}

fn write(buffer: &mut DeviceBuffer<u16>) -> CudaViewMut<'_> {
    buffer.view_mut()
}

fn words(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|word| u16::from_ne_bytes([word[0], word[1]])).collect()
}

#[test]
fn parts_are_copied_to_where_they_belong_in_both_directions() {
    let _alone = alone();
    let (device, stream, streams) = device();
    let pinned = control().live().pinned;
    for jitter in JITTERS {
        control().set(Setting::JitterMicroseconds, jitter);
        for len in [0, 1, 7, 4096] {
            let elements: Vec<u16> = (0..len as u16).map(|element| element ^ 0x5aa5).collect();
            let from = DeviceBuffer::from_host(&stream, &elements).unwrap();
            let mut to = DeviceBuffer::<u16>::zeros(&stream, len).unwrap();
            let mut through = PinnedBuffer::new(&device, 2 * len + 2).unwrap();
            let middle = len / 2;
            // The halves are swapped in the copy to the host, and again in the copy to the device.
            let halves = [part(0..middle, len - middle), part(middle..len, 0)];
            read(&from).transfer(&streams).unwrap().download(&halves, &mut through).unwrap();
            assert_eq!(
                words(through.bytes().unwrap())[..len],
                [&elements[middle..], &elements[..middle]].concat()
            );
            write(&mut to).transfer(&streams).unwrap().upload(&halves, &mut through).unwrap();
            assert_eq!(to.to_vec().unwrap(), elements, "{len} elements, jitter {jitter}");
        }
    }
    assert_eq!(control().live().pinned, pinned, "pinned memory is freed");
    assert_eq!(faults_of(&[device.ordinal()]), Vec::<String>::new());
}

#[test]
fn a_piece_follows_the_last_one_in_the_same_memory() {
    let _alone = alone();
    let (device, stream, streams) = device();
    control().set(Setting::JitterMicroseconds, JITTERS[1]);
    let elements: Vec<u16> = (0..1000).collect();
    let from = DeviceBuffer::from_host(&stream, &elements).unwrap();
    let mut to = DeviceBuffer::<u16>::zeros(&stream, 1000).unwrap();
    let mut through = PinnedBuffer::new(&device, 20).unwrap();
    let (mut down, mut up) =
        (read(&from).transfer(&streams).unwrap(), write(&mut to).transfer(&streams).unwrap());
    // The streams wait, but not the host.
    for start in (0..1000).step_by(10) {
        down.download(&[part(start..start + 10, 0)], &mut through).unwrap();
        up.upload(&[part(start..start + 10, 0)], &mut through).unwrap();
    }
    drop((down, up));
    assert_eq!(to.to_vec().unwrap(), elements);
    assert_eq!(faults_of(&[device.ordinal()]), Vec::<String>::new());
}

/// Enqueues a write on a stream, like a kernel of the user.
fn fill(buffer: &mut DeviceBuffer<u16>, stream: &Stream) {
    let bytes = 2 * buffer.len();
    let write = |pointer| {
        let handle = stream.as_cudarc().cu_stream();
        // SAFETY: the buffer has `bytes` bytes, and orders what comes before and after.
        unsafe { cudarc::driver::result::memset_d8_async(pointer, 7, bytes, handle) }.unwrap();
        Ok(())
    };
    buffer.as_mut_slice().write_on(stream, write).unwrap();
}

#[test]
fn reading_pinned_memory_waits_for_the_copy() {
    let _alone = alone();
    let (device, stream, streams) = device();
    let mut buffer = DeviceBuffer::<u16>::zeros(&stream, 100).unwrap();
    let held = hold(&stream);
    fill(&mut buffer, &stream);
    let mut through = PinnedBuffer::new(&device, 200).unwrap();
    read(&buffer).transfer(&streams).unwrap().download(&[part(0..100, 0)], &mut through).unwrap();
    assert!(!through.wait_timeout(BRIEFLY).unwrap(), "the copy waits for the stream of the last write");
    thread::scope(|scope| {
        let look = scope.spawn(|| through.bytes().unwrap().to_vec());
        thread::sleep(BRIEFLY);
        assert!(!look.is_finished());
        drop(held);
        assert_eq!(look.join().unwrap(), [7; 200]);
    });
    assert!(through.wait_timeout(BRIEFLY).unwrap());
}

#[test]
fn pinned_memory_is_not_freed_while_a_copy_is_in_flight() {
    let _alone = alone();
    let (device, stream, streams) = device();
    let mut buffer = DeviceBuffer::<u16>::zeros(&stream, 100).unwrap();
    let through = PinnedBuffer::new(&device, 200).unwrap();
    let pinned = control().live().pinned;
    let held = hold(&stream);
    fill(&mut buffer, &stream);
    thread::scope(|scope| {
        let dropped = scope.spawn(|| {
            let mut through = through;
            read(&buffer).transfer(&streams).unwrap().download(&[part(0..100, 0)], &mut through).unwrap();
        });
        thread::sleep(BRIEFLY);
        assert!(!dropped.is_finished());
        assert_eq!(control().live().pinned, pinned);
        drop(held);
        dropped.join().unwrap();
    });
    assert_eq!(control().live().pinned, pinned - 1);
    assert_eq!(faults_of(&[device.ordinal()]), Vec::<String>::new());
}

#[test]
fn memory_of_a_device_is_freed_after_the_copies() {
    let _alone = alone();
    let (device, stream, streams) = device();
    let mut through = PinnedBuffer::new(&device, 400).unwrap();
    let mut buffer = DeviceBuffer::<u16>::zeros(&stream, 100).unwrap();
    let held = hold(&stream);
    fill(&mut buffer, &stream);
    let mut transfer = write(&mut buffer).transfer(&streams).unwrap();
    // The later copy to the device does not replace the record of the copy to the host, which is on
    // another stream.
    transfer.download(&[part(0..50, 0)], &mut through).unwrap();
    transfer.upload(&[part(50..60, 0)], &mut through).unwrap();
    transfer.download(&[part(50..100, 100)], &mut through).unwrap();
    drop(transfer);
    drop(buffer);
    drop(held);
    assert_eq!(through.bytes().unwrap()[..100], [7; 100]);
    stream.synchronize().unwrap();
    assert_eq!(faults_of(&[device.ordinal()]), Vec::<String>::new());
}

#[test]
fn an_upload_that_fails_after_it_was_enqueued_returns_when_its_source_was_read() {
    let _alone = alone();
    let (device, stream, _) = device();
    let mut from = PinnedBuffer::new(&device, 200).unwrap();
    from.bytes_mut().unwrap().fill(1);
    let mut buffer = DeviceBuffer::<u8>::zeros(&stream, 200).unwrap();
    let held = hold(&stream);
    // The first event is recorded before the copy, to wait until the stream reaches it.
    control().plan_code(device.ordinal(), c"cuEventRecord", 1, 999);
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(BRIEFLY);
            drop(held);
        });
        let refused = buffer.copy_from_host(from.bytes().unwrap());
        // Safe code may do this after it gets its buffer back.
        from.bytes_mut().unwrap().fill(2);
        refused
    });
    assert!(matches!(refused, Err(Error::Backend { code: 999, .. })), "{refused:?}");
    stream.synchronize().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [1; 200]);
}

#[test]
fn a_range_outside_of_a_buffer_fails_before_any_copy() {
    let _alone = alone();
    let (device, stream, streams) = device();
    let (other, _, elsewhere) = self::device();
    let mut buffer = DeviceBuffer::from_host(&stream, &[1_u16, 2, 3, 4]).unwrap();
    let mut through = PinnedBuffer::new(&device, 8).unwrap();
    for parts in [
        [part(0..1, 0), part(0..5, 0)],
        [part(0..1, 0), part(0..4, 1)],
        [part(0..1, 0), part(3..4, usize::MAX)],
    ] {
        let outcome = read(&buffer).transfer(&streams).unwrap().download(&parts, &mut through);
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{parts:?}: {outcome:?}");
        assert_eq!(through.bytes().unwrap(), [0; 8]);
        let outcome = write(&mut buffer).transfer(&streams).unwrap().upload(&parts, &mut through);
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{parts:?}: {outcome:?}");
    }
    let outcome = read(&buffer).transfer(&streams).unwrap().upload(&[part(0..1, 0)], &mut through);
    assert!(matches!(outcome, Err(Error::Invalid(_))), "only to be read: {outcome:?}");
    let outcome = read(&buffer).transfer(&elsewhere).map(drop);
    assert!(matches!(outcome, Err(Error::Invalid(_))), "on device {}: {outcome:?}", other.ordinal());
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3, 4]);
    assert_eq!(faults_of(&[device.ordinal(), other.ordinal()]), Vec::<String>::new());
}

#[test]
fn the_buffer_of_a_failed_call_cannot_be_read_on_the_host() {
    let _alone = alone();
    let devices = devices(1);
    control().plan_hang(devices[0], 0);
    world(&devices, |rank| {
        let streams = CopyStreams::new(&rank.device).unwrap();
        let mut buffer = rank.buffer(&[1_i32; 10]);
        rank.comm
            .run(
                Call::AllReduce { buffers: Buffers::InPlace(buffer.view_mut()), op: ReduceOp::Sum },
                &options(),
            )
            .unwrap();
        let mut through = PinnedBuffer::new(&rank.device, 40).unwrap();
        let view: CudaView<'_> = buffer.view();
        view.transfer(&streams).unwrap().download(&[part(0..10, 0)], &mut through).unwrap();
        assert!(!through.wait_timeout(BRIEFLY).unwrap());
        rank.comm.abort("enough");
        let error = through.wait_timeout(LONG).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Aborted { .. }), "{error}");
        assert_eq!(through.bytes().unwrap().len(), 40, "the host can access the memory again");
    });
}
