//! The collectives of LightGBM's distributed training, over comm.
//!
//! LightGBM takes a reduce-scatter and an all-gather as C functions
//! (`LGBM_NetworkInitWithFunctions`), in place of its own sockets. [`Network`] passes it those of
//! this file, which needs no other of this package.
//!
//! A reduction combines the contributions in the order of the ranks, so the result depends on
//! neither time nor transport. LightGBM keeps its network per thread, and calls the functions on
//! the thread that trains; so does this file.
//!
//! LightGBM's functions return nothing, so an error cannot reach the caller of a training step.
//! They must not return without a result either, because LightGBM would go on with what is in its
//! memory. Therefore they print the error, which names the ranks at fault, abort the calls of the
//! other ranks, and end the process by [`process::abort`].

#![allow(unsafe_code)]

mod python;

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{c_char, c_int};
use std::io::{Write, stderr};
use std::iter::successors;
use std::marker::PhantomData;
use std::{process, ptr, slice};

use comm::{AsViewMut, Buffers, Call, Comm, Counts};

/// LightGBM's `ReduceFunction`: combines `len` bytes at `input` with those at `output`, as elements
/// of `type_size` bytes.
pub type Reducer =
    unsafe extern "C" fn(input: *const c_char, output: *mut c_char, type_size: c_int, len: i32);

/// LightGBM's `ReduceScatterFunction`. All lengths are in bytes; the reducer is a reference of C++,
/// which is an address.
pub type ReduceScatter = unsafe extern "C" fn(
    input: *mut c_char,
    input_size: i32,
    type_size: c_int,
    block_start: *const i32,
    block_len: *const i32,
    num_block: c_int,
    output: *mut c_char,
    output_size: i32,
    reducer: *const Reducer,
);

/// LightGBM's `AllgatherFunction`. All lengths are in bytes; `input` may be the first bytes of
/// `output`.
pub type AllGather = unsafe extern "C" fn(
    input: *mut c_char,
    input_size: i32,
    block_start: *const i32,
    block_len: *const i32,
    num_block: c_int,
    output: *mut c_char,
    output_size: i32,
);

/// `LGBM_NetworkInitWithFunctions`.
pub type NetworkInit =
    unsafe extern "C" fn(num_machines: c_int, rank: c_int, ReduceScatter, AllGather) -> c_int;

/// `LGBM_NetworkFree`.
pub type NetworkFree = unsafe extern "C" fn() -> c_int;

/// The functions of a loaded LightGBM.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Functions {
    init: NetworkInit,
    free: NetworkFree,
}

impl Functions {
    /// Describes a loaded library.
    ///
    /// # Safety
    /// Both are the functions of these names of one LightGBM, which stays loaded.
    #[must_use]
    pub unsafe fn new(init: NetworkInit, free: NetworkFree) -> Self {
        Self { init, free }
    }
}

/// The network of LightGBM on this thread, which has it until this is dropped.
///
/// Datasets and boosters that are created on the thread meanwhile with the parameters
/// `num_machines`, the number of ranks, and `tree_learner`, which is `data` or `voting`, are
/// distributed: every rank passes its own rows, and all get the same trees.
#[derive(Debug)]
pub struct Network {
    free: NetworkFree,
    /// LightGBM's network belongs to a thread.
    of_thread: PhantomData<*const ()>,
}

impl Network {
    /// Makes `comm` the network of LightGBM on this thread. Every rank does so.
    ///
    /// # Errors
    /// [`NetworkError::InUse`] if the thread has a `Network` already, and
    /// [`NetworkError::Refused`].
    pub fn new(functions: Functions, comm: Comm) -> Result<Self, NetworkError> {
        let (size, rank) = (to_int(comm.size())?, to_int(comm.rank())?);
        SESSION.with_borrow_mut(|session| match session {
            Some(_) => Err(NetworkError::InUse),
            None => {
                *session = Some(Session { comm, received: Vec::new() });
                Ok(())
            }
        })?;
        let network = Self { free: functions.free, of_thread: PhantomData };
        // SAFETY: the creator of `functions` guarantees that it is this function of LightGBM, whose
        // types these are.
        let code = unsafe { (functions.init)(size, rank, reduce_scatter, all_gather) };
        if code == 0 { Ok(network) } else { Err(NetworkError::Refused) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // SAFETY: the creator of `Functions` guarantees that it is this function of LightGBM. It
        // cannot fail.
        unsafe { (self.free)() };
        SESSION.with_borrow_mut(Option::take);
    }
}

/// LightGBM cannot use a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The thread has a network.
    #[error("this thread has a network of LightGBM, which must be dropped first")]
    InUse,
    /// LightGBM numbers ranks with 32 bits.
    #[error("LightGBM cannot number {ranks} ranks")]
    TooManyRanks {
        /// The number of ranks, or a rank.
        ranks: usize,
    },
    /// `LGBM_NetworkInitWithFunctions` failed.
    #[error("LightGBM refused the functions of its network, as LGBM_GetLastError says")]
    Refused,
}

