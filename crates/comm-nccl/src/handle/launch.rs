//! Enqueues operations on a stream.

use std::ffi::{c_int, c_void};

use comm_core::{ReduceOp, Result};
use cudarc::driver::result;
use nccl_sys::{MissingSymbol, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::{Handle, Progress};
use crate::plan::Plan;
use crate::stream::Stream;
use crate::{dtype, error};

/// A call of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Send,
    Recv,
    /// A copy on the device, without NCCL. It precedes the NCCL calls.
    Copy,
}

/// A call of NCCL with checked addresses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    /// The number of elements of `dtype`, as NCCL counts them for this call.
    pub(crate) count: usize,
    pub(crate) dtype: ncclDataType_t,
    pub(crate) reduction: Option<ReduceOp>,
    /// The root, or the other rank.
    pub(crate) peer: usize,
}

/// Operators that were created for a call, to be destroyed when it completes.
#[derive(Debug, Default)]
pub(crate) struct Operators(Vec<ncclRedOp_t>);

impl Handle {
    /// Enqueues the calls of a plan, in a group if there are several. The returned operators must
    /// be passed to [`Handle::forget`] after the calls have completed. Even after an error, the
    /// plan's memory must be recorded as used by the stream.
    pub(crate) fn launch_ops(&self, plan: &Plan<'_>, stream: &Stream) -> Result<(Operators, Progress)> {
        // SAFETY: the plan stays within its views, and has checked that they are on this device.
        // Buffers are freed after all recorded work, and callers that create a view of raw memory
        // guarantee the same.
        unsafe { self.launch(plan.ops(), stream) }
    }

    /// # Safety
    /// Every address must point to at least as many elements as its call accesses, on the device of
    /// this communicator. The memory must stay allocated until the work of this stream is done or
    /// the communicator has been aborted, and other uses of it must wait for that stream.
    unsafe fn launch(&self, ops: &[Op], stream: &Stream) -> Result<(Operators, Progress)> {
        let mut operators = Operators::default();
        let mut calls = Vec::with_capacity(ops.len());
        for op in ops {
            match op.kind {
                // SAFETY: the caller promises what a copy needs too.
                OpKind::Copy => unsafe { copy(op, stream) }?,
                _ => calls.push((op, self.operator(op, &mut operators)?)),
            }
        }
        match calls[..] {
            [] => return Ok((operators, Progress::Ready)),
            [(op, operator)] => {
                // SAFETY: as the caller promises.
                let code = unsafe { self.call(op, operator, stream) };
                return Ok((operators, self.progress_of(name(op.kind), code)?));
            }
            _ => {}
        }
        self.start_group()?;
        let mut called = Ok(Progress::Ready);
        for (op, operator) in calls {
            // SAFETY: as the caller promises.
            let code = unsafe { self.call(op, operator, stream) };
            called = called.and_then(|_| self.progress_of(name(op.kind), code));
        }
        // A group that was started must be ended, or later calls by this thread would join it.
        let ended = self.end_group();
        called?;
        Ok((operators, ended?))
    }

    /// Destroys operators whose calls have completed.
    pub(crate) fn forget(&self, operators: Operators) -> Result<()> {
        operators.0.into_iter().try_for_each(|operator| {
            // SAFETY: the operator was made by this communicator, and no call uses it any more.
            let code = unsafe { self.nccl.ncclRedOpDestroy(operator, self.comm) };
            self.progress_of("ncclRedOpDestroy", code).map(|_| ())
        })
    }

