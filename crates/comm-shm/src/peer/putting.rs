//! Windows: a peer puts bytes into memory of this rank, and this rank into memory of the peer.

use std::io::IoSlice;
use std::sync::Arc;

use comm_core::{During, Result};

use super::sending::Shortage;
use super::{Connection, Peer};
use crate::descriptors::{Descriptor, WINDOW};
use crate::region::Region;
use crate::regions::FoundRegion;
use crate::registered::RegisteredMemory;
use crate::window::{OwnWindow, Way, Window};

/// The maximum number of bytes that are put at once.
const PUT_BYTES_MAX: usize = 256 << 10;

/// The window that is open to the peer.
#[derive(Debug)]
pub(super) struct OpenWindow {
    region: Arc<Region>,
    window: Window,
}

impl Peer {
    /// Opens a window of this rank to the peer, unless its region cannot be sent now. It must be
    /// closed before its memory is gone.
    pub(crate) fn open_window(&mut self, own: &OwnWindow) {
        let Connection { socket, segment, outgoing, .. } = &self.connection;
        let is_out = |region| self.writer.outstanding().any(|descriptor| descriptor.region == region);
        let region = FoundRegion::Allocated(Arc::clone(&own.region));
        if self.exporter.as_mut().is_some_and(|exporter| exporter.export(&region, socket, is_out)) {
            self.window = Some(OpenWindow { region: Arc::clone(&own.region), window: own.window });
            segment.control(outgoing.opposite()).open_window(own.window);
        }
    }

    /// Forgets the window of a call in which everything that was put was received: the peer puts
    /// nothing more into it.
    pub(crate) fn forget_window(&mut self) {
        self.window = None;
    }

    /// Closes the window. Returns whether the peer may still be writing into it.
    pub(crate) fn close_window(&mut self) -> bool {
        self.window.take().is_some() && self.control_in().close_window() && !self.has_exited()
    }

    /// Whether the peer may still be writing into a window that was closed.
    pub(crate) fn is_putting(&self) -> bool {
        self.control_in().close_window() && !self.has_exited()
    }

    /// Whether the process of the peer has exited, so that it writes nothing more.
    fn has_exited(&self) -> bool {
        self.end.is_some() && !self.has_failed
    }

    /// Sends bytes to an offset in the window of the peer for a call. Returns `None` if it has no
    /// such window.
    pub(crate) fn try_put(
        &mut self,
        call: u64,
        offset: usize,
        bytes: &[u8],
        registered: &mut RegisteredMemory,
    ) -> Result<Option<usize>> {
        if let Some(end) = self.end.as_ref().or(self.revoked.as_ref()) {
            return Err(end.clone());
        }
        let Some(window) = self.control_out().window(call) else { return Ok(None) };
        match window.way(offset, bytes.len()) {
            None => Ok(None),
            Some(Way::Sent(len)) => self.try_send(&[IoSlice::new(&bytes[..len])], registered).map(Some),
            Some(Way::Put { at, len }) => {
                let bytes = &bytes[..len.min(PUT_BYTES_MAX)];
                self.put((call, window.region, at), offset, bytes)
            }
        }
    }

    /// Writes bytes into a region of the peer, and sends a descriptor of them.
    fn put(
        &mut self,
        (call, region, at): (u64, u64, u64),
        offset: usize,
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        if !self.writer.has_free_descriptor() {
            self.refresh_head()?;
        }
        if !self.writer.has_free_descriptor() {
            self.shortage = Shortage::Descriptors;
            return Ok(Some(0));
        }
        // The region was sent before the window was opened.
        while !self.region_cache.has(region) && self.recv_packet() {}
        let Connection { segment, outgoing, .. } = &self.connection;
        let control = segment.control(*outgoing);
        if !control.put(call, || self.region_cache.write(region, at, bytes)) {
            return Ok(None);
        }
        self.shortage = Shortage::None;
        self.writer.push_descriptor(control, bytes.len(), WINDOW, offset as u64);
        self.publish();
        Ok(Some(bytes.len()))
    }

    /// Receives bytes that the peer has put: copies them, unless they were put where they are
    /// received.
    pub(super) fn take_put(&mut self, descriptor: &Descriptor, into: &mut [u8]) -> Result<()> {
        let put = self.window.as_ref().and_then(|OpenWindow { region, window }| {
            window.way(usize::try_from(descriptor.offset).ok()?, into.len())?;
            region.fill_buf((window.start + descriptor.offset) as usize, into.len())
        });
        let Some(put) = put else {
            let what = format_args!("it put {descriptor:?} outside the window");
            return Err(self.protocol_error(During::Receiving, what));
        };
        if put.as_ptr() != into.as_ptr() {
            put.copy_to(into);
        }
        Ok(())
    }

    /// Puts bytes, and lets something else happen just before they are written.
    #[cfg(test)]
    pub(crate) fn put_while(
        &mut self,
        (call, at): (u64, u64),
        bytes: &[u8],
        meanwhile: impl FnOnce(),
    ) -> bool {
        let Some(window) = self.control_out().window(call) else { return false };
        self.control_out().put(call, || {
            meanwhile();
            self.region_cache.write(window.region, window.start + at, bytes)
        })
    }

    /// Says that this rank writes into the window of the peer, and never that it is done.
    #[cfg(test)]
    pub(crate) fn stop_while_putting(&self) {
        self.control_out().begin_put();
    }

    #[cfg(test)]
    pub(crate) fn outgoing_control(&self) -> &crate::positions::Control {
        self.control_out()
    }
}
