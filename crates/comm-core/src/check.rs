//! The checks of a call's shape, the same for every backend.

use crate::{Collective, Exchange, Group, Invalid, Memory, ReduceOp, Result, Shape};

/// The element type of a send and a receive buffer, which must agree.
#[inline]
fn same_dtype<M: Memory>(send: &M::View<'_>, recv: &M::ViewMut<'_>) -> Result<()> {
    if send.dtype() == recv.dtype() {
        Ok(())
    } else {
        Err(Invalid::DTypes { send: send.dtype(), recv: recv.dtype() }.into())
    }
}

#[inline]
pub(crate) fn length(what: &'static str, got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Invalid::Length { what, expected, got }.into()) }
}

/// The length of one rank's share of a buffer for all ranks.
fn share(what: &'static str, all: usize, group: Group) -> Result<usize> {
    if all.is_multiple_of(group.size()) {
        Ok(all / group.size())
    } else {
        Err(Invalid::Indivisible { what, got: all, size: group.size() }.into())
    }
}

/// The sum of one count per rank.
fn total(counts: &[usize], group: Group) -> Result<usize> {
    length("the list of counts", counts.len(), group.size())?;
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count)).ok_or_else(|| {
        Invalid::Length { what: "the sum of the counts", expected: usize::MAX, got: usize::MAX }.into()
    })
}

/// Checks that a rank sends to itself as many elements as it receives from itself. Each direction comes with the count
/// that [`Shares::check`] returned for it.
fn check_own_block(rank: usize, sends: (Shares<'_>, usize), recvs: (Shares<'_>, usize)) -> Result<()> {
    let own = |(shares, count): (Shares<'_>, usize)| match shares {
        Shares::Equal => count,
        Shares::Counts(counts) => counts[rank],
    };
    length("the block that this rank receives from itself", own(recvs), own(sends))
}

/// How long each rank's share is.
#[derive(Debug, Clone, Copy)]
pub enum Shares<'a> {
    /// As long as everybody else's.
    Equal,
    /// As long as this list says, in rank order.
    Counts(&'a [usize]),
}

impl Shares<'_> {
    /// Checks a buffer for all ranks, of which this rank's share has `own` elements if that is known, and returns the
    /// count by which the call is known: of one share if they are equal, else of all together.
    fn check(self, what: &'static str, all: usize, own: Option<usize>, group: Group) -> Result<usize> {
        match self {
            Self::Equal => {
                let count = share(what, all, group)?;
                length(what, all, own.unwrap_or(count).saturating_mul(group.size()))?;
                Ok(count)
            }
            Self::Counts(counts) => {
                let total = total(counts, group)?;
                length(what, all, total)?;
                let expected = counts[group.rank()];
                length("this rank's share", own.unwrap_or(expected), expected)?;
                Ok(total)
            }
        }
    }
}