    /// Returns the operator of a call: a built-in one, or one created for this call.
    fn operator(&self, op: &Op, made: &mut Operators) -> Result<ncclRedOp_t> {
        let Some(ReduceOp::PreMulSum(value)) = op.reduction else {
            let known = op.reduction.and_then(dtype::operator);
            return Ok(known.unwrap_or(ncclRedOp_t::ncclSum));
        };
        let mut factor = dtype::factor(value, op.dtype);
        let mut operator = ncclRedOp_t::ncclSum;
        // SAFETY: the factor is one element on the host, which is read in the call, and the
        // operator is written to a value that lives here.
        let code = unsafe {
            self.nccl.ncclRedOpCreatePreMulSum(
                &raw mut operator,
                factor.as_mut_ptr().cast(),
                op.dtype,
                ncclScalarResidence_t::ncclScalarHostImmediate,
                self.comm,
            )
        };
        self.progress_of("ncclRedOpCreatePreMulSum", code)?;
        made.0.push(operator);
        Ok(operator)
    }

    fn start_group(&self) -> Result<()> {
        // SAFETY: the call has no arguments.
        let code = unsafe { self.nccl.ncclGroupStart() };
        self.progress_of("ncclGroupStart", code).map(|_| ())
    }

    fn end_group(&self) -> Result<Progress> {
        // SAFETY: the call has no arguments.
        let code = unsafe { self.nccl.ncclGroupEnd() };
        self.progress_of("ncclGroupEnd", code)
    }

    /// # Safety
    /// As [`Handle::launch`].
    unsafe fn call(
        &self,
        op: &Op,
        operator: ncclRedOp_t,
        stream: &Stream,
    ) -> Result<ncclResult_t, MissingSymbol> {
        let (nccl, comm) = (&self.nccl, self.comm);
        let Op { count, dtype, .. } = *op;
        let send: *const c_void = std::ptr::without_provenance(op.send as usize);
        let recv: *mut c_void = std::ptr::without_provenance_mut(op.recv as usize);
        // The number of ranks was checked when the communicator was created.
        let peer = c_int::try_from(op.peer).unwrap_or(c_int::MAX);
        let stream = stream.as_cudarc().cu_stream().cast();
        match op.kind {
            // SAFETY: as the caller promises.
            OpKind::AllReduce => unsafe {
                nccl.ncclAllReduce(send, recv, count, dtype, operator, comm, stream)
            },
            // SAFETY: as the caller promises.
            OpKind::Reduce => unsafe {
                nccl.ncclReduce(send, recv, count, dtype, operator, peer, comm, stream)
            },
            // SAFETY: as the caller promises.
            OpKind::Broadcast => unsafe { nccl.ncclBroadcast(send, recv, count, dtype, peer, comm, stream) },
            // SAFETY: as the caller promises.
            OpKind::AllGather => unsafe { nccl.ncclAllGather(send, recv, count, dtype, comm, stream) },
            // SAFETY: as the caller promises.
            OpKind::ReduceScatter => unsafe {
                nccl.ncclReduceScatter(send, recv, count, dtype, operator, comm, stream)
            },
            // SAFETY: as the caller promises.
            OpKind::Send => unsafe { nccl.ncclSend(send, count, dtype, peer, comm, stream) },
            // SAFETY: as the caller promises.
            OpKind::Recv => unsafe { nccl.ncclRecv(recv, count, dtype, peer, comm, stream) },
            OpKind::Copy => Ok(ncclResult_t::ncclSuccess),
        }
    }
}

/// # Safety
/// As [`Handle::launch`]; the count is in bytes.
unsafe fn copy(op: &Op, stream: &Stream) -> Result<()> {
    let stream = stream.as_cudarc().cu_stream();
    // SAFETY: as the caller promises.
    let copied = unsafe { result::memcpy_dtod_async(op.recv, op.send, op.count, stream) };
    copied.map_err(error::cuda("enqueue a copy on the device"))
}

const fn name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::AllReduce => "ncclAllReduce",
        OpKind::Reduce => "ncclReduce",
        OpKind::Broadcast => "ncclBroadcast",
        OpKind::AllGather => "ncclAllGather",
        OpKind::ReduceScatter => "ncclReduceScatter",
        OpKind::Send => "ncclSend",
        OpKind::Recv => "ncclRecv",
        OpKind::Copy => "cuMemcpyDtoDAsync",
    }
}
