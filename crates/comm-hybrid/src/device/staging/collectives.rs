//! The collectives. Each is staged through the host in pieces, and each piece is a call on the host
//! communicator.

use std::time::Instant;

use comm_core::{
    Buffers, Call, CallOptions, Collective, Communicator, Counts, Error, Group, HostViewMut, Invalid,
    LinkModel, ReduceOp, Result, Shape, Signature,
};
use comm_nccl::Cuda;

use super::pieces::{Piece, Plan};
use super::pipeline::{Ends, Flow};
use super::{StagedCommunicator, agreement};

impl Communicator<Cuda> for StagedCommunicator {
    fn group(&self) -> Group {
        self.group
    }

    fn links(&self) -> Option<LinkModel> {
        self.host.0.links()
    }

    fn run(&self, call: Call<'_, Cuda>, options: &CallOptions) -> Result<()> {
        match call {
            Call::Barrier => self.wait_for_all(Call::Barrier, options),
            Call::MonitoredBarrier => self.wait_for_all(Call::MonitoredBarrier, options),
            Call::Finalize => self.wait_for_all(Call::Finalize, options),
            call => self.stage(call, options),
        }
    }

    fn abort(&self, reason: &str) {
        self.fail(&Error::Aborted { by: self.group.rank(), reason: reason.into() });
    }
}

impl StagedCommunicator {
    /// Waits for the copies of all earlier calls, and then for the other ranks.
    fn wait_for_all(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        let _turn = self.turn()?;
        self.ended(self.streams.synchronize().and_then(|()| self.host.0.run(call, options)))
    }

    fn stage(&self, call: Call<'_, Cuda>, options: &CallOptions) -> Result<()> {
        let signature = call.check(self.group, options)?;
        let counts = call.counts();
        let operands = call.into_operands(self.group.rank());
        let plan = Plan::new(&signature, counts, &operands, self.group, self.piece_bytes)?;
        let (mut turn, began) = (self.turn()?, Instant::now());
        let staged = Ends::new(operands, &self.streams).and_then(|ends| {
            let longest = self.agree_on_longest(&signature, plan.longest(), options)?;
            let length =
                if signature.collective.is_known_everywhere() { signature.count } else { longest as u64 };
            let (pieces, dtype) = (plan.pieces(longest), plan.dtype);
            let options = of_pieces(options, pieces, length);
            let flow = Flow { ends, dtype, pieces, rank: self.group.rank(), options, began };
            turn.run(
                flow,
                |piece| plan.cut(piece),
                |piece, bytes, options| {
                    self.host.0.run(self.host_call(&signature, counts, piece, bytes)?, options)
                },
            )
        });
        self.ended(staged)
    }

    /// Returns the host call for a piece.
    fn host_call<'a>(
        &self,
        signature: &Signature,
        counts: (Counts<'_>, Counts<'_>),
        piece: &'a Piece,
        bytes: HostViewMut<'a>,
    ) -> Result<Call<'a>> {
        let (root, op) = (signature.root.unwrap_or(0), signature.op.unwrap_or(ReduceOp::Sum));
        let is_root = root == self.group.rank();
        let of_piece = of_piece(counts.0, &piece.counts);
        Ok(match signature.collective.base() {
            Collective::AllReduce => Call::AllReduce { buffers: Buffers::InPlace(bytes), op },
            Collective::Reduce => Call::Reduce { root, buffers: to_root(bytes, is_root), op },
            Collective::Broadcast => Call::Broadcast { root, buffer: bytes },
            Collective::AllGather => Call::AllGather { buffers: Buffers::InPlace(bytes), counts: of_piece },
            Collective::ReduceScatter => {
                Call::ReduceScatter { buffers: Buffers::InPlace(bytes), counts: of_piece, op }
            }
            Collective::Gather => Call::Gather { root, buffers: to_root(bytes, is_root), counts: of_piece },
            Collective::Scatter => {
                Call::Scatter { root, buffers: to_root(bytes, !is_root), counts: of_piece }
            }
            Collective::AllToAll => {
                let (out, back) = piece.counts.split_at(self.group.size());
                let buffers = halves(bytes, out.iter().sum())?;
                let (send, recv) = (self::of_piece(counts.0, out), self::of_piece(counts.1, back));
                Call::AllToAll { buffers, send, recv }
            }
            _ => return Err(unsupported(signature.collective)),
        })
    }

    /// Returns the length of the longest block of all ranks, which determines the pieces. The ranks
    /// communicate only if some cannot know it.
    fn agree_on_longest(
        &self,
        signature: &Signature,
        longest: usize,
        options: &CallOptions,
    ) -> Result<usize> {
        if signature.collective.is_known_everywhere() {
            return Ok(longest);
        }
        let mut agreed = [longest as u64];
        let buffer = HostViewMut::new(&mut agreed);
        let call = match signature.root {
            Some(root) => Call::Broadcast { root, buffer },
            None => Call::AllReduce { buffers: Buffers::InPlace(buffer), op: ReduceOp::Max },
        };
        self.host.0.run(call, &agreement(options))?;
        usize::try_from(agreed[0])
            .map_err(|_| Error::malformed("the length of another rank's block", agreed[0]))
    }
}

pub(super) fn unsupported(collective: Collective) -> Error {
    Invalid::Unsupported { backend: "the staged path", collective: collective.name() }.into()
}

/// Returns the options for the calls of pieces. A mismatch between ranks is detected in the first
/// piece.
fn of_pieces(options: &CallOptions, pieces: usize, length: u64) -> CallOptions {
    let mut options = options.clone();
    if pieces > 1 {
        options.extra_fingerprint =
            Signature::fingerprint_of([options.extra_fingerprint, pieces as u64, length]);
    }
    options
}

/// Returns the counts of a piece, which are equal if the counts of the whole call are.
const fn of_piece<'a>(counts: Counts<'_>, of_piece: &'a [usize]) -> Counts<'a> {
    match counts {
        Counts::Equal => Counts::Equal,
        Counts::PerRank(_) => Counts::PerRank(of_piece),
    }
}

/// Returns the buffers of a rank that gets a result, or of one that only sends.
const fn to_root(bytes: HostViewMut<'_>, gets_result: bool) -> Buffers<'_> {
    if gets_result { Buffers::InPlace(bytes) } else { Buffers::SendOnly(bytes.into_read_only()) }
}

/// Divides a piece into the elements to send and the space for those to receive.
fn halves(bytes: HostViewMut<'_>, sent: usize) -> Result<Buffers<'_>> {
    let dtype = bytes.dtype();
    let (send, recv) = bytes
        .into_bytes()
        .split_at_mut_checked(sent * dtype.size())
        .ok_or_else(|| Error::Internal("a piece is shorter than the data that it sends".into()))?;
    let send = HostViewMut::from_bytes(send, dtype).map(HostViewMut::into_read_only);
    let halves = send.zip(HostViewMut::from_bytes(recv, dtype));
    let (send, recv) =
        halves.ok_or_else(|| Error::Internal("a piece is not a whole number of elements".into()))?;
    Ok(Buffers::Separate { send, recv })
}
