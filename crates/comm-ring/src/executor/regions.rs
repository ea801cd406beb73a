//! The three memory regions of a collective.

use std::ops::Range;

use comm_core::{Action, Error, Place, Result};

use super::LoweredStep;

/// The memory that the steps of a collective work on: one region for each kind of [`Place`].
#[derive(Debug)]
pub struct Regions<'a> {
    /// The caller's input, which steps only read.
    pub input: &'a [u8],
    /// The caller's output.
    pub output: &'a mut [u8],
    /// Temporary memory.
    pub scratch: &'a mut [u8],
}

impl Regions<'_> {
    /// Returns the bytes that a send reads.
    #[inline]
    pub(super) fn read(&self, place: Place, bytes: Range<usize>) -> Result<&[u8]> {
        let region = match place {
            Place::Input => self.input,
            Place::Output => self.output,
            Place::Scratch { .. } => self.scratch,
        };
        region.get(bytes).ok_or_else(outside)
    }

    /// Returns the bytes that a step writes.
    #[inline]
    pub(super) fn write(&mut self, place: Place, bytes: Range<usize>) -> Result<&mut [u8]> {
        let region = match place {
            Place::Input => return Err(Error::Internal("a schedule writes its input".into())),
            Place::Output => &mut *self.output,
            Place::Scratch { .. } => &mut *self.scratch,
        };
        region.get_mut(bytes).ok_or_else(outside)
    }

    /// Returns the bytes that a receive writes, and its addend if that lies elsewhere.
    #[inline]
    pub(super) fn recv(&mut self, step: &LoweredStep) -> Result<(&mut [u8], Option<&[u8]>)> {
        match step.action {
            Action::RecvReduce { with, .. } if with != step.place => {
                self.pair(step, with).map(|(dst, addend)| (dst, Some(addend)))
            }
            _ => Ok((self.write(step.place, step.bytes.range())?, None)),
        }
    }

    /// Returns the bytes that a step writes, and the bytes at `src` that it reads.
    #[inline]
    pub(super) fn pair(&mut self, step: &LoweredStep, src: Place) -> Result<(&mut [u8], &[u8])> {
        let (dst_bytes, src_bytes) = (step.bytes.range(), step.src.range());
        let (dst, src): (&mut [u8], &[u8]) = match (step.place, src) {
            (Place::Output, Place::Input) => (self.output, self.input),
            (Place::Output, Place::Scratch { .. }) => (self.output, self.scratch),
            (Place::Scratch { .. }, Place::Input) => (self.scratch, self.input),
            (Place::Scratch { .. }, Place::Output) => (self.scratch, self.output),
            (Place::Scratch { .. }, Place::Scratch { .. }) => {
                return disjoint(self.scratch, dst_bytes, src_bytes);
            }
            (Place::Output, Place::Output) => return disjoint(self.output, dst_bytes, src_bytes),
            (Place::Input, _) => return Err(Error::Internal("a schedule writes its input".into())),
        };
        Ok((dst.get_mut(dst_bytes).ok_or_else(outside)?, src.get(src_bytes).ok_or_else(outside)?))
    }
}

/// Returns two ranges of one region, which must not overlap.
fn disjoint(region: &mut [u8], dst: Range<usize>, src: Range<usize>) -> Result<(&mut [u8], &[u8])> {
    region.get_disjoint_mut([dst, src]).map(|[dst, src]| (dst, &*src)).map_err(|_| outside())
}

#[cold]
fn outside() -> Error {
    Error::Internal("a schedule names blocks outside its regions, or operands that overlap".into())
}

#[cfg(test)]
mod tests {
    use comm_core::{Blocks, Layout, Partition, Step};

    use super::*;
    use crate::executor::lower::Lowering;

    #[test]
    fn blocks_outside_the_regions_and_operands_that_overlap_are_errors() {
        let (mut output, mut scratch) = ([0; 8], [0; 8]);
        let mut regions = Regions { input: &[0; 4], output: &mut output, scratch: &mut scratch };
        assert!(regions.read(Place::Input, 0..5).is_err());
        assert!(regions.write(Place::Input, 0..1).is_err());
        assert!(regions.write(Place::Output, 7..9).is_err());

        // Four blocks of two bytes, of which the input holds the first two.
        let layout = Layout { gapless: true, ..Layout::uniform(&Partition::even(8, 4)) };
        let slot = |slot| Place::Scratch { slot };
        let mut is_valid = |place, with, first| {
            let step = Step::recv_reduce(1, place, with, Blocks { first, count: 2 });
            regions.recv(&Lowering::default().lower(step, &layout)).map(|(_, addend)| addend.is_some()).ok()
        };
        assert_eq!(is_valid(Place::Output, Place::Output, 2), Some(false));
        assert_eq!(is_valid(Place::Output, Place::Input, 0), Some(true));
        assert_eq!(is_valid(Place::Output, Place::Input, 2), None);
        assert_eq!(is_valid(Place::Input, Place::Input, 0), None);
        assert_eq!(is_valid(slot(0), Place::Output, 2), Some(true));
        assert_eq!(is_valid(slot(0), slot(2), 2), Some(true));
        assert_eq!(is_valid(slot(0), slot(1), 2), None);
        assert_eq!(is_valid(slot(3), Place::Output, 2), None);
    }
}
