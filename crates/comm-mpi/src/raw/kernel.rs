//! Kernels of comm-core as operators of MPI.
//!
//! MPI passes only the type to an operator's function. So every reduction has a type of its own, by
//! which the function finds it.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use comm_core::{Error, RecvBuf, Reduction, Result};
use mpi::ffi;

use super::runtime::call;
use super::types::{Datatype, OpHandle, contiguous};

/// A reduction that MPI calls.
#[derive(Debug)]
pub(crate) struct Kernel {
    reduction: Reduction,
    datatype: Datatype,
    /// The message of the first panic of a user-defined operator. Afterwards results may be wrong.
    panic: OnceLock<String>,
}

/// All reductions that were used so far. They exist until the process ends.
static KERNELS: RwLock<Vec<&'static Kernel>> = RwLock::new(Vec::new());

/// Whether MPI passed a type that is in none of [`KERNELS`].
static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);

static OP: OnceLock<Result<OpHandle>> = OnceLock::new();

impl Kernel {
    /// Returns the kernel of a reduction.
    pub(super) fn of(reduction: Reduction) -> Result<&'static Self> {
        let find =
            |kernels: &[&'static Self]| kernels.iter().copied().find(|kernel| kernel.reduction == reduction);
        if let Some(kernel) = find(&KERNELS.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(kernel);
        }
        // Not created under the lock, which a thread takes in a call of MPI.
        let datatype = contiguous(reduction.dtype().size())?;
        let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
        Ok(find(&kernels).unwrap_or_else(|| {
            let kernel = Box::leak(Box::new(Self { reduction, datatype, panic: OnceLock::new() }));
            kernels.push(kernel);
            kernel
        }))
    }

    pub(super) const fn datatype(&self) -> Datatype {
        self.datatype
    }

    /// Returns an error if the kernel did not combine all elements that it was called for.
    pub(crate) fn check(&self) -> Result<()> {
        if IS_UNKNOWN.load(Ordering::Acquire) {
            let text = "this MPI passes a type to an operator that is not the one of the call";
            return Err(Error::Internal(text.into()));
        }
        match self.panic.get() {
            Some(message) => Err(Error::Panicked { message: message.clone() }),
            None => Ok(()),
        }
    }

    fn combine(&self, into: &mut [u8], from: &[u8]) {
        // Operators commute, so the order of the operands does not matter.
        let combined =
            catch_unwind(AssertUnwindSafe(|| self.reduction.combine(into, None, RecvBuf::from_slice(from))));
        if let Err(panic) = combined {
            // Only the first message is kept.
            let _ = self.panic.set(message(&*panic).to_owned());
        }
    }
}

/// Returns the operator of all kernels.
pub(super) fn kernel_op() -> Result<OpHandle> {
    let create = || {
        // SAFETY: the value of a constant of the library, as a place for the operator.
        let mut op = OpHandle(unsafe { ffi::RSMPI_SUM });
        call("create an operator", || {
            // SAFETY: the function has the type that MPI needs, and exists as long as the process.
            unsafe { ffi::MPI_Op_create(Some(combine), 1, &raw mut op.0) }
        })?;
        Ok(op)
    };
    OP.get_or_init(create).clone()
}

/// Combines elements: the `MPI_User_function` of [`kernel_op`].
///
/// # Safety
/// Called by MPI, with `len` elements of the type at both addresses.
unsafe extern "C" fn combine(
    from: *mut c_void,
    into: *mut c_void,
    len: *mut c_int,
    datatype: *mut ffi::MPI_Datatype,
) {
    // SAFETY: MPI passes the address of a type.
    let datatype = Datatype(unsafe { *datatype });
    // SAFETY: MPI passes the address of a length.
    let len = usize::try_from(unsafe { *len }).unwrap_or(0);
    let kernel = {
        let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
        kernels.iter().copied().find(|kernel| kernel.datatype == datatype)
    };
    let Some(kernel) = kernel else {
        IS_UNKNOWN.store(true, Ordering::Release);
        return;
    };
    let bytes = len * kernel.reduction.dtype().size();
    if bytes == 0 {
        return;
    }
    // SAFETY: MPI passes `len` elements to read.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
    // SAFETY: MPI passes `len` elements to change, which do not overlap the others.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), bytes) };
    kernel.combine(into, from);
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
