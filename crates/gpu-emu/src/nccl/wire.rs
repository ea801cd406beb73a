//! The header of messages.

/// The flow to which a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Channel {
    Collective = 0,
    PointToPoint = 1,
    /// Acknowledges a message between two ranks.
    Receipt = 2,
    /// The creation of communicators from others.
    Division = 3,
}

/// The properties on which two ranks must agree for a message to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Shape {
    pub(super) kind: u8,
    pub(super) element: u8,
    pub(super) reduction: u8,
    pub(super) root: u32,
    pub(super) count: u64,
}

/// The unique position of a message in its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) context: u64,
    pub(super) channel: Channel,
    pub(super) sequence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) place: Place,
    pub(super) shape: Shape,
    pub(super) factor: [u8; 8],
    pub(super) length: u64,
}

pub(super) const HEADER_BYTES: usize = 48;

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let numbers = [self.place.context, self.place.sequence, self.shape.count, self.length];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.factor);
        bytes[40..44].copy_from_slice(&self.shape.root.to_le_bytes());
        bytes[44] = self.place.channel as u8;
        bytes[45..48].copy_from_slice(&[self.shape.kind, self.shape.element, self.shape.reduction]);
        bytes
    }

    /// Returns `None` for an invalid header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number = |index: usize| bytes[8 * index..8 * index + 8].try_into().map(u64::from_le_bytes).ok();
        let channel = match bytes[44] {
            0 => Channel::Collective,
            1 => Channel::PointToPoint,
            2 => Channel::Receipt,
            3 => Channel::Division,
            _ => return None,
        };
        let root = u32::from_le_bytes(bytes[40..44].try_into().ok()?);
        let [kind, element, reduction] = bytes[45..48].try_into().ok()?;
        Some(Self {
            place: Place { context: number(0)?, channel, sequence: number(1)? },
            shape: Shape { kind, element, reduction, root, count: number(2)? },
            factor: bytes[32..40].try_into().ok()?,
            length: number(3)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = Header {
            place: Place { context: 1 << 60, channel: Channel::Receipt, sequence: 7 },
            shape: Shape { kind: 1, element: 2, reduction: 3, root: 4, count: 5 },
            factor: [9; 8],
            length: 1 << 33,
        };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        let mut wrong = header.encode();
        wrong[44] = 9;
        assert_eq!(Header::decode(&wrong), None);
    }
}
