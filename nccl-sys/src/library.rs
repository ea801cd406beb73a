//! A loaded NCCL.

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

/// What every NCCL has, and nothing else does.
const VERSION_CALL: &str = "ncclGetVersion";

/// A loaded NCCL, with one method per call. All threads may share it.
///
/// Methods named `nccl...` are the calls of NCCL: unsafe, as handles, pointers and lengths must be
/// as NCCL documents them; and an error, [`MissingSymbol`], if this library does not have the call,
/// in which case nothing was done. What the call itself answers is inside, and must be looked at as
/// well. All others are safe.
///
/// The library stays loaded until the process ends, as NCCL has threads of its own.
#[derive(Debug)]
pub struct Nccl {
    symbols: Symbols,
    version: Version,
    path: PathBuf,
}

impl Nccl {
    /// Loads the library where `search` says.
    ///
    /// Code of the library runs while it is loaded. Whoever names a file, or controls the
    /// environment if that is searched, vouches for it.
    ///
    /// # Errors
    ///
    /// Nothing was found, or what was found is not NCCL or older than [`Version::FLOOR`]. The error
    /// names every path that was tried, with the reason. To try again is allowed, and finds what
    /// was installed meanwhile.
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
        // SAFETY: what runs while a library is loaded is vouched for by whoever named it.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| Refusal::Loader { words: innermost(&error) })?;
        // SAFETY: no other library has calls of these names, and it is never unloaded: it is
        // forgotten below.
        let symbols = unsafe { Symbols::of(&library) };
        mem::forget(library);

        let Some(get_version) = symbols.ncclGetVersion else {
            return Err(Refusal::NotNccl { path: path.to_owned(), symbol: VERSION_CALL });
        };
        let path = locate::file_of(get_version as *const c_void).unwrap_or_else(|| path.to_owned());
        let mut code: c_int = 0;
        // SAFETY: NCCL writes one integer, and needs nothing to be initialized for that.
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

    /// The version that the library says it is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file that the library was loaded from, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every call of these bindings, since when there is one, and whether this library has it.
    pub fn calls(&self) -> impl Iterator<Item = Call> {
        self.symbols.present().into_iter().map(|(name, present)| Call::new(name, present))
    }

    /// Succeeds if the library has the call named `symbol`.
    ///
    /// # Errors
    ///
    /// It does not. The error says which version brought the call; for a name that is none, that is
    /// [`Version::FLOOR`].
    pub fn require(&self, symbol: &'static str) -> Result<(), MissingSymbol> {
        let has = self.calls().any(|call| call.present && call.name == symbol);
        if has { Ok(()) } else { Err(self.missing(symbol)) }
    }

    /// What `result` means, in the words of the library: `invalid argument (run with
    /// NCCL_DEBUG=WARN for details)`.
    ///
    /// Any number is allowed. The words are different from version to version, and not to be
    /// compared.
    pub fn error_string(&self, result: ncclResult_t) -> Cow<'static, str> {
        // SAFETY: any number is allowed, and nothing needs to be initialized.
        let words = unsafe { self.ncclGetErrorString(result) }.ok().and_then(|words| {
            // SAFETY: a constant of the library, which is never unloaded.
            unsafe { text(words) }
        });
        words.map_or_else(|| format!("NCCL result {}", result.0).into(), CStr::to_string_lossy)
    }

    /// The last thing that went wrong in this process, in the words of the library, if anything
    /// did.
    ///
    /// NCCL has one such text for all threads. What one thread reads while another thread fails may
    /// be about either.
    pub fn last_error(&self) -> Option<String> {
        // SAFETY: without a communicator, the call gives the address of a text.
        let words = unsafe { self.ncclGetLastError(ncclComm_t::NULL) }.ok().and_then(|words| {
            // SAFETY: the text has room of its own in the library, and always ends within it.
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

/// The text at `words`, if there is one.
///
/// # Safety
///
/// A text there ends with a zero, and stays until the process ends.
unsafe fn text(words: *const c_char) -> Option<&'static CStr> {
    if words.is_null() {
        return None;
    }
    // SAFETY: not null, and the rest is what the caller promises.
    Some(unsafe { CStr::from_ptr(words) })
}

/// The words of the system's loader, which lie behind those of libloading.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
