//! The checks of a call, which are the same for every backend.

use std::borrow::Cow;

use super::counts::check_len;
use super::{Buffers, Call, Counts, Signature};
use crate::{Accumulate, CallOptions, DType, Group, Invalid, Memory, ReduceOp, ReduceOrder, Result, Shape};

/// The names of a rank's buffers in errors.
struct Names {
    whole: &'static str,
    send: &'static str,
    recv: &'static str,
    /// The error of a rank that passes no receive buffer although it needs one.
    without_recv: Invalid,
}

const OWN: Names = Names {
    whole: "the buffer",
    send: "the send buffer",
    recv: "the receive buffer",
    without_recv: Invalid::WithoutRecv,
};

const ROOTS: Names = Names {
    whole: "the root's buffer",
    send: "the root's send buffer",
    recv: "the root's receive buffer",
    without_recv: Invalid::RootWithoutRecv,
};

impl<M: Memory> Call<'_, M> {
    /// Checks the call for a member of `group` and returns its signature. The algorithm is the one
    /// named by the options, or empty.
    ///
    /// # Errors
    /// [`Invalid`], naming the argument.
    #[inline]
    pub fn check(&self, group: Group, options: &CallOptions) -> Result<Signature> {
        let (root, op) = (self.root(), self.op());
        if let Some(root) = root {
            group.check_root(root)?;
        }
        let (dtype, count) = self.check_buffers(group)?;
        let mut accumulate = Accumulate::Native;
        let mut order = ReduceOrder::Any;
        if let (Some(op), Some(dtype)) = (op, dtype) {
            self.check_op(op, dtype)?;
            order = options.order;
            if options.accumulate.dtype(op, dtype) != dtype {
                accumulate = options.accumulate;
            }
        }
        let algorithm = match &options.algorithm {
            Some(name) if !matches!(self, Self::MonitoredBarrier | Self::Finalize) => name.clone(),
            _ => Cow::Borrowed(""),
        };
        // Built in place, because every copy slows down small calls measurably.
        Ok(Signature {
            group: group.id(),
            collective: self.collective(),
            op,
            user_op: None,
            dtype,
            accumulate,
            order,
            count: count as u64,
            root,
            extra_fingerprint: options.extra_fingerprint,
            algorithm,
        })
    }

    #[inline]
    fn check_op(&self, op: ReduceOp, dtype: DType) -> Result<()> {
        if op == ReduceOp::Avg && matches!(self, Self::Scan { .. } | Self::Exscan { .. }) {
            return Err(Invalid::OpOf { op, collective: self.collective().name() }.into());
        }
        Ok(op.check(dtype)?)
    }

    /// Checks the buffers. Returns the element type, unless no data moves, and
    /// [`Signature::count`].
    #[inline]
    fn check_buffers(&self, group: Group) -> Result<(Option<DType>, usize)> {
        let rank = group.rank();
        let (buffers, count) = match self {
            Self::AllReduce { buffers, .. } | Self::Scan { buffers, .. } | Self::Exscan { buffers, .. } => {
                (buffers, OWN.same(buffers)?)
            }
            Self::Reduce { root, buffers, .. } if *root == rank => (buffers, ROOTS.same(buffers)?),
            Self::Gather { root, buffers, counts } if *root == rank => {
                (buffers, ROOTS.blocks(BlocksIn::Recv, buffers, *counts, group)?)
            }
            Self::Reduce { buffers, .. } | Self::Gather { buffers, .. } => (buffers, buffers.len()),
            Self::Scatter { root, buffers: buffers @ Buffers::SendOnly(send), counts } if *root == rank => {
                (buffers, counts.check(ROOTS.send, send.len(), None, group)?)
            }
            Self::Scatter { root, buffers, counts } if *root == rank => {
                (buffers, ROOTS.blocks(BlocksIn::Send, buffers, *counts, group)?)
            }
            // The send buffer of a rank other than the root is ignored, including its type.
            Self::Scatter { buffers, .. } => match buffers {
                Buffers::InPlace(recv) | Buffers::Separate { recv, .. } => {
                    return Ok((Some(recv.dtype()), recv.len()));
                }
                Buffers::SendOnly(_) => return Err(Invalid::WithoutRecv.into()),
            },
            Self::Broadcast { buffer, .. } => return Ok((Some(buffer.dtype()), buffer.len())),
            Self::AllGather { buffers, counts } => {
                (buffers, OWN.blocks(BlocksIn::Recv, buffers, *counts, group)?)
            }
            Self::ReduceScatter { buffers, counts, .. } => {
                (buffers, OWN.blocks(BlocksIn::Send, buffers, *counts, group)?)
            }
            Self::AllToAll { buffers, send, recv } => (buffers, exchanged(buffers, *send, *recv, group)?),
            Self::Barrier | Self::MonitoredBarrier | Self::Finalize => return Ok((None, 0)),
        };
        Ok((Some(buffers.dtype()), count))
    }
}

