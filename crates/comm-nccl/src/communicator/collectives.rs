//! The collectives that every backend has.

use comm_core::{
    CallOptions, Collective, Communicator, Error, Exchange, Group, Invalid, ReduceOp, ReduceOrder, Result,
    Shares,
};

use super::NcclCommunicator;
use crate::error;
use crate::memory::Cuda;
use crate::sync::lock;
use crate::view::CudaViewMut;

/// The only algorithm there is to name: which one runs is up to NCCL.
const ALGORITHM: &str = "nccl";

/// Refuses options that NCCL cannot keep.
pub(super) fn check_options(collective: Collective, options: &CallOptions) -> Result<()> {
    match &options.algorithm {
        Some(name) if name != ALGORITHM => {
            let (name, collective) = (name.clone().into_owned(), collective.name());
            Err(Invalid::Algorithm { name, collective, known: ALGORITHM.into() }.into())
        }
        _ => Ok(()),
    }
}

/// As [`check_options`], for reductions.
pub(super) fn check_order(collective: Collective, options: &CallOptions) -> Result<()> {
    match options.order {
        ReduceOrder::Any => check_options(collective, options),
        order => {
            Err(Error::setting("order", format!("{order:?}"), format!("{} promises no order", error::NCCL)))
        }
    }
}

impl Communicator<Cuda> for NcclCommunicator {
    fn group(&self) -> Group {
        self.engine.group
    }

    fn all_reduce(&self, buffers: Exchange<'_, Cuda>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        check_order(Collective::AllReduce, options)?;
        self.carry_out(options, |plan| plan.all_reduce(buffers, op)).map(drop)
    }

    fn reduce(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        check_order(Collective::Reduce, options)?;
        self.carry_out(options, |plan| plan.reduce(root, buffers, op)).map(drop)
    }

    fn broadcast(&self, root: usize, buffer: CudaViewMut<'_>, options: &CallOptions) -> Result<()> {
        check_options(Collective::Broadcast, options)?;
        self.carry_out(options, |plan| plan.broadcast(root, buffer)).map(drop)
    }

    fn all_gather(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        check_options(Collective::AllGather, options)?;
        self.carry_out(options, |plan| plan.all_gather(buffers, shares)).map(drop)
    }

    fn reduce_scatter(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        check_order(Collective::ReduceScatter, options)?;
        self.carry_out(options, |plan| plan.reduce_scatter(buffers, shares, op)).map(drop)
    }

    fn gather(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        check_options(Collective::Gather, options)?;
        self.carry_out(options, |plan| plan.gather(root, buffers, shares)).map(drop)
    }

    fn scatter(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        check_options(Collective::Scatter, options)?;
        self.carry_out(options, |plan| plan.scatter(root, buffers, shares)).map(drop)
    }

    fn all_to_all(
        &self,
        buffers: Exchange<'_, Cuda>,
        send: Shares<'_>,
        recv: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        check_options(Collective::AllToAll, options)?;
        self.carry_out(options, |plan| plan.all_to_all(buffers, send, recv)).map(drop)
    }

    /// Waits for the device: a sum of one element, as one of none would not wait for anybody.
    fn barrier(&self, options: &CallOptions) -> Result<()> {
        check_options(Collective::Barrier, options)?;
        let mut cell = lock(&self.cell);
        let cell = cell.view_mut();
        let sequence = self.carry_out(options, |plan| plan.barrier(cell))?;
        self.engine.wait(sequence, None)
    }

    fn abort(&self, reason: &str) {
        self.engine.fail(Error::Aborted { by: self.engine.group.rank(), reason: reason.into() }, None);
    }
}
