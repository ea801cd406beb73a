//! An exchange through PMIx, the process manager of Open MPI, whose library is loaded at run time.
//!
//! PMIx has no stable wire format, so processes use its library, of which each installation of Open
//! MPI has one. The functions and types below are equal in versions 2 to 6.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use comm_core::{Error, Result};
use libloading::Library;

const LIBRARY: &str = "libpmix.so.2";
/// `PMIX_MAX_NSLEN` and `PMIX_MAX_KEYLEN`, each with the byte that ends the text.
const NAMESPACE_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// `PMIX_GLOBAL`: processes of all hosts can get the value.
const GLOBAL: u8 = 3;
/// `PMIX_STRING`.
const STRING: u16 = 3;
const SUCCESS: c_int = 0;

/// `pmix_proc_t`.
#[repr(C)]
struct Process {
    namespace: [c_char; NAMESPACE_BYTES],
    rank: u32,
}

/// `pmix_value_t` with a text, the largest of whose other types has 24 bytes.
#[repr(C)]
struct Value {
    kind: u16,
    text: *const c_char,
    rest: [u64; 4],
}

type Init = unsafe extern "C" fn(*mut Process, *const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *const Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The functions of the library, which is never unloaded.
struct Functions {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    _library: Library,
}

/// Returns whether the library of PMIx can be loaded.
#[must_use]
pub fn is_available() -> bool {
    functions().is_ok()
}

/// Exchanges a text between all processes of the job: process 0 passes it, and every process gets
/// it, or `None` if there is none. Every process calls this. A process that waits for others uses a
/// thread, which goes on after a timeout.
///
/// The library counts its users, so a program may also call `MPI_Init`, but only before this: Open
/// MPI cannot start in a process that has left PMIx.
///
/// # Errors
/// [`Error::Io`] if the library cannot be loaded, a call of it fails, or other processes do not
/// call this in time ([`io::ErrorKind::TimedOut`]).
pub fn exchange(key: &'static CStr, own: Option<String>, timeout: Duration) -> Result<Option<String>> {
    let functions = functions()?;
    let (sender, receiver) = sync_channel(1);
    // Sending fails if the time limit has passed.
    let run = move || drop(sender.send(functions.exchange(key, own)));
    let thread = thread::Builder::new().name("comm-pmix".into()).spawn(run);
    thread.map_err(|error| Error::io("start the thread that waits for PMIx", error))?;
    receiver.recv_timeout(timeout).unwrap_or_else(|error| {
        let kind = match error {
            RecvTimeoutError::Timeout => io::ErrorKind::TimedOut,
            RecvTimeoutError::Disconnected => io::ErrorKind::Other,
        };
        Err(Error::io("exchange an address through PMIx", kind.into()))
    })
}

fn functions() -> Result<&'static Functions> {
    static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = FUNCTIONS.get_or_init(|| Functions::load().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(|error| Error::io(format!("load {LIBRARY}"), io::Error::other(error.clone())))
}

impl Functions {
    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the library's initializers only prepare its own state.
        let library = unsafe { Library::new(LIBRARY) }?;
        // SAFETY: the type is that of the function in pmix.h, and so are those below. The pointers
        // are used while the library is loaded.
        let init = *unsafe { library.get::<Init>(b"PMIx_Init\0") }?;
        // SAFETY: as above.
        let put = *unsafe { library.get::<Put>(b"PMIx_Put\0") }?;
        // SAFETY: as above.
        let commit = *unsafe { library.get::<Commit>(b"PMIx_Commit\0") }?;
        // SAFETY: as above.
        let fence = *unsafe { library.get::<Fence>(b"PMIx_Fence\0") }?;
        // SAFETY: as above.
        let get = *unsafe { library.get::<Get>(b"PMIx_Get\0") }?;
        // SAFETY: as above.
        let finalize = *unsafe { library.get::<Finalize>(b"PMIx_Finalize\0") }?;
        Ok(Self { init, put, commit, fence, get, finalize, _library: library })
    }

    fn exchange(&self, key: &CStr, own: Option<String>) -> Result<Option<String>> {
        let mut process = Process { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: `process` can be written, and there are no options.
        let status = unsafe { (self.init)(&raw mut process, null(), 0) };
        checked("PMIx_Init", status)?;
        let outcome = self.exchange_initialized(process, &padded(key), own);
        // SAFETY: the library is initialized, and there are no options.
        let status = unsafe { (self.finalize)(null(), 0) };
        outcome.and_then(|text| checked("PMIx_Finalize", status).map(|()| text))
    }

    fn exchange_initialized(
        &self,
        mut process: Process,
        key: &[c_char; KEY_BYTES],
        own: Option<String>,
    ) -> Result<Option<String>> {
        if let Some(own) = own {
            self.put(key, own)?;
        }
        // SAFETY: the library is initialized.
        let status = unsafe { (self.commit)() };
        checked("PMIx_Commit", status)?;
        // SAFETY: no processes stand for all of the job, and there are no options.
        let status = unsafe { (self.fence)(null(), 0, null(), 0) };
        checked("PMIx_Fence", status)?;
        process.rank = 0;
        let mut value: *mut Value = null_mut();
        // SAFETY: `process` and `key` are texts with an end, there are no options, and `value` can
        // be written.
        let status = unsafe { (self.get)(&raw const process, key.as_ptr(), null(), 0, &raw mut value) };
        checked("PMIx_Get", status)?;
        // SAFETY: after success the pointer is null or that of a value, which nothing else uses. It
        // is not freed, because the library has no function for that in all versions.
        let Some(value) = (unsafe { value.as_ref() }) else { return Ok(None) };
        if value.kind != STRING || value.text.is_null() {
            return Ok(None);
        }
        // SAFETY: a value of this kind has a text with an end.
        let text = unsafe { CStr::from_ptr(value.text) };
        Ok(Some(text.to_string_lossy().into_owned()))
    }

    fn put(&self, key: &[c_char; KEY_BYTES], own: String) -> Result<()> {
        let text = CString::new(own).map_err(|error| Error::io("PMIx_Put", error.into()))?;
        let value = Value { kind: STRING, text: text.as_ptr(), rest: [0; 4] };
        // SAFETY: the key and the text have ends, and the library copies both.
        let status = unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw const value) };
        checked("PMIx_Put", status)
    }
}

/// Returns a key in an array of the length that the library declares.
fn padded(key: &CStr) -> [c_char; KEY_BYTES] {
    let mut padded = [0; KEY_BYTES];
    for (to, from) in padded.iter_mut().take(KEY_BYTES - 1).zip(key.to_bytes()) {
        *to = from.cast_signed() as c_char;
    }
    padded
}

fn checked(call: &str, status: c_int) -> Result<()> {
    if status == SUCCESS {
        return Ok(());
    }
    Err(Error::io(call, io::Error::other(format!("PMIx returned the status {status}"))))
}
