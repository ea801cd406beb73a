//! Sending a message, or putting its payload into the window of its receiver.

use std::io::IoSlice;

use comm_core::{Result, Transport};

use super::window::EntryState;
use super::{Executor, Job, LoweredStep, Regions, Stop};
use crate::message::Header;

impl Executor {
    /// Sends as much of a message as the transport accepts, header and payload in one call.
    #[inline(never)]
    pub(super) fn send(
        &mut self,
        at: usize,
        transport: &mut dyn Transport,
        job: &Job<'_>,
        regions: &Regions<'_>,
        to: usize,
    ) -> Result<bool, Stop> {
        let entry = self.window.entry(at);
        let payload = regions.read(entry.lowered.place, entry.lowered.bytes.range())?;
        if entry.moved == 0 {
            entry.header = job.header(payload.len()).encode();
        }
        let whole = Header::BYTES + payload.len();
        let before = entry.moved;
        let puts = job.puts(&entry.lowered);
        while entry.moved < whole {
            let header = &entry.header[entry.moved.min(Header::BYTES)..];
            let rest = &payload[entry.moved.saturating_sub(Header::BYTES)..];
            let slices = [IoSlice::new(header), IoSlice::new(rest)];
            let sent = match (header.is_empty(), puts) {
                (false, true) => transport.try_send(to, &slices[..1])?,
                (false, false) => transport.try_send(to, &slices)?,
                (true, true) => put(transport, job, &entry.lowered, to, rest)?,
                (true, false) => transport.try_send(to, &slices[1..])?,
            };
            if sent == 0 {
                break;
            }
            entry.moved += sent;
        }
        let (sent, complete) = (entry.moved - before, entry.moved == whole);
        let streams = self.peer(to)?;
        streams.accepted += sent as u64;
        if complete {
            streams.send_claimed = 0;
        }
        let until = streams.accepted;
        if !complete {
            self.interest.add_send(to);
            return Ok(sent > 0);
        }
        self.window.entry(at).state = EntryState::Accepted { until };
        self.try_complete(at, transport, to, until);
        Ok(true)
    }

    /// Completes a send if the transport no longer needs its bytes. Returns whether it did.
    pub(super) fn try_complete(
        &mut self,
        at: usize,
        transport: &dyn Transport,
        to: usize,
        until: u64,
    ) -> bool {
        let released = transport.released(to) >= until;
        if released {
            self.window.finish(at);
        } else {
            self.interest.add_send(to);
        }
        released
    }
}

/// Puts the rest of a result into the window of its receiver, or sends it if there is none.
fn put(
    transport: &mut dyn Transport,
    job: &Job<'_>,
    step: &LoweredStep,
    to: usize,
    rest: &[u8],
) -> Result<usize> {
    let offset = step.bytes.range().end - rest.len();
    match transport.try_put(to, job.sequence, offset, rest)? {
        Some(sent) => Ok(sent),
        None => transport.try_send(to, &[IoSlice::new(rest)]),
    }
}
