//! Prefix reductions.

use comm_core::{CallOptions, Collective, Exchange, ReduceOp, Result, Scan, Transport};

use super::RingCommunicator;
use super::request::Request;

impl<T: Transport + 'static> Scan for RingCommunicator<T> {
    fn scan(&self, buffers: Exchange<'_>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        let count = buffers.check_scan(Collective::Scan, op)?;
        let request = Request::new(Collective::Scan, count).of(&buffers).op(op).accumulate(options);
        self.engine(Collective::Scan, options)?.reduce_everywhere(request, buffers, options)
    }

    fn exscan(&self, buffers: Exchange<'_>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        let count = buffers.check_scan(Collective::ExScan, op)?;
        let request = Request::new(Collective::ExScan, count).of(&buffers).op(op).accumulate(options);
        self.engine(Collective::ExScan, options)?.reduce_aside(request, buffers, options)
    }
}
