//! The handle of an NCCL communicator. Only this module and its children call NCCL.
//!
//! Invariants of the callers: one thread at a time uses a handle, and the device is current in that
//! thread.

#![allow(unsafe_code)]

mod division;
mod launch;
mod memory;

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

use comm_core::{Error, Group, Invalid, Result};
use nccl_sys::{
    MissingSymbol, NCCL_CONFIG_INITIALIZER, Nccl, ncclComm_t, ncclConfig_t, ncclResult_t, ncclUniqueId,
};

use crate::error;
use crate::unique_id::UniqueId;

pub(crate) use division::{CommInit, NO_COLOR, RegistrationHandle};
pub(crate) use launch::{Op, OpKind};
pub(crate) use memory::{allocate, free};

/// The progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It has completed.
    Ready,
    /// It is in progress. Until it completes, only `progress` and `abort` may be called.
    Busy,
}

/// The settings of a communicator; see [`NcclConfig`](crate::NcclConfig).
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) blocking: bool,
    pub(crate) min_ctas: Option<u32>,
    pub(crate) max_ctas: Option<u32>,
    /// Kept as long as the communicator, because not every version of NCCL copies it.
    pub(crate) name: Option<Arc<CString>>,
}

impl Setup {
    fn config(&self) -> ncclConfig_t {
        let number =
            |value: Option<u32>, unset| value.and_then(|value| c_int::try_from(value).ok()).unwrap_or(unset);
        ncclConfig_t {
            blocking: c_int::from(self.blocking),
            minCTAs: number(self.min_ctas, NCCL_CONFIG_INITIALIZER.minCTAs),
            maxCTAs: number(self.max_ctas, NCCL_CONFIG_INITIALIZER.maxCTAs),
            commName: self.name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()),
            ..NCCL_CONFIG_INITIALIZER
        }
    }
}

/// A communicator of NCCL. Dropping it aborts it, unless it was destroyed.
#[derive(Debug)]
pub(crate) struct Handle {
    nccl: Arc<Nccl>,
    comm: ncclComm_t,
    setup: Setup,
}

impl Handle {
    /// Starts to create a communicator of all ranks with the same id, on the device that is current
    /// in the thread.
    pub(crate) fn init(
        nccl: &Arc<Nccl>,
        id: &UniqueId,
        group: Group,
        setup: Setup,
    ) -> Result<(Self, Progress)> {
        let mut handle = Self { nccl: Arc::clone(nccl), comm: ncclComm_t::NULL, setup };
        let mut config = handle.setup.config();
        let (size, rank) = (number(group.size())?, number(group.rank())?);
        let id = ncclUniqueId { internal: id.as_bytes().map(|byte| byte as c_char) };
        // SAFETY: both pointers point to values that outlive the call, and the name in the
        // configuration lives as long as the handle.
        let code =
            unsafe { nccl.ncclCommInitRankConfig(&raw mut handle.comm, size, id, rank, &raw mut config) };
        let progress = handle.progress_of("ncclCommInitRankConfig", code)?;
        if handle.comm.is_null() {
            return Err(Error::Backend {
                backend: "nccl",
                code: 0,
                detail: "no communicator, and no error".into(),
            });
        }
        Ok((handle, progress))
    }

    /// Polls the last call, and returns any asynchronous error of the communicator.
    pub(crate) fn progress(&self) -> Result<Progress> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator exists as long as the handle, and the answer is written to a
        // value that lives here.
        let asked = unsafe { self.nccl.ncclCommGetAsyncError(self.comm, &raw mut state) };
        self.progress_of("ncclCommGetAsyncError", asked)?;
        self.progress_of("a call of NCCL in the background", Ok(state))
    }

    /// Starts to finalize the communicator after all enqueued work.
    pub(crate) fn finalize(&self) -> Result<Progress> {
        // SAFETY: the communicator exists as long as the handle.
        let code = unsafe { self.nccl.ncclCommFinalize(self.comm) };
        self.progress_of("ncclCommFinalize", code)
    }

    /// Frees a communicator that was finalized.
    pub(crate) fn destroy(mut self) -> Result<()> {
        let comm = std::mem::replace(&mut self.comm, ncclComm_t::NULL);
        // SAFETY: the communicator exists, and is not used again.
        let code = unsafe { self.nccl.ncclCommDestroy(comm) };
        self.progress_of("ncclCommDestroy", code).map(|_| ())
    }

    /// Aborts the communicator: work on the device ends without a result.
    pub(crate) fn abort(mut self) {
        self.abort_once();
    }

    fn abort_once(&mut self) {
        let comm = std::mem::replace(&mut self.comm, ncclComm_t::NULL);
        if comm.is_null() {
            return;
        }
        // SAFETY: the communicator exists, and is not used again.
        let code = unsafe { self.nccl.ncclCommAbort(comm) };
        if let Err(error) = self.progress_of("ncclCommAbort", code) {
            tracing::warn!(%error, "could not abort an NCCL communicator");
        }
    }

    /// Converts a result of NCCL to progress or an error.
    fn progress_of(&self, call: &str, answer: Result<ncclResult_t, MissingSymbol>) -> Result<Progress> {
        match answer.map_err(error::missing)? {
            ncclResult_t::ncclSuccess => Ok(Progress::Ready),
            ncclResult_t::ncclInProgress => Ok(Progress::Busy),
            code => Err(error::nccl(&self.nccl, call, code)),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.abort_once();
    }
}

/// Creates a unique id.
pub(crate) fn unique_id(nccl: &Nccl) -> Result<UniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the answer is written to a value that lives here.
    let code = unsafe { nccl.ncclGetUniqueId(&raw mut id) }.map_err(error::missing)?;
    if code != ncclResult_t::ncclSuccess {
        return Err(error::nccl(nccl, "ncclGetUniqueId", code));
    }
    Ok(UniqueId::new(id.internal.map(|byte| byte as u8)))
}

/// Converts a rank or a number of ranks to C's type.
fn number(ranks: usize) -> Result<c_int> {
    c_int::try_from(ranks).map_err(|_| Invalid::Rank { rank: ranks, size: c_int::MAX as usize }.into())
}
