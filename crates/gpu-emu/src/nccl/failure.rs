//! The failures of NCCL calls.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::Mutex;

use nccl_sys::ncclResult_t;

use crate::driver::CuError;
use crate::sync::lock;

/// A result other than success, with the text for `ncclGetLastError`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: ncclResult_t,
    pub(crate) words: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: ncclResult_t, words: impl Into<String>) -> Self {
        Self { code, words: words.into() }
    }

    pub(crate) fn argument(words: impl Into<String>) -> Self {
        Self::new(ncclResult_t::ncclInvalidArgument, words)
    }

    pub(crate) fn usage(words: impl Into<String>) -> Self {
        Self::new(ncclResult_t::ncclInvalidUsage, words)
    }

    /// Creates the result of a call that has not completed, which is not an error.
    pub(crate) fn in_progress() -> Self {
        Self::new(ncclResult_t::ncclInProgress, "")
    }

    /// Creates the result of an operation whose communicator was aborted.
    pub(crate) fn aborted() -> Self {
        Self::new(ncclResult_t::ncclInternalError, "aborted")
    }
}

impl From<CuError> for Failure {
    fn from(error: CuError) -> Self {
        Self::new(ncclResult_t::ncclUnhandledCudaError, format!("Cuda failure {}", error.0))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(ncclResult_t::ncclSystemError, error.to_string())
    }
}

/// All texts, each stored once and never freed, because C callers may keep the address.
static TEXTS: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
static LAST: Mutex<&'static CStr> = Mutex::new(c"");

/// Stores the text of `failure` for `ncclGetLastError`, if there is any.
pub(super) fn remember(failure: &Failure) {
    if failure.words.is_empty() {
        return;
    }
    let text = CString::new(failure.words.replace('\0', "")).unwrap_or_default();
    let mut texts = lock(&TEXTS);
    let kept = texts.get(text.as_c_str()).copied().unwrap_or_else(|| {
        let kept: &'static CStr = Box::leak(text.into_boxed_c_str());
        texts.insert(kept);
        kept
    });
    *lock(&LAST) = kept;
}

pub(super) fn last() -> &'static CStr {
    *lock(&LAST)
}
