//! Computations on device memory: the [`Kernels`] of [`Cuda`].
//!
//! - `names`: the kernel for an operation and its types;
//! - `module`: the loaded kernels of a device;
//! - `enqueue`: the order of work with other work on the same memory;
//! - `buffer`: buffers of a type that is known at run time;
//! - `*.ptx`: the code, which `cargo xtask kernels` generates.
//!
//! The results equal those of the host's kernels bit for bit. They depend on nothing that CUDA
//! leaves unspecified: every floating point operation has an explicit rounding mode, so that none
//! is fused with another, and a NaN in a result is replaced by a fixed one. The code targets
//! compute capability 5.0, and the driver compiles it for the device when a program first allocates
//! a buffer.

mod buffer;
mod enqueue;
mod module;
mod names;

use std::ffi::CStr;
use std::ops::Range;

use comm_core::{Comm, DType, Invalid, Kernels, ReduceOp, Result, Shape};

use crate::Stream;
use crate::error::CUDA;
use crate::memory::{Cuda, DeviceComm};
use crate::view::{CudaView, CudaViewMut, Span};

pub use buffer::ErasedDeviceBuffer;
use enqueue::Launch;
use names::Float;

/// The elements of a row in a sum of squares, and the rows that one thread adds. The kernels follow
/// the order that `comm_core` defines.
const LANES: usize = 16;
const ROWS: usize = 64;

impl Kernels for Cuda {
    type Buffer = ErasedDeviceBuffer;

    fn allocate(comm: &Comm<Self>, dtype: DType, len: usize) -> Result<ErasedDeviceBuffer> {
        // The kernels are loaded now, because loading may wait for all work on the device, and so
        // for other ranks.
        module::load(comm.device())?;
        ErasedDeviceBuffer::zeros(comm.stream(), dtype, len)
    }

