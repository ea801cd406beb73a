//! Stripes the bytes of one stream over several sockets.

/// The stream to or from a peer goes through its sockets round-robin, one stripe each. The position
/// of a byte in the stream alone determines its socket, so nothing on the wire has to identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripes {
    /// The number of sockets, from 1 to [`TcpConfig::SOCKETS_MAX`](crate::TcpConfig::SOCKETS_MAX).
    pub(crate) sockets: u8,
    /// The number of bytes of a stripe, at least 1.
    pub(crate) bytes: u64,
}

impl Stripes {
    /// All bytes go through one socket.
    pub(crate) const NONE: Self = Self { sockets: 1, bytes: u64::MAX };

    /// Returns the index of the socket that carries the byte at `position`, and the number of bytes
    /// to the end of the stripe.
    pub(crate) fn at(self, position: u64) -> (usize, usize) {
        if self.sockets == 1 {
            return (0, usize::MAX);
        }
        let socket = position / self.bytes % u64::from(self.sockets);
        let left = self.bytes - position % self.bytes;
        (socket as usize, usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Whether a stripe begins at `position`.
    pub(crate) fn turns_at(self, position: u64) -> bool {
        self.sockets > 1 && position.is_multiple_of(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_take_turns_of_one_stripe_each() {
        let stripes = Stripes { sockets: 3, bytes: 4 };
        let dealt: Vec<usize> = (0..26).map(|position| stripes.at(position).0).collect();
        assert_eq!(dealt, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]);
        let left: Vec<usize> = (0..9).map(|position| stripes.at(position).1).collect();
        assert_eq!(left, [4, 3, 2, 1, 4, 3, 2, 1, 4]);
        assert!(stripes.turns_at(12) && !stripes.turns_at(13));
        assert_eq!(stripes.at(u64::MAX - 1), (((u64::MAX - 1) / 4 % 3) as usize, 2));
    }

    #[test]
    fn one_socket_carries_all() {
        for stripes in [Stripes::NONE, Stripes { sockets: 1, bytes: 4 }] {
            assert_eq!(stripes.at(4), (0, usize::MAX));
            assert!(!stripes.turns_at(4));
        }
    }
}
