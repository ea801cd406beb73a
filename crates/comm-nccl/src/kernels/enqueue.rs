//! Enqueues work on a stream, ordered with other work on the same memory.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr;

use comm_core::Result;
use cudarc::driver::result;

use super::module;
use crate::health::CallRecord;
use crate::usage::{Access, Use};
use crate::view::Span;
use crate::{Stream, error};

/// The threads of a block, and the most blocks of a launch, which is more than any device runs at a
/// time. Results do not depend on either.
const THREADS: usize = 256;
const BLOCKS_MAX: usize = 4096;

/// A launch of a kernel with `N` arguments and one thread per element.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch<const N: usize> {
    pub(super) name: &'static CStr,
    pub(super) threads: usize,
    /// The bits of each argument, the lowest byte first, as on every host with CUDA.
    pub(super) arguments: [u64; N],
}

/// Enqueues a kernel that reads `inputs` and writes `outputs`. Memory may be in both.
pub(super) fn launch<const N: usize>(
    stream: &Stream,
    launch: Launch<N>,
    inputs: &[Span<'_>],
    outputs: &[Span<'_>],
) -> Result<()> {
    if launch.threads == 0 {
        return Ok(());
    }
    in_order(stream, inputs, outputs, || {
        let function = module::function(&stream.device(), launch.name)?;
        let blocks = launch.threads.div_ceil(THREADS).min(BLOCKS_MAX);
        let (grid, block) = ((blocks as u32, 1, 1), (THREADS as u32, 1, 1));
        let mut arguments: [*mut c_void; N] =
            launch.arguments.each_ref().map(|argument| ptr::from_ref(argument).cast_mut().cast());
        // SAFETY: the function is loaded in the stream's context. It has `N` parameters of at most
        // 8 bytes each, and accesses only the spans, whose memory is freed after their uses.
        unsafe {
            result::launch_kernel(
                function.handle(),
                grid,
                block,
                0,
                stream.as_cudarc().cu_stream(),
                &mut arguments,
            )
        }
        .map_err(error::cuda("launch a kernel"))
    })
}

/// Enqueues a copy between elements of the same type and number.
pub(super) fn copy(stream: &Stream, into: Span<'_>, from: Span<'_>) -> Result<()> {
    let bytes = into.bytes();
    if bytes == 0 {
        return Ok(());
    }
    in_order(stream, &[from], &[into], || {
        // SAFETY: both have this size, and are freed after their uses.
        unsafe {
            result::memcpy_dtod_async(into.pointer, from.pointer, bytes, stream.as_cudarc().cu_stream())
        }
        .map_err(error::cuda("enqueue a copy"))
    })
}

/// Enqueues filling elements with zeros.
pub(super) fn zero(stream: &Stream, into: Span<'_>) -> Result<()> {
    let bytes = into.bytes();
    if bytes == 0 {
        return Ok(());
    }
    in_order(stream, &[], &[into], || {
        // SAFETY: the memory has this size, and is freed after its uses.
        unsafe { result::memset_d8_async(into.pointer, 0, bytes, stream.as_cudarc().cu_stream()) }
            .map_err(error::cuda("enqueue zeros"))
    })
}

/// Copies the bytes of all elements from the host, and returns when the copy is done.
pub(super) fn write(stream: &Stream, into: Span<'_>, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let copied = in_order(stream, &[], &[into], || {
        stream.settle()?;
        // SAFETY: both have this size, and the bytes live until the wait below is over.
        unsafe { result::memcpy_htod_async(into.pointer, bytes, stream.as_cudarc().cu_stream()) }
            .map_err(error::cuda("enqueue a copy"))
    });
    // Even after an error: the device may still read.
    stream.synchronize().and(copied)
}

/// Copies the bytes of all elements to the host, after all earlier work on them.
pub(super) fn read(stream: &Stream, from: Span<'_>, bytes: &mut [u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let source = from.call_record();
    let copied = in_order(stream, &[from], &[], || {
        stream.settle()?;
        // SAFETY: both have this size, and the bytes live until the wait below is over.
        unsafe { result::memcpy_dtoh_async(bytes, from.pointer, stream.as_cudarc().cu_stream()) }
            .map_err(error::cuda("enqueue a copy"))
    });
    // Even after an error: the device may still write.
    stream.synchronize()?;
    copied?;
    source.map_or(Ok(()), |source| source.check())
}

/// Enqueues work after the uses of memory with which it conflicts, and makes later ones wait for
/// it. The outputs are lost if a call that wrote one of the inputs is lost.
fn in_order(
    stream: &Stream,
    inputs: &[Span<'_>],
    outputs: &[Span<'_>],
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let uses = || {
        let reads = inputs.iter().map(|span| (span, Access::Read));
        reads.chain(outputs.iter().map(|span| (span, Access::Write)))
    };
    uses().try_for_each(|(span, _)| span.check_device(stream.ordinal()))?;
    stream.device().bind()?;
    uses().try_for_each(|(span, access)| span.before(stream, access))?;
    let call_record = CallRecord::of_all(inputs.iter().filter_map(Span::call_record));
    let enqueued = work();
    // Even after an error, work may be enqueued.
    let now = Use { stream: stream.clone(), done: stream.record()?, call_record };
    let marked = uses().map(|(span, access)| span.after(access, &now));
    marked.fold(enqueued, Result::and)
}
