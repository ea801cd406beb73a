//! The functions of C that `comm_lightgbm.py` calls.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use comm::Comm;

use crate::{Functions, Network, NetworkError, NetworkFree, NetworkInit, with_causes};

thread_local! {
    static CONNECTED: RefCell<Option<(Network, Comm)>> = const { RefCell::new(None) };
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Comm(#[from] comm::Error),
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// Connects this process to the other ranks, as its environment says, and makes them the network of
/// LightGBM on this thread. Writes the rank and the number of ranks. Returns 0, or -1 with the
/// reason as a text of C, cut to `capacity` bytes, at `message`.
///
/// # Safety
/// `init` and `free` are functions of a LightGBM that stays loaded; `rank`, `size` and `capacity`
/// bytes at `message` can be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn comm_lightgbm_connect(
    init: NetworkInit,
    free: NetworkFree,
    rank: *mut c_int,
    size: *mut c_int,
    message: *mut c_char,
    capacity: usize,
) -> c_int {
    // SAFETY: the caller guarantees it.
    let functions = unsafe { Functions::new(init, free) };
    match connect(functions) {
        Ok(numbers) => {
            // SAFETY: the caller guarantees that it can be written to.
            unsafe { *rank = numbers.0 };
            // SAFETY: as above.
            unsafe { *size = numbers.1 };
            0
        }
        Err(error) => {
            // SAFETY: the caller guarantees that it can be written to.
            unsafe { write_text(&error, message, capacity) };
            -1
        }
    }
}

/// Ends the network of this thread, and returns once all ranks have done so. Returns 0, or -1 with
/// the reason as for [`comm_lightgbm_connect`].
///
/// # Safety
/// `capacity` bytes at `message` can be written to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn comm_lightgbm_close(message: *mut c_char, capacity: usize) -> c_int {
    let Some((network, comm)) = CONNECTED.with_borrow_mut(Option::take) else {
        return 0;
    };
    drop(network);
    match comm.finalize() {
        Ok(()) => 0,
        Err(error) => {
            // SAFETY: the caller guarantees that it can be written to.
            unsafe { write_text(&error, message, capacity) };
            -1
        }
    }
}

/// Ends the network of this thread, and all calls of the other ranks.
///
/// # Safety
/// `reason` is a text of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn comm_lightgbm_abort(reason: *const c_char) {
    let Some((network, comm)) = CONNECTED.with_borrow_mut(Option::take) else {
        return;
    };
    drop(network);
    // SAFETY: the caller guarantees it.
    let reason = unsafe { CStr::from_ptr(reason) };
    comm.abort(&reason.to_string_lossy());
}

fn connect(functions: Functions) -> Result<(c_int, c_int), ConnectError> {
    let comm = comm::init()?;
    let numbers = (crate::to_int(comm.rank())?, crate::to_int(comm.size())?);
    let network = Network::new(functions, comm.clone())?;
    CONNECTED.set(Some((network, comm)));
    Ok(numbers)
}

/// Writes an error and its causes as a text of C.
///
/// # Safety
/// `capacity` bytes at `to` can be written to.
unsafe fn write_text(error: &dyn Error, to: *mut c_char, capacity: usize) {
    let text = with_causes(error);
    let Some(longest) = capacity.checked_sub(1) else {
        return;
    };
    let len = text.len().min(longest);
    // SAFETY: the caller guarantees that so many bytes can be written to.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len) };
    // SAFETY: this is the byte after them, and within the capacity.
    unsafe { *to.wrapping_add(len) = 0 };
}