fn to_int(ranks: usize) -> Result<c_int, NetworkError> {
    c_int::try_from(ranks).map_err(|_| NetworkError::TooManyRanks { ranks })
}

/// The reason for which a collective of LightGBM cannot be done.
#[derive(Debug, thiserror::Error)]
enum CollectiveError {
    #[error("the thread has no network")]
    NoNetwork,
    #[error("LightGBM passed {blocks} blocks for {ranks} ranks")]
    Number { blocks: usize, ranks: usize },
    #[error(
        "LightGBM passed {len} bytes at {start} as the block of rank {rank}, which should be at {expected}"
    )]
    Layout { rank: usize, start: i32, len: i32, expected: usize },
    #[error("LightGBM passed blocks of {blocks} bytes in a buffer of {buffer}")]
    Length { blocks: usize, buffer: usize },
    #[error("LightGBM passed buffers that overlap")]
    Overlap,
    #[error(transparent)]
    Comm(#[from] comm::Error),
}

type Result<T, E = CollectiveError> = std::result::Result<T, E>;

thread_local! {
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// A network that is in use.
struct Session {
    comm: Comm,
    /// The contributions of all ranks to this rank's block, kept between calls.
    received: Vec<u8>,
}

impl Session {
    /// Checks that there is a block for each rank, without gaps and within `buffer` bytes, and
    /// returns their lengths.
    fn check_blocks(&self, starts: &[i32], lens: &[i32], buffer: i32) -> Result<Vec<usize>> {
        let ranks = self.comm.size();
        if lens.len() != ranks {
            return Err(CollectiveError::Number { blocks: lens.len(), ranks });
        }
        let mut expected = 0;
        let mut checked = Vec::with_capacity(ranks);
        for (rank, (&start, &len)) in starts.iter().zip(lens).enumerate() {
            let layout = CollectiveError::Layout { rank, start, len, expected };
            match usize::try_from(len) {
                Ok(len) if usize::try_from(start) == Ok(expected) => {
                    checked.push(len);
                    expected += len;
                }
                _ => return Err(layout),
            }
        }
        let buffer = usize::try_from(buffer).unwrap_or(0);
        if expected > buffer {
            Err(CollectiveError::Length { blocks: expected, buffer })
        } else {
            Ok(checked)
        }
    }

    /// Sends each rank its block of `send`, and combines the blocks that all ranks sent to this one
    /// in `recv`, in the order of the ranks.
    fn reduce_scatter(
        &mut self,
        send: &[u8],
        lens: &[usize],
        recv: &mut [u8],
        reduce: impl Fn(&[u8], &mut [u8]),
    ) -> Result<()> {
        let (size, len) = (self.comm.size(), recv.len());
        // Shorter calls leave its length, so that longer ones need not write zeros again.
        if self.received.len() < size * len {
            self.received.resize(size * len, 0);
        }
        let received = &mut self.received[..size * len];
        self.comm.all_to_all_v(send, lens, received, &vec![len; size])?;
        if len == 0 {
            return Ok(());
        }
        let mut contributions = received.chunks_exact(len);
        if let Some(first) = contributions.next() {
            recv.copy_from_slice(first);
        }
        contributions.for_each(|contribution| reduce(contribution, recv));
        Ok(())
    }

    /// Gathers the blocks of all ranks in `buffer`, which has this rank's at its place.
    fn all_gather(&self, lens: &[usize], buffer: &mut [u8]) -> Result<()> {
        let buffers = Buffers::InPlace(buffer.as_view_mut()?);
        let call = Call::AllGather { buffers, counts: Counts::PerRank(lens) };
        Ok(self.comm.communicator().run(call, self.comm.options())?)
    }
}

/// The reduce-scatter that LightGBM calls.
///
/// # Safety
/// The arguments are those of LightGBM.
unsafe extern "C" fn reduce_scatter(
    input: *mut c_char,
    input_size: i32,
    type_size: c_int,
    block_start: *const i32,
    block_len: *const i32,
    num_block: c_int,
    output: *mut c_char,
    output_size: i32,
    reducer: *const Reducer,
) {
    run("reduce-scatter", |session| {
        // SAFETY: LightGBM passes this many numbers.
        let starts = unsafe { elements(block_start, num_block) };
        // SAFETY: as above.
        let lens = unsafe { elements(block_len, num_block) };
        let lens = session.check_blocks(starts, lens, input_size)?;
        let len = lens[session.comm.rank()];
        let capacity = usize::try_from(output_size).unwrap_or(0);
        if len > capacity {
            return Err(CollectiveError::Length { blocks: len, buffer: capacity });
        }
        let (input_start, output_start) = (input.addr(), output.addr());
        if input_start < output_start + len && output_start < input_start + lens.iter().sum::<usize>() {
            return Err(CollectiveError::Overlap);
        }
        // SAFETY: LightGBM passes this many bytes, and does not use them during the call.
        let send = unsafe { elements(input.cast_const().cast(), input_size) };
        // SAFETY: as above, and they do not overlap with the others.
        let recv = unsafe { elements_mut(output.cast(), len) };
        // SAFETY: LightGBM passes a reference to a function.
        let reducer = unsafe { *reducer };
        session.reduce_scatter(&send[..lens.iter().sum()], &lens, recv, |contribution, sum| {
            let (contribution, sum) = (contribution.as_ptr().cast(), sum.as_mut_ptr().cast());
            // SAFETY: both have `len` bytes, which fit in 32 bits, as they did in `block_len`.
            unsafe { reducer(contribution, sum, type_size, len as i32) };
        })
    });
}

/// The all-gather that LightGBM calls.
///
/// # Safety
/// The arguments are those of LightGBM.
unsafe extern "C" fn all_gather(
    input: *mut c_char,
    _input_size: i32,
    block_start: *const i32,
    block_len: *const i32,
    num_block: c_int,
    output: *mut c_char,
    output_size: i32,
) {
    run("all-gather", |session| {
        // SAFETY: LightGBM passes this many numbers.
        let starts = unsafe { elements(block_start, num_block) };
        // SAFETY: as above.
        let lens = unsafe { elements(block_len, num_block) };
        let lens = session.check_blocks(starts, lens, output_size)?;
        let rank = session.comm.rank();
        let own = output.wrapping_add(lens[..rank].iter().sum());
        // SAFETY: the block of this rank is within the output, with which the input may overlap.
        unsafe { ptr::copy(input.cast_const(), own, lens[rank]) };
        // SAFETY: LightGBM passes this many bytes, and does not use them during the call.
        let buffer = unsafe { elements_mut(output.cast(), lens.iter().sum()) };
        session.all_gather(&lens, buffer)
    });
}

/// Returns the elements of an array of LightGBM, which may be null if it has none.
///
/// # Safety
/// There are `len` elements, and nothing writes to them while the result is used.
unsafe fn elements<'a, T>(start: *const T, len: i32) -> &'a [T] {
    match usize::try_from(len) {
        // SAFETY: the caller guarantees it.
        Ok(len @ 1..) => unsafe { slice::from_raw_parts(start, len) },
        _ => &[],
    }
}

/// Returns the bytes of an array of LightGBM, which may be null if it has none.
///
/// # Safety
/// There are `len` bytes, and nothing else accesses them while the result is used.
unsafe fn elements_mut<'a>(start: *mut u8, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts_mut(start, len) }
}

/// Runs a collective of the network of this thread. Ends the process if it fails.
fn run(collective: &str, run: impl FnOnce(&mut Session) -> Result<()>) {
    SESSION.with_borrow_mut(|session| {
        let outcome = session.as_mut().ok_or(CollectiveError::NoNetwork).and_then(run);
        if let Err(error) = outcome {
            give_up(collective, &error, session.take());
        }
    });
}

/// Prints why a collective failed, lets the other ranks know, and ends the process.
fn give_up(collective: &str, error: &CollectiveError, session: Option<Session>) -> ! {
    let reason = with_causes(error);
    let rank = session.as_ref().map(|session| format!("rank {}: ", session.comm.rank())).unwrap_or_default();
    // If standard error is closed, the signal still tells that the process has failed.
    drop(writeln!(stderr(), "comm_lightgbm: {rank}the {collective} of LightGBM failed: {reason}"));
    if let Some(session) = session {
        session.comm.abort(&reason);
    }
    process::abort();
}

/// Returns the text of an error, followed by the texts of its causes.
fn with_causes(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests;
