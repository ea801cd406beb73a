//! A loaded NCCL library.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::path::{Path, PathBuf};

use crate::bindings::Symbols;
use crate::{
    Attempt, Call, LoadError, MissingSymbol, Refusal, Search, Version, locate, ncclComm_t, ncclResult_t,
};

/// A call of every NCCL and of no other library.
const VERSION_CALL: &str = "ncclGetVersion";

/// A loaded NCCL library with one method per call. It can be shared between threads.
///
/// Methods named `nccl...` are calls of NCCL. They are unsafe: handles, pointers and lengths must
/// be as NCCL documents them. They return [`MissingSymbol`], without any effect, if this library
/// lacks the call, and otherwise the result of the call, which must be checked too. All other
/// methods are safe.
///
/// The library stays loaded until the process exits, because NCCL starts threads.
#[derive(Debug)]
pub struct Nccl {
    symbols: Symbols,
    version: Version,
    path: PathBuf,
}

impl Nccl {
    /// Loads the library that `search` finds.
    ///
    /// Loading runs code of the library. The caller, who names the file or controls the
    /// environment, vouches for it.
    ///
    /// # Errors
    ///
    /// If no library was found, or what was found is not NCCL or older than [`Version::FLOOR`]. The
    /// error lists every attempted path with the reason. The caller may retry after an
    /// installation.
    pub fn load(search: &Search) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for (origin, path) in search.candidates() {
            match Self::open(&path) {
                Ok(library) => return Ok(library),
                Err(refusal) => attempts.push(Attempt { path, origin, refusal }),
            }
        }
        Err(LoadError { attempts })
    }

    fn open(path: &Path) -> Result<Self, Refusal> {
        // SAFETY: the caller vouches for the code that runs when the library is loaded.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| Refusal::Loader { message: innermost(&error) })?;
        // SAFETY: no other library has calls of these names, and it is never unloaded (see `forget`
        // below).
        let symbols = unsafe { Symbols::of(&library) };
        mem::forget(library);

        let Some(get_version) = symbols.ncclGetVersion else {
            return Err(Refusal::NotNccl { path: path.to_owned(), symbol: VERSION_CALL });
        };
        let path = locate::file_of(get_version as *const c_void).unwrap_or_else(|| path.to_owned());
        let mut code: c_int = 0;
        // SAFETY: NCCL writes one integer, and needs no initialization.
        let result = unsafe { get_version(&raw mut code) };
        let version = match u32::try_from(code) {
            Ok(code) if result == ncclResult_t::ncclSuccess => Version::from_code(code),
            _ => return Err(Refusal::NoVersion { path, result }),
        };
        if version < Version::FLOOR {
            return Err(Refusal::TooOld { path, found: version });
        }
        Ok(Self { symbols, version, path })
    }

    /// Returns the version that the library reports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the file of the library, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns every call of these bindings, with the version that introduced it and whether this
    /// library has it.
    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.symbols.present().map(|(name, present)| Call::new(name, present))
    }

    /// Checks that the library has the call `symbol`.
    ///
    /// # Errors
    ///
    /// If it does not. The error contains the version that introduced the call, or
    /// [`Version::FLOOR`] for an unknown name.
    pub fn require(&self, symbol: &'static str) -> Result<(), MissingSymbol> {
        let has = self.calls().any(|call| call.present && call.name == symbol);
        if has { Ok(()) } else { Err(self.missing(symbol)) }
    }

    /// Returns the library's description of `result`, such as `invalid argument (run with
    /// NCCL_DEBUG=WARN for details)`.
    ///
    /// Any number is valid. The text differs between versions and is not meant for comparison.
    pub fn error_string(&self, result: ncclResult_t) -> Cow<'static, str> {
        // SAFETY: any number is valid, and no initialization is needed.
        let words = unsafe { self.ncclGetErrorString(result) }.ok().and_then(|words| {
            // SAFETY: a constant of the library, which is never unloaded.
            unsafe { text(words) }
        });
        words.map_or_else(|| format!("NCCL result {}", result.0).into(), CStr::to_string_lossy)
    }

    /// Returns the library's description of the last error in this process, if there was one.
    ///
    /// NCCL has one such text for all threads, so another thread may overwrite it.
    pub fn last_error(&self) -> Option<String> {
        // SAFETY: the null communicator is valid, and the call returns the address of a text.
        let words = unsafe { self.ncclGetLastError(ncclComm_t::NULL) }.ok().and_then(|words| {
            // SAFETY: the text is in a static buffer of the library, which always contains a zero.
            unsafe { text(words) }
        })?;
        let words = words.to_string_lossy();
        (!words.is_empty()).then(|| words.into_owned())
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    pub(crate) fn missing(&self, symbol: &'static str) -> MissingSymbol {
        MissingSymbol::new(symbol, self.version, self.path.clone())
    }
}

/// Returns the text at `words`, unless it is null.
///
/// # Safety
///
/// The text ends with a zero, and stays valid until the process exits.
unsafe fn text(words: *const c_char) -> Option<&'static CStr> {
    if words.is_null() {
        return None;
    }
    // SAFETY: not null, and otherwise as the caller guarantees.
    Some(unsafe { CStr::from_ptr(words) })
}

/// Returns the message of the system's loader, which is the innermost source of the error of
/// libloading.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