impl<M: Memory> Exchange<'_, M> {
    /// The type of the contribution's elements.
    #[must_use]
    #[inline]
    pub fn dtype(&self) -> crate::DType {
        match self {
            Self::InPlace(buffer) => buffer.dtype(),
            Self::Separate { send, .. } | Self::SendOnly(send) => send.dtype(),
        }
    }

    /// Checks an all-reduce and returns its count.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    #[inline]
    pub fn check_all_reduce(&self, op: ReduceOp) -> Result<usize> {
        op.check(self.dtype())?;
        match self {
            Self::InPlace(buffer) => Ok(buffer.len()),
            Self::Separate { send, recv } => {
                same_dtype::<M>(send, recv)?;
                length("the receive buffer", recv.len(), send.len())?;
                Ok(send.len())
            }
            Self::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
        }
    }

    /// Checks a scan, inclusive or exclusive, and returns its count.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_scan(&self, collective: Collective, op: ReduceOp) -> Result<usize> {
        if op == ReduceOp::Avg {
            return Err(Invalid::OpOf { op, collective: collective.name() }.into());
        }
        self.check_all_reduce(op)
    }

    /// Checks a reduce and returns its count. Receive buffers of other ranks than the root are ignored.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_reduce(&self, group: Group, root: usize, op: ReduceOp) -> Result<usize> {
        group.check_root(root)?;
        op.check(self.dtype())?;
        match self {
            Self::InPlace(buffer) => Ok(buffer.len()),
            Self::Separate { send, recv } => {
                if group.rank() == root {
                    same_dtype::<M>(send, recv)?;
                    length("the root's receive buffer", recv.len(), send.len())?;
                }
                Ok(send.len())
            }
            Self::SendOnly(_) if group.rank() == root => Err(Invalid::RootWithoutRecv.into()),
            Self::SendOnly(send) => Ok(send.len()),
        }
    }

    /// Checks an all-gather and returns the count by which it is known.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_all_gather(&self, group: Group, shares: Shares<'_>) -> Result<usize> {
        match self {
            Self::InPlace(buffer) => shares.check("the buffer", buffer.len(), None, group),
            Self::Separate { send, recv } => {
                same_dtype::<M>(send, recv)?;
                shares.check("the receive buffer", recv.len(), Some(send.len()), group)
            }
            Self::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
        }
    }

    /// Checks a reduce-scatter and returns the count by which it is known.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_reduce_scatter(&self, group: Group, shares: Shares<'_>, op: ReduceOp) -> Result<usize> {
        op.check(self.dtype())?;
        match self {
            Self::InPlace(buffer) => shares.check("the buffer", buffer.len(), None, group),
            Self::Separate { send, recv } => {
                same_dtype::<M>(send, recv)?;
                shares.check("the send buffer", send.len(), Some(recv.len()), group)
            }
            Self::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
        }
    }

    /// Checks an all-to-all and returns the count of one block in a direction in which blocks are equal. In place, what
    /// goes to a rank is as long as what comes from it.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_all_to_all(&self, group: Group, sends: Shares<'_>, recvs: Shares<'_>) -> Result<usize> {
        match self {
            Self::InPlace(buffer) => {
                let sent = sends.check("the buffer", buffer.len(), None, group)?;
                let received = recvs.check("the buffer", buffer.len(), None, group)?;
                check_own_block(group.rank(), (sends, sent), (recvs, received))?;
                Ok(if let Shares::Equal = sends { sent } else { received })
            }
            Self::Separate { send, recv } => {
                same_dtype::<M>(send, recv)?;
                if let (Shares::Equal, Shares::Equal) = (sends, recvs) {
                    length("the receive buffer", recv.len(), send.len())?;
                }
                let sent = sends.check("the send buffer", send.len(), None, group)?;
                let received = recvs.check("the receive buffer", recv.len(), None, group)?;
                check_own_block(group.rank(), (sends, sent), (recvs, received))?;
                Ok(if let Shares::Equal = sends { sent } else { received })
            }
            Self::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
        }
    }

    /// Checks a gather and returns the count by which it is known on this rank. Receive buffers of other ranks than
    /// the root are ignored.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_gather(&self, group: Group, root: usize, shares: Shares<'_>) -> Result<usize> {
        group.check_root(root)?;
        match self {
            Self::InPlace(buffer) if group.rank() == root => {
                shares.check("the root's buffer", buffer.len(), None, group)
            }
            Self::Separate { send, recv } if group.rank() == root => {
                same_dtype::<M>(send, recv)?;
                shares.check("the root's receive buffer", recv.len(), Some(send.len()), group)
            }
            Self::SendOnly(_) if group.rank() == root => Err(Invalid::RootWithoutRecv.into()),
            Self::InPlace(buffer) => Ok(buffer.len()),
            Self::Separate { send, .. } | Self::SendOnly(send) => Ok(send.len()),
        }
    }

    /// Checks a scatter and returns the count by which it is known on this rank. Send buffers of other ranks than the
    /// root are ignored.
    ///
    /// # Errors
    /// [`Invalid`], naming what does not fit.
    pub fn check_scatter(&self, group: Group, root: usize, shares: Shares<'_>) -> Result<usize> {
        group.check_root(root)?;
        match self {
            Self::Separate { send, recv } if group.rank() == root => {
                same_dtype::<M>(send, recv)?;
                shares.check("the root's send buffer", send.len(), Some(recv.len()), group)
            }
            Self::InPlace(buffer) if group.rank() == root => {
                shares.check("the root's buffer", buffer.len(), None, group)
            }
            Self::SendOnly(send) if group.rank() == root => {
                shares.check("the root's send buffer", send.len(), None, group)
            }
            Self::SendOnly(_) => Err(Invalid::WithoutRecv.into()),
            Self::InPlace(recv) | Self::Separate { recv, .. } => Ok(recv.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, Host, HostView, HostViewMut, Membership};

    fn group(rank: usize) -> Group {
        Group::new(GroupId::WORLD, Membership { rank, size: 2 }).unwrap()
    }

    fn separate<'a>(send: &'a [f32], recv: &'a mut [f32]) -> Exchange<'a, Host> {
        Exchange::Separate { send: HostView::new(send), recv: HostViewMut::new(recv) }
    }

    #[test]
    fn lengths_are_those_that_the_group_needs() {
        let (two, mut four) = ([0.0; 2], [0.0; 4]);
        assert_eq!(separate(&two, &mut four).check_all_gather(group(0), Shares::Equal).unwrap(), 2);
        assert!(separate(&two, &mut four).check_all_reduce(ReduceOp::Sum).is_err());
        assert!(
            separate(&two, &mut four).check_reduce_scatter(group(0), Shares::Equal, ReduceOp::Sum).is_err()
        );
        let (four, mut two) = ([0.0; 4], [0.0; 2]);
        assert_eq!(
            separate(&four, &mut two).check_reduce_scatter(group(0), Shares::Equal, ReduceOp::Sum).unwrap(),
            2
        );
        assert!(separate(&four, &mut two).check_all_gather(group(0), Shares::Equal).is_err());
        let mut odd = [0_u8; 5];
        let exchange: Exchange<'_, Host> = Exchange::InPlace(HostViewMut::new(&mut odd));
        assert!(exchange.check_all_gather(group(0), Shares::Equal).is_err());
    }

    #[test]
    fn counts_must_add_up() {
        let (three, mut five) = ([0.0; 3], [0.0; 5]);
        let gather = |counts: &[usize], rank| {
            separate(&three, &mut [0.0; 5]).check_all_gather(group(rank), Shares::Counts(counts))
        };
        assert_eq!(gather(&[3, 2], 0).unwrap(), 5);
        assert!(gather(&[3, 2], 1).is_err(), "rank 1 has two");
        assert!(gather(&[3, 3], 0).is_err());
        assert!(gather(&[3, 1, 1], 0).is_err(), "a list for three ranks");
        assert!(gather(&[3, usize::MAX], 0).is_err());
        let mut all_to_all =
            |sends, recvs| separate(&three, &mut five).check_all_to_all(group(0), sends, recvs);
        assert!(all_to_all(Shares::Counts(&[1, 2]), Shares::Counts(&[1, 4])).is_ok());
        assert!(all_to_all(Shares::Counts(&[1, 2]), Shares::Counts(&[1, 5])).is_err());
        let own = all_to_all(Shares::Counts(&[1, 2]), Shares::Counts(&[2, 3])).unwrap_err().to_string();
        assert!(own.contains("receives from itself has 2 elements, 1 are needed"), "{own}");
        assert!(all_to_all(Shares::Equal, Shares::Equal).is_err());
    }

    #[test]
    fn only_the_root_needs_a_place_for_the_result() {
        let send = [0.0_f32; 3];
        let only: Exchange<'_, Host> = Exchange::SendOnly(HostView::new(&send));
        assert!(only.check_reduce(group(0), 0, ReduceOp::Sum).is_err());
        assert_eq!(only.check_reduce(group(1), 0, ReduceOp::Sum).unwrap(), 3);
        assert_eq!(separate(&send, &mut []).check_reduce(group(1), 0, ReduceOp::Sum).unwrap(), 3);
        assert!(separate(&send, &mut []).check_reduce(group(0), 0, ReduceOp::Sum).is_err());
        assert!(only.check_reduce(group(1), 2, ReduceOp::Sum).is_err());
    }

    #[test]
    fn types_must_agree_and_carry_the_operator() {
        let (floats, mut ints) = ([0.0_f32; 2], [0_i32; 2]);
        let mixed: Exchange<'_, Host> =
            Exchange::Separate { send: HostView::new(&floats), recv: HostViewMut::new(&mut ints) };
        assert!(mixed.check_all_reduce(ReduceOp::Sum).is_err());
        let ints: Exchange<'_, Host> = Exchange::InPlace(HostViewMut::new(&mut ints));
        assert!(ints.check_all_reduce(ReduceOp::Avg).is_err());
        assert!(ints.check_all_reduce(ReduceOp::BitXor).is_ok());
        assert!(ints.check_scan(Collective::Scan, ReduceOp::BitXor).is_ok());
        let mut floats = [0.0_f32; 2];
        let floats: Exchange<'_, Host> = Exchange::InPlace(HostViewMut::new(&mut floats));
        let average = floats.check_scan(Collective::ExScan, ReduceOp::Avg).unwrap_err().to_string();
        assert!(average.contains("exscan has no operator avg"), "{average}");
    }
}
