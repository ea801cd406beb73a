//! The three arrays of a collective.

use std::ops::Range;

use comm_core::{Error, Place, Result};

use super::Located;

/// The memory that the steps of a collective work on.
#[derive(Debug)]
pub struct Buffers<'a> {
    /// What steps may only read.
    pub input: &'a [u8],
    /// What the collective writes.
    pub output: &'a mut [u8],
    /// Temporary memory.
    pub scratch: &'a mut [u8],
}

impl Buffers<'_> {
    /// Bytes to be sent.
    #[inline]
    pub(super) fn read(&self, place: Place, bytes: Range<usize>) -> Result<&[u8]> {
        let array = match place {
            Place::Input => self.input,
            Place::Output => self.output,
            Place::Scratch { .. } => self.scratch,
        };
        array.get(bytes).ok_or_else(outside)
    }

    /// Bytes to be written.
    #[inline]
    pub(super) fn write(&mut self, place: Place, bytes: Range<usize>) -> Result<&mut [u8]> {
        let array = match place {
            Place::Input => return Err(Error::Internal("a schedule writes its input".into())),
            Place::Output => &mut *self.output,
            Place::Scratch { .. } => &mut *self.scratch,
        };
        array.get_mut(bytes).ok_or_else(outside)
    }

    /// Bytes to be written by a step, and what it is to combine with what arrives, if that lies elsewhere.
    #[inline]
    pub(super) fn received(&mut self, step: &Located) -> Result<(&mut [u8], Option<&[u8]>)> {
        let (into, bytes) = (step.place, step.bytes.range());
        match step.own {
            None => Ok((self.write(into, bytes)?, None)),
            Some(own) => {
                self.pair((into, bytes), (own, step.other.range())).map(|(into, own)| (into, Some(own)))
            }
        }
    }

    /// The two operands of a local step: what is written, and what is read.
    #[inline]
    pub(super) fn pair(
        &mut self,
        (into, into_bytes): (Place, Range<usize>),
        (from, from_bytes): (Place, Range<usize>),
    ) -> Result<(&mut [u8], &[u8])> {
        let (written, read): (&mut [u8], &[u8]) = match (into, from) {
            (Place::Output, Place::Input) => (self.output, self.input),
            (Place::Output, Place::Scratch { .. }) => (self.output, self.scratch),
            (Place::Scratch { .. }, Place::Input) => (self.scratch, self.input),
            (Place::Scratch { .. }, Place::Output) => (self.scratch, self.output),
            (Place::Scratch { .. }, Place::Scratch { .. }) => {
                return apart(self.scratch, into_bytes, from_bytes);
            }
            (Place::Output, Place::Output) => return apart(self.output, into_bytes, from_bytes),
            (Place::Input, _) => return Err(Error::Internal("a schedule writes its input".into())),
        };
        Ok((written.get_mut(into_bytes).ok_or_else(outside)?, read.get(from_bytes).ok_or_else(outside)?))
    }
}

/// Two ranges of one array, which must not overlap.
fn apart(array: &mut [u8], into: Range<usize>, from: Range<usize>) -> Result<(&mut [u8], &[u8])> {
    array.get_disjoint_mut([into, from]).map(|[into, from]| (into, &*from)).map_err(|_| outside())
}

#[cold]
fn outside() -> Error {
    Error::Internal("a schedule names blocks outside its arrays".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_wrong_schedule_asks_for_is_an_error() {
        let (mut output, mut scratch) = ([0; 8], [0; 8]);
        let mut buffers = Buffers { input: &[0; 4], output: &mut output, scratch: &mut scratch };
        let slot = Place::Scratch { slot: 0 };
        assert!(buffers.read(Place::Input, 0..5).is_err());
        assert!(buffers.write(Place::Input, 0..1).is_err());
        assert!(buffers.write(Place::Output, 7..9).is_err());
        assert!(buffers.pair((Place::Output, 0..4), (Place::Output, 2..6)).is_err());
        assert!(buffers.pair((Place::Output, 0..4), (Place::Output, 4..8)).is_ok());
        assert!(buffers.pair((slot, 0..4), (slot, 4..8)).is_ok());
        assert!(buffers.pair((slot, 0..4), (Place::Input, 0..4)).is_ok());
    }
}
