//! The pipeline of a call's pieces: while one is on the wire, the next is copied from the device,
//! and the previous one to the device.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use comm_core::{Access, CallOptions, DType, During, Error, HostViewMut, Operands, Result};
use comm_nccl::{CopyStreams, Cuda, Device, PinnedBuffer, Transfer};

use super::pieces::Piece;

/// One piece is copied from the device, one is on the wire, one is copied to the device.
const SLOTS: usize = 3;
/// The number of pieces that are fetched before the first one is on the wire.
const AHEAD: usize = 2;
/// The smallest size of a pinned buffer in bytes.
const SLOT_MIN: usize = 64 << 10;

/// The buffers of a call on the device.
#[derive(Debug)]
pub(super) enum Ends<'a> {
    /// One buffer is read and written.
    Same(Transfer<'a>),
    /// One is read, another is written; either may be absent.
    Apart { source: Option<Transfer<'a>>, target: Option<Transfer<'a>> },
}

impl<'a> Ends<'a> {
    /// Starts transfers of a call's buffers, ordered after their earlier uses.
    pub(super) fn new(operands: Operands<'a, Cuda>, streams: &CopyStreams) -> Result<Self> {
        let (source, target) = match operands {
            Operands::Nothing => (None, None),
            Operands::Single { buffer, access: Access::ReadWrite } => {
                return Ok(Self::Same(buffer.transfer(streams)?));
            }
            Operands::Single { buffer, access: Access::Read } => {
                (Some(buffer.into_read_only().transfer(streams)?), None)
            }
            Operands::Single { buffer, access: Access::Write } => (None, Some(buffer.transfer(streams)?)),
            Operands::Pair { send, recv } => (Some(send.transfer(streams)?), Some(recv.transfer(streams)?)),
            Operands::ReadOnly(send) => (Some(send.transfer(streams)?), None),
        };
        Ok(Self::Apart { source, target })
    }

    const fn source(&mut self) -> Option<&mut Transfer<'a>> {
        match self {
            Self::Same(both) => Some(both),
            Self::Apart { source, .. } => source.as_mut(),
        }
    }

    const fn target(&mut self) -> Option<&mut Transfer<'a>> {
        match self {
            Self::Same(both) => Some(both),
            Self::Apart { target, .. } => target.as_mut(),
        }
    }
}

/// A call without its pieces.
#[derive(Debug)]
pub(super) struct Flow<'a> {
    pub(super) ends: Ends<'a>,
    pub(super) dtype: DType,
    pub(super) pieces: usize,
    pub(super) rank: usize,
    /// The options of each call on the host, except for the timeout, which covers all of them
    /// together.
    pub(super) options: CallOptions,
    pub(super) began: Instant,
}

impl Flow<'_> {
    fn left(&self) -> Duration {
        self.options.timeout.saturating_sub(self.began.elapsed())
    }
}

/// Pinned buffers that are used in turn.
#[derive(Debug)]
pub(super) struct Pipeline {
    device: Device,
    slots: [Option<PinnedBuffer>; SLOTS],
    /// The next buffer. A call begins after the buffers of the previous call, which may still be
    /// copied from.
    next: usize,
}

impl Pipeline {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), slots: Default::default(), next: 0 }
    }

    /// Runs a call: `cut` returns each piece, and `call` makes the host call for it. On return, the
    /// last pieces may still be in flight to the device.
    pub(super) fn run(
        &mut self,
        mut flow: Flow<'_>,
        cut: impl Fn(usize) -> Piece,
        call: impl Fn(&Piece, HostViewMut<'_>, &CallOptions) -> Result<()>,
    ) -> Result<()> {
        let first = self.next;
        self.next = (first + flow.pieces) % SLOTS;
        let mut coming = VecDeque::with_capacity(AHEAD + 1);
        for number in 0..flow.pieces.min(AHEAD) {
            coming.push_back(self.fetch(first + number, cut(number), &mut flow)?);
        }
        for number in 0..flow.pieces {
            let Some(piece) = coming.pop_front() else { break };
            let slot = self.slot(first + number, 0)?;
            if !slot.wait_timeout(flow.left())? {
                return Err(late(&flow));
            }
            let bytes = &mut slot.bytes_mut()?[..piece.len * flow.dtype.size()];
            let view = HostViewMut::from_bytes(bytes, flow.dtype)
                .ok_or_else(|| Error::Internal("a piece is not a whole number of elements".into()))?;
            let mut options = flow.options.clone();
            options.timeout = flow.left();
            call(&piece, view, &options)?;
            if let Some(target) = flow.ends.target() {
                target.upload(&piece.upload, slot)?;
            }
            if number + AHEAD < flow.pieces {
                coming.push_back(self.fetch(first + number + AHEAD, cut(number + AHEAD), &mut flow)?);
            }
        }
        Ok(())
    }

    /// Starts copying a piece from the device.
    fn fetch(&mut self, turn: usize, piece: Piece, flow: &mut Flow<'_>) -> Result<Piece> {
        let slot = self.slot(turn, piece.len * flow.dtype.size())?;
        if let Some(source) = flow.ends.source() {
            source.download(&piece.download, slot)?;
        }
        Ok(piece)
    }

    /// Returns the next buffer, with at least this many bytes.
    fn slot(&mut self, turn: usize, bytes: usize) -> Result<&mut PinnedBuffer> {
        let slot = &mut self.slots[turn % SLOTS];
        // Dropping the smaller buffer waits for its last use.
        drop(slot.take_if(|small| small.len() < bytes));
        match slot {
            Some(slot) => Ok(slot),
            None => {
                let capacity = bytes.checked_next_power_of_two().unwrap_or(bytes).max(SLOT_MIN);
                Ok(slot.insert(PinnedBuffer::new(&self.device, capacity)?))
            }
        }
    }
}

/// Returns the error for a device that did not reach the copy of a piece in time.
fn late(flow: &Flow<'_>) -> Error {
    let during = During::Device;
    Error::Timeout { waiting_for: vec![flow.rank], after: flow.options.timeout, during }
}
