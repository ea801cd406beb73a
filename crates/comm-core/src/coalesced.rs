//! Many small buffers in one collective.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use bytemuck::cast_slice_mut;

use crate::call::check_len;
use crate::{Comm, Element, Host, ReduceOp, Result, Signature, copy};

/// The largest amount of memory, in bytes, that is kept for the next call. Calls that need more are
/// rare, because coalescing is for small buffers.
const KEPT_MAX: usize = 64 << 20;

/// The memory into which buffers are packed, shared by the calls of all clones of a handle. Words
/// of 8 bytes are aligned for every element.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packing(Arc<Mutex<Vec<u64>>>);

impl Packing {
    /// Passes memory for `elements` elements to `call`, with unspecified contents. Uses fresh
    /// memory if another thread is using the kept memory.
    pub(crate) fn with<T: Element, R>(&self, elements: usize, call: impl FnOnce(&mut [T]) -> R) -> R {
        let mut fresh = Vec::new();
        let mut kept = match self.0.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        };
        let words = kept.as_deref_mut().unwrap_or(&mut fresh);
        let bytes = elements * size_of::<T>();
        let needed = bytes.div_ceil(size_of::<u64>());
        if words.len() < needed {
            words.resize(needed, 0);
        }
        let result = call(cast_slice_mut(&mut cast_slice_mut::<u64, u8>(words)[..bytes]));
        if size_of_val(&words[..]) > KEPT_MAX {
            *words = Vec::new();
        }
        result
    }
}

/// Coalesced calls combine many buffers into one collective and so pay its latency once: the
/// buffers are copied into one, and the result is copied back. Any number of buffers of any lengths
/// is allowed, zero included. All ranks pass the same number of buffers with the same lengths, in
/// the same order; otherwise the call fails with [`Error::Desync`](crate::Error::Desync), even if
/// the totals are equal.
///
/// After an error the buffers are unchanged.
///
/// The order in which elements are combined depends on their position in the packed buffer, so
/// floating point results may differ in their last bits from those of one call per buffer, unless
/// the order is [`ReduceOrder::Deterministic`](crate::ReduceOrder::Deterministic).
impl Comm<Host> {
    /// Reduces many buffers with one [`Comm::all_reduce`].
    ///
    /// ```
    /// use comm::ReduceOp;
    ///
    /// comm::threads::run(2, |comm| {
    ///     let (mut weights, mut bias) = (vec![comm.rank() as f32; 1000], [3.0; 10]);
    ///     comm.all_reduce_coalesced(&mut [&mut weights[..], &mut bias], ReduceOp::Avg).unwrap();
    ///     assert_eq!((weights, bias), (vec![0.5; 1000], [3.0; 10]));
    ///     // A literal empty list needs an explicit type.
    ///     comm.all_reduce_coalesced::<f32, &mut [f32]>(&mut [], ReduceOp::Avg).unwrap();
    /// })?;
    /// # Ok::<_, comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Comm::all_reduce`], and [`Error::Desync`](crate::Error::Desync) if ranks pass
    /// different numbers of buffers or different lengths.
    pub fn all_reduce_coalesced<T: Element, B: AsMut<[T]>>(
        &self,
        buffers: &mut [B],
        op: ReduceOp,
    ) -> Result<()> {
        let lengths = lengths_mut(buffers);
        let total = lengths.iter().sum();
        self.packed(&lengths, total, |comm, packed| {
            pack_mut(buffers, packed);
            comm.all_reduce(&mut *packed, op)?;
            unpack(packed, buffers);
            Ok(())
        })
    }

    /// Broadcasts many buffers with one [`Comm::broadcast`].
    ///
    /// # Errors
    /// Same as [`Comm::broadcast`], and [`Error::Desync`](crate::Error::Desync) if ranks pass
    /// different numbers of buffers or different lengths.
    pub fn broadcast_coalesced<T: Element, B: AsMut<[T]>>(
        &self,
        root: usize,
        buffers: &mut [B],
    ) -> Result<()> {
        let lengths = lengths_mut(buffers);
        let total = lengths.iter().sum();
        self.packed(&lengths, total, |comm, packed| {
            let is_root = comm.rank() == root;
            if is_root {
                pack_mut(buffers, packed);
            }
            comm.broadcast(root, &mut *packed)?;
            if !is_root {
                unpack(packed, buffers);
            }
            Ok(())
        })
    }

