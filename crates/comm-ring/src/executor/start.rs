//! The fast path: steps that finish immediately, without entering the window, as most steps with
//! small messages do.

use std::io::IoSlice;

use comm_core::{Action, Result, Transport};

use super::recv::{Arrived, recv_eager};
use super::window::EntryState;
use super::{EAGER_BYTES, Executor, Job, LoweredStep, Regions, Stop, local, no_rank};
use crate::message::Header;

impl Executor {
    /// Runs a step when all steps before it have finished. The step enters the window only if it
    /// cannot finish immediately. Returns whether anything moved.
    #[inline]
    pub(super) fn start(
        &mut self,
        step: &LoweredStep,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<bool, Stop> {
        match step.action {
            Action::Send { to } => self.start_send(step, transport, job, regions, to),
            Action::Recv { from } | Action::RecvReduce { from, .. } => {
                self.start_recv(step, transport, job, regions, from)
            }
            Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => {
                // In a barrier, all blocks are empty.
                if !step.bytes.is_empty() {
                    local(step, job, regions)?;
                }
                Ok(true)
            }
        }
    }

    /// Receives a message, and runs the step that reduces it and is its only reader. A short
    /// message that has arrived completely is reduced where the transport has it.
    pub(super) fn start_both(
        &mut self,
        recv: &LoweredStep,
        reduce: &LoweredStep,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<bool, Stop> {
        match self.reduce_message(recv, reduce, transport, job, regions)? {
            Some(Arrived::All) => Ok(true),
            Some(Arrived::Nothing) => {
                self.window.push(recv);
                self.window.push(reduce);
                Ok(false)
            }
            Some(Arrived::Part) | None => {
                let moved = self.start(recv, transport, job, regions)?;
                if self.window.is_empty() {
                    return Ok(self.start(reduce, transport, job, regions)? || moved);
                }
                self.window.push(reduce);
                Ok(moved)
            }
        }
    }

    /// Returns the part of the message that has arrived, and runs both steps if that is all of it.
    /// Returns `None` if the message is not short.
    fn reduce_message(
        &mut self,
        recv: &LoweredStep,
        reduce: &LoweredStep,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
    ) -> Result<Option<Arrived>, Stop> {
        let Action::Recv { from } = recv.action else { return Ok(None) };
        let last_seen = &mut self.streams.get_mut(from).ok_or_else(|| no_rank(from))?.last_seen;
        let result = regions.write(reduce.place, reduce.bytes.range())?;
        if Header::BYTES + result.len() > EAGER_BYTES {
            return Ok(None);
        }
        let reduction = job.reduction_in(reduce)?;
        for _ in 0..job.polls {
            let hint = &mut self.sender_has_window;
            let arrived = recv_eager(transport, from, job, result, None, reduction, hint)?;
            if arrived == Arrived::All {
                *last_seen = job.sequence;
            }
            if arrived != Arrived::Nothing {
                return Ok(Some(arrived));
            }
        }
        Ok(Some(Arrived::Nothing))
    }

    fn start_send(
        &mut self,
        step: &LoweredStep,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &Regions<'_>,
        to: usize,
    ) -> Result<bool, Stop> {
        if job.puts(step) {
            self.window.push(step);
            return Ok(false);
        }
        let accepted = &mut self.streams.get_mut(to).ok_or_else(|| no_rank(to))?.accepted;
        let payload = regions.read(step.place, step.bytes.range())?;
        let header = job.header(payload.len()).encode();
        let sent = transport.try_send(to, &[IoSlice::new(&header), IoSlice::new(payload)])?;
        *accepted += sent as u64;
        let complete = sent == Header::BYTES + payload.len();
        if complete && transport.released(to) >= *accepted {
            return Ok(true);
        }
        let entry = self.window.push(step);
        (entry.moved, entry.header) = (sent, header);
        if complete {
            entry.state = EntryState::Accepted { until: *accepted };
        }
        Ok(sent > 0)
    }

    fn start_recv(
        &mut self,
        step: &LoweredStep,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &mut Regions<'_>,
        from: usize,
    ) -> Result<bool, Stop> {
        let last_seen = &mut self.streams.get_mut(from).ok_or_else(|| no_rank(from))?.last_seen;
        let (payload, addend) = regions.recv(step)?;
        if Header::BYTES + payload.len() <= EAGER_BYTES {
            let reduction = job.reduction_in(step)?;
            // A step that finishes here need not pass through the window, and no wait begins.
            let polls = if step.is_awaited { job.polls } else { 1 };
            for _ in 0..polls {
                let hint = &mut self.sender_has_window;
                match recv_eager(transport, from, job, payload, addend, reduction, hint)? {
                    Arrived::Nothing => {}
                    Arrived::Part => break,
                    Arrived::All => {
                        *last_seen = job.sequence;
                        return Ok(true);
                    }
                }
            }
        }
        self.window.push(step);
        Ok(false)
    }
}
