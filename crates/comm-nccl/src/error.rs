//! Conversions of CUDA and NCCL error codes.

use comm_core::Error;
use cudarc::driver::DriverError;
use nccl_sys::{LoadError, MissingSymbol, Nccl, ncclResult_t};

pub(crate) const CUDA: &str = "cuda";
pub(crate) const NCCL: &str = "nccl";

/// Returns a conversion for errors of the CUDA driver. `doing` describes the attempted operation.
pub(crate) fn cuda(doing: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Backend {
        backend: CUDA,
        code: i64::from(error.0 as u32),
        detail: format!("{doing}: {error}"),
    }
}

/// Returns the error of an NCCL call that returned `code`, which may be unknown.
pub(crate) fn nccl(library: &Nccl, call: &str, code: ncclResult_t) -> Error {
    let mut detail = format!("{call}: {}", library.error_string(code));
    if let Some(words) = library.last_error() {
        detail.push_str("; ");
        detail.push_str(words.trim_end());
    }
    Error::Backend { backend: NCCL, code: i64::from(code.0), detail }
}

pub(crate) fn unavailable(backend: &'static str, detail: impl Into<String>) -> Error {
    Error::BackendUnavailable { backend, detail: detail.into() }
}

pub(crate) fn missing(symbol: MissingSymbol) -> Error {
    unavailable(NCCL, symbol.to_string())
}

pub(crate) fn not_loaded(error: LoadError) -> Error {
    unavailable(NCCL, error.to_string())
}
