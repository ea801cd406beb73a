//! The collectives that every backend has. Here are those whose buffers are cut as they are; those that are cut by ranks are in
//! `blocks.rs` and `rooted.rs`.

use comm_core::{
    CallOptions, Communicator, Error, Exchange, Group, LinkModel, ReduceOp, Result, Shape, Shares,
};
use comm_nccl::{Cuda, CudaViewMut};

use super::pieces::{Piece, clip, count};
use super::{Request, StagedCommunicator};

impl Communicator<Cuda> for StagedCommunicator {
    fn group(&self) -> Group {
        self.group
    }

    fn links(&self) -> Option<LinkModel> {
        self.host.0.links()
    }

    fn all_reduce(&self, buffers: Exchange<'_, Cuda>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        let (length, dtype) = (buffers.check_all_reduce(op)?, buffers.dtype());
        let width = self.width(dtype, 1);
        let cut = |piece| Piece::whole(clip(length, piece, width), true, true);
        let mut turn = self.turn()?;
        let staged = self.ends(buffers, (true, true)).and_then(|ends| {
            let request = Request::new(ends, dtype, (count(length, width), length), options);
            self.stage(&mut turn, request, cut, |_, bytes, options| {
                self.host.0.all_reduce(Exchange::InPlace(bytes), op, options)
            })
        });
        self.ended(staged)
    }

    fn reduce(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        let (length, dtype) = (buffers.check_reduce(self.group, root, op)?, buffers.dtype());
        let (width, is_root) = (self.width(dtype, 1), self.group.rank() == root);
        let cut = |piece| Piece::whole(clip(length, piece, width), true, is_root);
        let mut turn = self.turn()?;
        let staged = self.ends(buffers, (true, is_root)).and_then(|ends| {
            let request = Request::new(ends, dtype, (count(length, width), length), options);
            self.stage(&mut turn, request, cut, |_, bytes, options| {
                let buffers = if is_root {
                    Exchange::InPlace(bytes)
                } else {
                    Exchange::SendOnly(bytes.into_read_only())
                };
                self.host.0.reduce(root, buffers, op, options)
            })
        });
        self.ended(staged)
    }

    fn broadcast(&self, root: usize, buffer: CudaViewMut<'_>, options: &CallOptions) -> Result<()> {
        self.group.check_root(root)?;
        let (length, dtype) = (buffer.len(), buffer.dtype());
        let (width, is_root) = (self.width(dtype, 1), self.group.rank() == root);
        let cut = |piece| Piece::whole(clip(length, piece, width), is_root, !is_root);
        let mut turn = self.turn()?;
        let staged = self.ends(Exchange::InPlace(buffer), (is_root, !is_root)).and_then(|ends| {
            let request = Request::new(ends, dtype, (count(length, width), length), options);
            self.stage(&mut turn, request, cut, |_, bytes, options| {
                self.host.0.broadcast(root, bytes, options)
            })
        });
        self.ended(staged)
    }

    fn all_gather(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.stage_all_gather(buffers, shares, options)
    }

    fn reduce_scatter(
        &self,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        self.stage_reduce_scatter(buffers, shares, op, options)
    }

    fn gather(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.stage_gather(root, buffers, shares, options)
    }

    fn scatter(
        &self,
        root: usize,
        buffers: Exchange<'_, Cuda>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.stage_scatter(root, buffers, shares, options)
    }

    fn all_to_all(
        &self,
        buffers: Exchange<'_, Cuda>,
        send: Shares<'_>,
        recv: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.stage_all_to_all(buffers, (send, recv), options)
    }

    /// First waits until the copies of all calls before are done.
    fn barrier(&self, options: &CallOptions) -> Result<()> {
        let _turn = self.turn()?;
        self.ended(self.streams.synchronize().and_then(|()| self.host.0.barrier(options)))
    }

    fn abort(&self, reason: &str) {
        self.fail(&Error::Aborted { by: self.group.rank(), reason: reason.into() });
    }
}