/// The buffer that has a block for each rank.
#[derive(Clone, Copy)]
enum BlocksIn {
    Send,
    Recv,
}

impl Names {
    /// Checks that send and receive buffer have the same length.
    #[inline]
    fn same<M: Memory>(&self, buffers: &Buffers<'_, M>) -> Result<usize> {
        match buffers {
            Buffers::InPlace(buffer) => Ok(buffer.len()),
            Buffers::Separate { send, recv } => {
                check_dtypes::<M>(send, recv)?;
                check_len(self.recv, recv.len(), send.len())?;
                Ok(send.len())
            }
            Buffers::SendOnly(_) => Err(self.without_recv.clone().into()),
        }
    }

    /// Checks that the buffer given by `blocks` has a block for each rank, and that the other one
    /// has as many elements as this rank's own block.
    fn blocks<M: Memory>(
        &self,
        blocks: BlocksIn,
        buffers: &Buffers<'_, M>,
        counts: Counts<'_>,
        group: Group,
    ) -> Result<usize> {
        let (send, recv) = match buffers {
            Buffers::InPlace(buffer) => return counts.check(self.whole, buffer.len(), None, group),
            Buffers::Separate { send, recv } => (send, recv),
            Buffers::SendOnly(_) => return Err(self.without_recv.clone().into()),
        };
        check_dtypes::<M>(send, recv)?;
        match blocks {
            BlocksIn::Send => counts.check(self.send, send.len(), Some(recv.len()), group),
            BlocksIn::Recv => counts.check(self.recv, recv.len(), Some(send.len()), group),
        }
    }
}

/// Checks that both buffers have a block for each rank, and that this rank receives from itself as
/// much as it sends to itself.
fn exchanged<M: Memory>(
    buffers: &Buffers<'_, M>,
    sends: Counts<'_>,
    recvs: Counts<'_>,
    group: Group,
) -> Result<usize> {
    let (names, send, recv) = match buffers {
        Buffers::InPlace(buffer) => ([OWN.whole; 2], buffer.len(), buffer.len()),
        Buffers::Separate { send, recv } => {
            check_dtypes::<M>(send, recv)?;
            ([OWN.send, OWN.recv], send.len(), recv.len())
        }
        Buffers::SendOnly(_) => return Err(Invalid::WithoutRecv.into()),
    };
    if let (Counts::Equal, Counts::Equal) = (sends, recvs) {
        check_len(OWN.recv, recv, send)?;
    }
    let sent = sends.check(names[0], send, None, group)?;
    let received = recvs.check(names[1], recv, None, group)?;
    if let Buffers::InPlace(_) = buffers {
        let what = "the block received from a rank in place";
        (0..group.size())
            .try_for_each(|rank| check_len(what, recvs.of(rank, received), sends.of(rank, sent)))?;
    }
    let rank = group.rank();
    let own = "the block that this rank receives from itself";
    check_len(own, recvs.of(rank, received), sends.of(rank, sent))?;
    Ok(if let Counts::Equal = sends { sent } else { received })
}

