//! Gradients on GPUs: averaged in place by NCCL, in the order of candle's stream.

#![allow(unsafe_code)]

use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::{CpuStorage, CudaStorage, DeviceLocation, InplaceOp1, Layout, Storage, Tensor};
use comm_core::{Comm, DType, ReduceOp};
use comm_nccl::{Cuda, CudaViewMut, DeviceBuffer, DeviceComm, Stream};

use crate::Result;
use crate::call::StepGradients;
use crate::memory::range;
use crate::place::{Average, Sealed};
use crate::variables::Variable;

impl Sealed for Cuda {
    type Averager = InPlace;

    const NAME: &'static str = "GPUs";

    fn holds(location: DeviceLocation) -> bool {
        matches!(location, DeviceLocation::Cuda { .. })
    }

    fn duplicate(comm: &Comm<Self>) -> comm_core::Result<Comm<Self>> {
        // Nothing runs in the background.
        Ok(comm.clone())
    }

    // Buffers that are not tensors are on the communicator's stream. On candle's stream, the host
    // would wait for backward. And another stream in candle's context would make that context track
    // the uses of every tensor.

    fn all_gather(comm: &Comm<Self>, own: &[u8], all: &mut [u8]) -> comm_core::Result<()> {
        let mut gathered = DeviceBuffer::<u8>::zeros(comm.stream(), all.len())?;
        comm.all_gather(&DeviceBuffer::from_host(comm.stream(), own)?, &mut gathered)?;
        all.copy_from_slice(&gathered.to_vec()?);
        Ok(())
    }

    fn largest(comm: &Comm<Self>, bytes: &mut [u8]) -> comm_core::Result<()> {
        let mut largest = DeviceBuffer::from_host(comm.stream(), bytes)?;
        comm.all_reduce(&mut largest, ReduceOp::Max)?;
        bytes.copy_from_slice(&largest.to_vec()?);
        Ok(())
    }

    fn broadcast(comm: &Comm<Self>, variables: &[Variable]) -> Result<()> {
        let values: Vec<&Tensor> = variables.iter().map(|variable| &*variable.var).collect();
        write(&values, |values| comm.broadcast_coalesced(0, values))
    }

    fn averager(comm: &Comm<Self>, _: &[Variable]) -> Result<InPlace> {
        Ok(InPlace { comm: comm.clone() })
    }
}

/// Averages all gradients in groups of calls. The host waits only until all ranks agree on the list
/// of gradients.
#[derive(Debug)]
pub struct InPlace {
    comm: Comm<Cuda>,
}

impl Average for InPlace {
    fn average(&mut self, call: &mut StepGradients<'_>) -> Result<()> {
        let mut averages = Vec::new();
        for at in (0..call.variables().len()).filter(|at| call.is_anywhere(*at)) {
            let (gradient, moved) = match (call.own(at), call.gradient(at)) {
                (Some(own), _) => (own.clone(), false),
                (None, Some(other)) => (other.force_contiguous()?.detach(), true),
                (None, None) => (call.variables()[at].var.zeros_like()?, true),
            };
            averages.push((at, gradient, moved));
        }
        let gradients: Vec<&Tensor> = averages.iter().map(|(_, gradient, _)| gradient).collect();
        write(&gradients, |gradients| self.comm.all_reduce_coalesced(gradients, ReduceOp::Avg))?;
        for (at, average, _) in averages.into_iter().filter(|(_, _, moved)| *moved) {
            call.put(at, average);
        }
        Ok(())
    }
}

/// Calls `call` with the elements of contiguous tensors for writing in place, in the order of
/// candle's stream.
fn write(
    tensors: &[&Tensor],
    call: impl FnOnce(Vec<CudaViewMut<'_>>) -> comm_core::Result<()>,
) -> Result<()> {
    // cudarc makes streams of candle's context wait for the last recorded write of a tensor. The
    // first call covers work before the call, and the second one the call itself, which is ordered
    // in candle's stream by then.
    record_write(tensors)?;
    let outcome = {
        // Holding the locks keeps the tensors' memory in place during the call.
        let storages: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
        let places: Vec<DeviceSlice> = storages
            .iter()
            .map(|(storage, layout)| DeviceSlice::of(storage, layout))
            .collect::<Result<_, _>>()?;
        call(places.iter().map(DeviceSlice::view).collect())
    };
    record_write(tensors)?;
    Ok(outcome?)
}

/// Tells cudarc that tensors are written on candle's stream at this point.
fn record_write(tensors: &[&Tensor]) -> Result<()> {
    Ok(tensors.iter().try_for_each(|tensor| tensor.inplace_op1(&RecordWrite))?)
}

/// Evaluates an expression with the elements of a tensor of any type.
macro_rules! with_elements {
    ($slice:expr, |$elements:ident, $dtype:ident| $body:expr) => {
        with_elements!($slice, |$elements, $dtype| $body; U8 U32 I16 I32 I64 BF16 F16 F32 F64)
    };
    ($slice:expr, |$elements:ident, $dtype:ident| $body:expr; $($kind:ident)+) => {
        match $slice {
            $(CudaStorageSlice::$kind($elements) => {
                let $dtype = DType::$kind;
                $body
            })+
            _ => candle_core::bail!("elements of a type that cannot be communicated"),
        }
    };
}

/// An in-place operation that does nothing, except that cudarc records a write.
struct RecordWrite;

impl InplaceOp1 for RecordWrite {
    fn name(&self) -> &'static str {
        "communicate"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a tensor is not on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let stream = storage.device.cuda_stream();
        with_elements!(&mut storage.slice, |elements, _dtype| drop(elements.device_ptr_mut(&stream)));
        Ok(())
    }
}

/// The memory of a tensor's elements.
struct DeviceSlice {
    pointer: u64,
    len: usize,
    dtype: DType,
    /// candle's stream.
    stream: Stream,
}

impl DeviceSlice {
    fn of(storage: &Storage, layout: &Layout) -> candle_core::Result<Self> {
        let Storage::Cuda(storage) = storage else { candle_core::bail!("a tensor is not on a GPU") };
        let ((start, end), stream) = (range(layout)?, storage.device.cuda_stream());
        let (pointer, dtype) = with_elements!(&storage.slice, |elements, dtype| {
            let Some(elements) = elements.try_slice(start..end) else {
                candle_core::bail!("a tensor ends after the end of its memory")
            };
            let (pointer, _read) = elements.device_ptr(&stream);
            (pointer, dtype)
        });
        Ok(Self { pointer, len: end - start, dtype, stream: Stream::from_cudarc(stream) })
    }

    fn view(&self) -> CudaViewMut<'_> {
        // SAFETY: candle guarantees `len` aligned elements of this type. The owner of this value
        // prevents the tensor from getting other memory. candle frees the memory and does all its
        // work on it on this stream, which the call joins.
        unsafe { CudaViewMut::from_raw(self.pointer, self.len, self.dtype, &self.stream) }
    }
}
