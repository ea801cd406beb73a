//! Gradients on GPUs: averaged where they lie, by NCCL, in the order of candle's stream.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::Arc;

use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use candle_core::{CpuStorage, CudaStorage, DeviceLocation, InplaceOp1, Layout, Tensor};
use comm_core::{Comm, DType, ReduceOp};
use comm_ddp::ParameterSet;
use comm_nccl::{Cuda, CudaViewMut, Device, DeviceBuffer, Stream};

use crate::call::Call;
use crate::memory::range;
use crate::place::{Average, Sealed};
use crate::variables::Variable;
use crate::{Error, Result};

impl Sealed for Cuda {
    const NAME: &'static str = "GPUs";

    fn holds(location: DeviceLocation) -> bool {
        matches!(location, DeviceLocation::Cuda { .. })
    }

    fn compare(comm: &Comm<Self>, parameters: &ParameterSet, any: Option<&Variable>) -> Result<()> {
        let Some(any) = any else {
            // If there are variables, they lie elsewhere, and are about to be refused.
            return if parameters.is_empty() { Err(Error::Empty) } else { Ok(()) };
        };
        let stream = beside(any)?;
        Ok(comm_ddp::check_parameters_by(parameters, comm.size(), |own, all| {
            let mut gathered = DeviceBuffer::<u8>::zeros(&stream, all.len())?;
            comm.all_gather(&DeviceBuffer::from_host(&stream, own)?, &mut gathered)?;
            all.copy_from_slice(&gathered.to_vec()?);
            Ok(())
        })?)
    }

    fn broadcast(comm: &Comm<Self>, variable: &Variable) -> Result<()> {
        Ok(write(&variable.var, |value| comm.broadcast(0, value))??)
    }

    fn averager(comm: &Comm<Self>, variables: &[Variable]) -> Result<Box<dyn Average>> {
        let stream = beside(variables.first().ok_or(Error::Empty)?)?;
        Ok(Box::new(InPlace { comm: comm.clone(), stream }))
    }
}

/// Averages each gradient by a call of its own. The host waits for nothing but to learn which gradients there are.
#[derive(Debug)]
struct InPlace {
    comm: Comm<Cuda>,
    /// For what is not a tensor.
    stream: Stream,
}

impl Average for InPlace {
    fn average(&mut self, call: &mut Call<'_>) -> Result<()> {
        let found = self.found_anywhere(call)?;
        for (at, _) in found.iter().enumerate().filter(|(_, found)| **found) {
            let (gradient, moved) = match (call.own(at), call.gradient(at)) {
                (Some(own), _) => (own.clone(), false),
                (None, Some(other)) => (other.force_contiguous()?.detach(), true),
                (None, None) => (call.variables()[at].var.zeros_like()?, true),
            };
            write(&gradient, |elements| self.comm.all_reduce(elements, ReduceOp::Avg))??;
            if moved {
                call.put(at, gradient);
            }
            call.averaged(at);
        }
        Ok(())
    }
}

impl InPlace {
    /// Of which variables any rank has a gradient.
    fn found_anywhere(&self, call: &Call<'_>) -> Result<Vec<bool>> {
        let own: Vec<u8> =
            (0..call.variables().len()).map(|at| u8::from(call.gradient(at).is_some())).collect();
        let mut marks = DeviceBuffer::from_host(&self.stream, &own)?;
        self.comm.all_reduce(&mut marks, ReduceOp::Max)?;
        Ok(marks.to_vec()?.into_iter().map(|mark| mark != 0).collect())
    }
}

/// A stream on the device of a variable. Not candle's, where the host would wait for backward; and not of candle's context,
/// which would begin to track the uses of every tensor.
fn beside(variable: &Variable) -> Result<Stream> {
    let theirs = Stream::from_cudarc(variable.var.device().as_cuda_device()?.cuda_stream());
    Ok(Device::open(theirs.device().ordinal())?.new_stream()?)
}

/// Calls `visit` with the elements of a contiguous tensor, to be written where they lie.
fn write<R>(tensor: &Tensor, visit: impl FnOnce(CudaViewMut<'_>) -> R) -> candle_core::Result<R> {
    let write = Write { visit: Cell::new(Some(visit)), result: Cell::new(None) };
    tensor.inplace_op1(&write)?;
    write.result.take().ok_or(candle_core::Error::UnwrapNone)
}

/// candle lets operations write in place, which are called by reference, and once.
struct Write<F, R> {
    visit: Cell<Option<F>>,
    result: Cell<Option<R>>,
}

impl<F: FnOnce(CudaViewMut<'_>) -> R, R> InplaceOp1 for Write<F, R> {
    fn name(&self) -> &'static str {
        "communicate"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a tensor is not on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> candle_core::Result<()> {
        let (range, stream) = (range(layout)?, storage.device.cuda_stream());
        match &mut storage.slice {
            CudaStorageSlice::U8(elements) => self.call(elements, range, DType::U8, &stream),
            CudaStorageSlice::U32(elements) => self.call(elements, range, DType::U32, &stream),
            CudaStorageSlice::I16(elements) => self.call(elements, range, DType::I16, &stream),
            CudaStorageSlice::I32(elements) => self.call(elements, range, DType::I32, &stream),
            CudaStorageSlice::I64(elements) => self.call(elements, range, DType::I64, &stream),
            CudaStorageSlice::BF16(elements) => self.call(elements, range, DType::BF16, &stream),
            CudaStorageSlice::F16(elements) => self.call(elements, range, DType::F16, &stream),
            CudaStorageSlice::F32(elements) => self.call(elements, range, DType::F32, &stream),
            CudaStorageSlice::F64(elements) => self.call(elements, range, DType::F64, &stream),
            _ => candle_core::bail!("elements of a type that cannot be communicated"),
        }
    }
}

impl<F: FnOnce(CudaViewMut<'_>) -> R, R> Write<F, R> {
    fn call<T>(
        &self,
        elements: &mut CudaSlice<T>,
        (start, end): (usize, usize),
        dtype: DType,
        stream: &Arc<CudaStream>,
    ) -> candle_core::Result<()> {
        let Some(mut elements) = elements.try_slice_mut(start..end) else {
            candle_core::bail!("a tensor ends behind its memory")
        };
        // Until it is dropped, cudarc takes what is enqueued on the stream for work on these elements.
        let (pointer, _work) = elements.device_ptr_mut(stream);
        let ours = Stream::from_cudarc(Arc::clone(stream));
        // SAFETY: the elements are borrowed mutably, of the type that candle says they are, and so aligned. The call joins the
        // stream, on which candle enqueues all its work on them and frees them.
        let view = unsafe { CudaViewMut::from_raw(pointer, end - start, dtype, &ours) };
        self.result.set(self.visit.take().map(|visit| visit(view)));
        Ok(())
    }
}
