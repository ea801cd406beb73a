//! The quick way of a step whose turn has come: most steps of small messages take no other.

use std::io::IoSlice;

use comm_core::{Action, Result, Transport};

use super::arrive::at_once;
use super::window::Stage;
use super::{AT_ONCE_BYTES, Buffers, Executor, Job, Located, Stop, local, no_rank};
use crate::message::Header;

impl Executor {
    /// Carries out a step before which all have finished. It goes to the window only if it cannot finish at once. Returns
    /// whether anything moved.
    pub(super) fn begin(
        &mut self,
        step: &Located,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &mut Buffers<'_>,
    ) -> Result<bool, Stop> {
        match step.action {
            Action::Send { to } => Ok(self.begin_send(step, transport, job, buffers, to)?),
            Action::Recv { from } | Action::RecvReduce { from } => {
                self.begin_recv(step, transport, job, buffers, from)
            }
            Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => {
                // As all are in a barrier.
                if !step.bytes.is_empty() {
                    local(step, job, buffers)?;
                }
                Ok(true)
            }
        }
    }

    fn begin_send(
        &mut self,
        step: &Located,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &Buffers<'_>,
        to: usize,
    ) -> Result<bool> {
        let accepted = self.accepted.get_mut(to).ok_or_else(|| no_rank(to))?;
        let payload = buffers.read(step.place, step.bytes.range())?;
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
            entry.stage = Stage::Accepted { until: *accepted };
        }
        Ok(sent > 0)
    }

    fn begin_recv(
        &mut self,
        step: &Located,
        transport: &mut dyn Transport,
        job: &Job,
        buffers: &mut Buffers<'_>,
        from: usize,
    ) -> Result<bool, Stop> {
        let heard = self.heard.get_mut(from).ok_or_else(|| no_rank(from))?;
        let (payload, own) = buffers.received(step)?;
        let whole = Header::BYTES + payload.len();
        let mut moved = 0;
        if whole <= AT_ONCE_BYTES
            && let Some(used) = at_once(transport, from, job, payload, own, job.reduction_in(step.action)?)?
        {
            moved = used;
        }
        if moved > 0 {
            *heard = job.sequence;
        }
        if moved < whole {
            self.window.push(step).moved = moved;
        }
        Ok(moved > 0)
    }
}