    /// Gathers many buffers with one [`Comm::all_gather`]: `recvs[i]`, which is `size` times as
    /// long as `sends[i]`, receives the `sends[i]` of all ranks in rank order.
    ///
    /// # Errors
    /// Same as [`Comm::all_gather`], and [`Error::Desync`](crate::Error::Desync) if ranks pass
    /// different numbers of buffers or different lengths.
    pub fn all_gather_coalesced<T: Element, S: AsRef<[T]>, R: AsMut<[T]>>(
        &self,
        sends: &[S],
        recvs: &mut [R],
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.size());
        let lengths: Vec<usize> = sends.iter().map(|send| send.as_ref().len()).collect();
        check(["the list of receive buffers", "a receive buffer"], ranks, &lengths, &lengths_mut(recvs))?;
        let share: usize = lengths.iter().sum();
        self.packed(&lengths, share * ranks, |comm, packed: &mut [T]| {
            let own = &mut packed[rank * share..][..share];
            for (send, at) in sends.iter().zip(ranges(&lengths)) {
                copy(&mut own[at], send.as_ref());
            }
            comm.all_gather_in_place(&mut *packed)?;
            for (recv, at) in recvs.iter_mut().zip(ranges(&lengths)) {
                let blocks = recv.as_mut().chunks_exact_mut(at.len().max(1));
                for (rank, block) in blocks.enumerate() {
                    copy(block, &packed[rank * share..][at.clone()]);
                }
            }
            Ok(())
        })
    }

    /// Reduces and scatters many buffers with one [`Comm::reduce_scatter`]: `recvs[i]` gets this
    /// rank's block of the reduction of `sends[i]`, which has one block of the length of `recvs[i]`
    /// per rank.
    ///
    /// # Errors
    /// Same as [`Comm::reduce_scatter`], and [`Error::Desync`](crate::Error::Desync) if ranks pass
    /// different numbers of buffers or different lengths.
    pub fn reduce_scatter_coalesced<T: Element, S: AsRef<[T]>, R: AsMut<[T]>>(
        &self,
        sends: &[S],
        recvs: &mut [R],
        op: ReduceOp,
    ) -> Result<()> {
        let (rank, ranks) = (self.rank(), self.size());
        let lengths = lengths_mut(recvs);
        let sent: Vec<usize> = sends.iter().map(|send| send.as_ref().len()).collect();
        check(["the list of send buffers", "a send buffer"], ranks, &lengths, &sent)?;
        let share: usize = lengths.iter().sum();
        self.packed(&lengths, share * ranks, |comm, packed: &mut [T]| {
            for (send, at) in sends.iter().zip(ranges(&lengths)) {
                for (rank, block) in send.as_ref().chunks_exact(at.len().max(1)).enumerate() {
                    copy(&mut packed[rank * share..][at.clone()], block);
                }
            }
            comm.reduce_scatter_in_place(&mut *packed, op)?;
            unpack(&packed[rank * share..][..share], recvs);
            Ok(())
        })
    }

    /// Makes a call with packing memory for `elements` elements, on a handle whose fingerprint
    /// covers the lengths.
    fn packed<T: Element>(
        &self,
        lengths: &[usize],
        elements: usize,
        call: impl FnOnce(&Self, &mut [T]) -> Result<()>,
    ) -> Result<()> {
        let lengths = lengths.iter().map(|&length| length as u64);
        let comm =
            self.with_extra_fingerprint(Signature::fingerprint_of(lengths.chain([self.extra_fingerprint()])));
        self.packing().with(elements, |packed| call(&comm, packed))
    }
}

/// Checks that there is a buffer for each of `lengths`, each `ranks` times as long.
fn check([list, each]: [&'static str; 2], ranks: usize, lengths: &[usize], got: &[usize]) -> Result<()> {
    check_len(list, got.len(), lengths.len())?;
    let mut pairs = got.iter().zip(lengths);
    pairs.try_for_each(|(&got, &one)| check_len(each, got, one.saturating_mul(ranks)))
}

fn lengths_mut<T, B: AsMut<[T]>>(buffers: &mut [B]) -> Vec<usize> {
    buffers.iter_mut().map(|buffer| buffer.as_mut().len()).collect()
}

/// Returns the ranges of consecutive buffers of these lengths.
fn ranges(lengths: &[usize]) -> impl Iterator<Item = Range<usize>> {
    lengths.iter().scan(0, |end, length| {
        let start = *end;
        *end += length;
        Some(start..*end)
    })
}

fn pack_mut<T: Copy, B: AsMut<[T]>>(buffers: &mut [B], mut packed: &mut [T]) {
    for buffer in buffers {
        let buffer = buffer.as_mut();
        let (into, rest) = packed.split_at_mut(buffer.len());
        copy(into, buffer);
        packed = rest;
    }
}

fn unpack<T: Copy, B: AsMut<[T]>>(mut packed: &[T], buffers: &mut [B]) {
    for buffer in buffers {
        let buffer = buffer.as_mut();
        let (from, rest) = packed.split_at(buffer.len());
        copy(buffer, from);
        packed = rest;
    }
}
