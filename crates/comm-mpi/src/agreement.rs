//! Comparison of the ranks' calls, with collectives of a few words.

use comm_core::{Allocation, Collective, Desync, Error, Result, Signature, bytemuck, wire};

use crate::raw::{Area, BlockCounts, CallMemory, Datatype, OpHandle, Routine, count_of};
use crate::session::{CallContext, Session};

const WORD: usize = size_of::<u64>();

impl Session {
    /// Compares the call with the calls of all other ranks, if that is configured. Every rank has
    /// made the call when this returns, if the calls are compared.
    ///
    /// # Errors
    /// [`Error::Desync`] on every rank if they differ; as [`Session::wait`].
    pub(crate) fn compare_calls(&self, context: &CallContext<'_>) -> Result<()> {
        if !self.config.compare_calls || self.group.size() == 1 {
            return Ok(());
        }
        let fingerprint = context.signature.fingerprint();
        // The maximum of the complement is the complement of the minimum.
        let extremes = self.max_of_words(&[fingerprint, !fingerprint], context)?;
        match extremes[..] {
            [max, min] if max == !min => Ok(()),
            _ => Err(self.find_difference(context)?),
        }
    }

    /// Waits until every rank has made this call.
    pub(crate) fn barrier(&self, context: &CallContext<'_>) -> Result<()> {
        let nothing = words(&[], Collective::Barrier, [BlockCounts::NONE, BlockCounts::NONE], 0)?;
        self.wait(self.handle.start(nothing)?, context).map(drop)
    }

    /// Returns the largest word of all ranks at each position.
    pub(crate) fn max_of_words(&self, own: &[u64], context: &CallContext<'_>) -> Result<Vec<u64>> {
        let count = BlockCounts::Equal(count_of("the words", own.len())?);
        let memory = words(own, Collective::AllReduce, [count.clone(), count], own.len())?;
        self.exchange(memory, own.len(), context)
    }

    /// Returns the words of all ranks, in rank order.
    pub(crate) fn all_words(&self, own: &[u64], context: &CallContext<'_>) -> Result<Vec<u64>> {
        let count = BlockCounts::Equal(count_of("the words", own.len())?);
        let total = own.len() * self.group.size();
        let memory = words(own, Collective::AllGather, [count.clone(), count], total)?;
        self.exchange(memory, total, context)
    }

    /// Sends a word to each rank, and returns the words of all ranks for this one.
    pub(crate) fn exchange_words(&self, own: &[u64], context: &CallContext<'_>) -> Result<Vec<u64>> {
        let one = [BlockCounts::Equal(1), BlockCounts::Equal(1)];
        let memory = words(own, Collective::AllToAll, one, own.len())?;
        self.exchange(memory, own.len(), context)
    }

    fn exchange(&self, memory: CallMemory, len: usize, context: &CallContext<'_>) -> Result<Vec<u64>> {
        let memory = self.wait(self.handle.start(memory)?, context)?;
        let Area::Staged(received) = memory.recv else {
            return Err(Error::Internal("words are not in memory of this library".into()));
        };
        let words = bytemuck::try_cast_slice(&received.bytes()[..len * WORD]);
        words.map(<[u64]>::to_vec).map_err(|error| Error::Internal(format!("words are misaligned: {error}")))
    }

    /// Returns the difference between the calls of this rank and another one.
    fn find_difference(&self, context: &CallContext<'_>) -> Result<Error> {
        // The length of the signature, and the signature.
        const WORDS: usize = 1 + Signature::ENCODED_MAX.div_ceil(WORD);
        let encoded = wire::encode(|to| context.signature.encode(to));
        let mut own = vec![0; WORDS];
        own[0] = encoded.len() as u64;
        let body: &mut [u8] = bytemuck::cast_slice_mut(&mut own[1..]);
        body[..encoded.len()].copy_from_slice(&encoded);
        let all = self.all_words(&own, context)?;
        let rank = self.group.rank();
        let mut others = all.chunks_exact(WORDS).enumerate().filter(|(other, _)| *other != rank);
        let (peer, theirs) = match others.find(|(_, words)| *words != own) {
            Some((peer, words)) => (peer, decode(words)),
            // Unequal signatures of the other ranks have the fingerprint of this one.
            None => (usize::from(rank == 0), None),
        };
        let ours = (rank, Some(context.signature.clone()));
        Ok(Error::Desync(Box::new(Desync::new(context.sequence, ours, (peer, theirs)))))
    }
}

/// Decodes a signature of another rank. `None` if it is malformed, as that of another version.
fn decode(words: &[u64]) -> Option<Signature> {
    let (len, body) = words.split_first()?;
    let bytes: &[u8] = bytemuck::cast_slice(body);
    let encoded = bytes.get(..usize::try_from(*len).ok()?)?;
    wire::decode(encoded, Signature::decode).ok()
}

/// Returns the memory of a collective of words.
fn words(
    own: &[u64],
    collective: Collective,
    counts: [BlockCounts; 2],
    received: usize,
) -> Result<CallMemory> {
    let bytes: &[u8] = bytemuck::cast_slice(own);
    let mut send = Allocation::on_heap(bytes.len())?;
    send.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let recv = Allocation::on_heap(received * WORD)?;
    let [sent, received] = counts;
    let routine = Routine {
        collective,
        datatype: Datatype::word(),
        size: WORD,
        op: Some(OpHandle::max_of_words()),
        root: 0,
        send: sent,
        recv: received,
    };
    Ok(CallMemory { routine, send: Area::Staged(send), recv: Area::Staged(recv) })
}