/// Checks that send and receive buffer have elements of the same type.
#[inline]
fn check_dtypes<M: Memory>(send: &M::View<'_>, recv: &M::ViewMut<'_>) -> Result<()> {
    let (send, recv) = (send.dtype(), recv.dtype());
    if send == recv { Ok(()) } else { Err(Invalid::DTypes { send, recv }.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, Host, HostView, HostViewMut, Membership};

    fn group(rank: usize) -> Group {
        Group::new(GroupId::WORLD, Membership { rank, size: 2 }).unwrap()
    }

    fn separate<'a>(send: &'a [f32], recv: &'a mut [f32]) -> Buffers<'a> {
        Buffers::Separate { send: HostView::new(send), recv: HostViewMut::new(recv) }
    }

    /// Returns the count of a call of rank 0 of two.
    fn count(call: &Call<'_>) -> Result<u64> {
        count_at(0, call)
    }

    fn count_at(rank: usize, call: &Call<'_>) -> Result<u64> {
        call.check(group(rank), &CallOptions::default()).map(|signature| signature.count)
    }

    #[test]
    fn lengths_must_match_the_group() {
        let (two, mut four) = ([0.0; 2], [0.0; 4]);
        let (op, counts) = (ReduceOp::Sum, Counts::Equal);
        assert_eq!(count(&Call::AllGather { buffers: separate(&two, &mut four), counts }).unwrap(), 2);
        assert!(count(&Call::AllReduce { buffers: separate(&two, &mut four), op }).is_err());
        assert!(count(&Call::ReduceScatter { buffers: separate(&two, &mut four), counts, op }).is_err());
        let (four, mut two) = ([0.0; 4], [0.0; 2]);
        let buffers = separate(&four, &mut two);
        assert_eq!(count(&Call::ReduceScatter { buffers, counts, op }).unwrap(), 2);
        assert!(count(&Call::AllGather { buffers: separate(&four, &mut two), counts }).is_err());
        let mut odd = [0_u8; 5];
        let buffers = Buffers::InPlace(HostViewMut::new(&mut odd));
        assert!(count(&Call::AllGather { buffers, counts }).is_err());
    }

    #[test]
    fn counts_must_add_up() {
        let (three, mut five) = ([0.0; 3], [0.0; 5]);
        let gather = |counts: &[usize], rank| {
            let mut recv = [0.0; 5];
            let buffers = separate(&three, &mut recv);
            count_at(rank, &Call::AllGather { buffers, counts: Counts::PerRank(counts) })
        };
        assert_eq!(gather(&[3, 2], 0).unwrap(), 5);
        assert!(gather(&[3, 2], 1).is_err(), "rank 1 has two");
        assert!(gather(&[3, 3], 0).is_err());
        assert!(gather(&[3, 1, 1], 0).is_err(), "a list for three ranks");
        assert!(gather(&[3, usize::MAX], 0).is_err());
        let mut all_to_all =
            |send, recv| count(&Call::AllToAll { buffers: separate(&three, &mut five), send, recv });
        assert!(all_to_all(Counts::PerRank(&[1, 2]), Counts::PerRank(&[1, 4])).is_ok());
        assert!(all_to_all(Counts::PerRank(&[1, 2]), Counts::PerRank(&[1, 5])).is_err());
        let own = all_to_all(Counts::PerRank(&[1, 2]), Counts::PerRank(&[2, 3])).unwrap_err().to_string();
        assert!(own.contains("receives from itself has 2 elements, but 1 are needed"), "{own}");
        assert!(all_to_all(Counts::Equal, Counts::Equal).is_err());
    }

    #[test]
    fn only_the_root_needs_a_receive_buffer() {
        let (send, op) = ([0.0_f32; 3], ReduceOp::Sum);
        let only = |root| Call::Reduce { root, buffers: Buffers::SendOnly(HostView::new(&send)), op };
        assert!(count(&only(0)).is_err());
        assert_eq!(count_at(1, &only(0)).unwrap(), 3);
        assert!(count_at(1, &only(2)).is_err());
        let mut nothing = [];
        let mut to_root =
            |rank| count_at(rank, &Call::Reduce { root: 0, buffers: separate(&send, &mut nothing), op });
        assert_eq!(to_root(1).unwrap(), 3);
        assert!(to_root(0).is_err());
    }

    #[test]
    fn types_must_agree_and_carry_the_operator() {
        let (floats, mut ints) = ([0.0_f32; 2], [0_i32; 2]);
        let buffers: Buffers<'_, Host> =
            Buffers::Separate { send: HostView::new(&floats), recv: HostViewMut::new(&mut ints) };
        assert!(count(&Call::AllReduce { buffers, op: ReduceOp::Sum }).is_err());
        let mut of_ints =
            |op| count(&Call::AllReduce { buffers: Buffers::InPlace(HostViewMut::new(&mut ints)), op });
        assert!(of_ints(ReduceOp::Avg).is_err());
        assert!(of_ints(ReduceOp::BitXor).is_ok());
        let buffers = Buffers::InPlace(HostViewMut::new(&mut ints));
        assert!(count(&Call::Scan { buffers, op: ReduceOp::BitXor }).is_ok());
        let mut floats = [0.0_f32; 2];
        let buffers = Buffers::InPlace(HostViewMut::new(&mut floats));
        let average = count(&Call::Exscan { buffers, op: ReduceOp::Avg }).unwrap_err().to_string();
        assert!(average.contains("exscan does not support the operator avg"), "{average}");
    }
}