    fn get(view: Self::View<'_>, range: Range<usize>) -> Option<Self::View<'_>> {
        view.span.get(range).map(|span| CudaView { span })
    }

    fn get_mut(view: Self::ViewMut<'_>, range: Range<usize>) -> Option<Self::ViewMut<'_>> {
        view.span.get(range).map(|span| CudaViewMut { span })
    }

    fn write(comm: &Comm<Self>, into: CudaViewMut<'_>, bytes: &[u8]) -> Result<()> {
        check_len("the slice of bytes", into.span.bytes(), bytes.len())?;
        enqueue::write(comm.stream(), into.span, bytes)
    }

    fn read(comm: &Comm<Self>, from: CudaView<'_>, bytes: &mut [u8]) -> Result<()> {
        check_len("the buffer for bytes", from.span.bytes(), bytes.len())?;
        enqueue::read(comm.stream(), from.span, bytes)
    }

    fn zero(comm: &Comm<Self>, into: CudaViewMut<'_>) -> Result<()> {
        enqueue::zero(comm.stream(), into.span)
    }

    fn copy(comm: &Comm<Self>, into: CudaViewMut<'_>, from: CudaView<'_>) -> Result<()> {
        check_len("the copied buffer", into.len(), from.len())?;
        if into.dtype() == from.dtype() {
            return enqueue::copy(comm.stream(), into.span, from.span);
        }
        Self::convert(comm, into, from, 1.0)
    }

    fn convert(comm: &Comm<Self>, into: CudaViewMut<'_>, from: CudaView<'_>, factor: f32) -> Result<()> {
        check_len("the converted buffer", into.len(), from.len())?;
        let name = names::convert(float(into.dtype())?, float(from.dtype())?);
        let factor = u64::from(factor.to_bits());
        let arguments = [into.pointer(), from.pointer(), factor, into.len() as u64];
        enqueue::launch(
            comm.stream(),
            Launch { name, threads: into.len(), arguments },
            &[from.span],
            &[into.span],
        )
    }

    fn add(comm: &Comm<Self>, into: CudaViewMut<'_>, from: CudaView<'_>) -> Result<()> {
        check_len("the added buffer", into.len(), from.len())?;
        let dtype = into.dtype();
        if dtype != from.dtype() {
            return Err(Invalid::DTypes { send: from.dtype(), recv: dtype }.into());
        }
        ReduceOp::Sum.check(dtype)?;
        let undefined = Invalid::BackendOp { backend: CUDA, op: ReduceOp::Sum, dtype };
        let name = names::add(dtype).ok_or(undefined)?;
        let launch = Launch {
            name,
            threads: into.len(),
            arguments: [into.pointer(), from.pointer(), into.len() as u64],
        };
        enqueue::launch(comm.stream(), launch, &[from.span, into.span], &[into.span])
    }

    fn scale(comm: &Comm<Self>, into: CudaViewMut<'_>, factor: f64) -> Result<()> {
        let (op, dtype) = (ReduceOp::PreMulSum(factor), into.dtype());
        op.check(dtype)?;
        let float = Float::of(dtype).ok_or(Invalid::BackendOp { backend: CUDA, op, dtype })?;
        let factor = match float {
            Float::F64 => factor.to_bits(),
            // The kernel reads the lower half of the argument.
            _ => u64::from((factor as f32).to_bits()),
        };
        let arguments = [into.pointer(), factor, into.len() as u64];
        let launch = Launch { name: names::scale(float), threads: into.len(), arguments };
        enqueue::launch(comm.stream(), launch, &[into.span], &[into.span])
    }

    fn sum_of_squares(comm: &Comm<Self>, from: CudaView<'_>) -> Result<f64> {
        let float = float(from.dtype())?;
        if from.is_empty() {
            return Ok(0.0);
        }
        let mut sums = add_groups(comm.stream(), names::squares(float), from.span)?;
        while sums.len() > LANES {
            sums = add_groups(comm.stream(), names::SUMS, sums.span())?;
        }
        let mut lanes = [0.0_f64; LANES];
        enqueue::read(comm.stream(), sums.span(), bytemuck::cast_slice_mut(&mut lanes))?;
        let sum: f64 = lanes.into_iter().sum();
        // As on the host. The language does not specify the bits of `NAN`.
        Ok(if sum.is_nan() { f64::from_bits(0x7ff8_0000_0000_0000) } else { sum })
    }

    fn is_finite(comm: &Comm<Self>, from: CudaView<'_>) -> Result<bool> {
        let name = names::find(float(from.dtype())?);
        if from.is_empty() {
            return Ok(true);
        }
        let flag = ErasedDeviceBuffer::zeros(comm.stream(), DType::U32, 1)?;
        let arguments = [flag.span().pointer, from.pointer(), from.len() as u64];
        let launch = Launch { name, threads: from.len(), arguments };
        enqueue::launch(comm.stream(), launch, &[from.span, flag.span()], &[flag.span()])?;
        let mut found = [0_u32];
        enqueue::read(comm.stream(), flag.span(), bytemuck::cast_slice_mut(&mut found))?;
        Ok(found == [0])
    }
}

/// Sums each lane of each group of rows.
fn add_groups(stream: &Stream, name: &'static CStr, from: Span<'_>) -> Result<ErasedDeviceBuffer> {
    let outputs = from.len.div_ceil(LANES * ROWS) * LANES;
    let sums = ErasedDeviceBuffer::unspecified(stream, DType::F64, outputs)?;
    let arguments = [sums.span().pointer, from.pointer, from.len as u64, outputs as u64];
    let launch = Launch { name, threads: outputs, arguments };
    enqueue::launch(stream, launch, &[from], &[sums.span()])?;
    Ok(sums)
}

fn float(dtype: DType) -> Result<Float> {
    Float::of(dtype).ok_or_else(|| Invalid::NotFloat { dtype }.into())
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Invalid::Length { what, expected, got }.into()) }
}
