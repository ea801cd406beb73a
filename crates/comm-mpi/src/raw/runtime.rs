//! The MPI library of this process: initialization, the thread level, and finalization at exit.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use comm_core::{Error, Process, Result};
use mpi::ffi;

/// The name of the backend in errors.
pub(crate) const BACKEND: &str = "mpi";

/// The longest text of an error or a version, in bytes: more than any implementation uses.
const TEXT_MAX: usize = 8192;

static RUNTIME: OnceLock<Result<Runtime>> = OnceLock::new();

/// The state of the library in this process.
#[derive(Debug)]
struct Runtime {
    /// Whether MPI is finalized. Every call of MPI holds the lock: shared if MPI allows concurrent
    /// calls, otherwise exclusively.
    is_over: RwLock<bool>,
    /// Whether MPI provides `MPI_THREAD_MULTIPLE`.
    is_concurrent: bool,
    /// Whether the program initialized MPI itself, and so finalizes it.
    is_foreign: bool,
    process: Process,
}

/// The permission to call MPI.
#[allow(dead_code, reason = "they are held")]
enum Entered<'a> {
    Shared(RwLockReadGuard<'a, bool>),
    Exclusive(RwLockWriteGuard<'a, bool>),
}

/// Initializes MPI, unless the program has done so.
///
/// # Errors
/// [`Error::BackendUnavailable`] if MPI allows calls only from one thread, or has been finalized.
pub(crate) fn initialize() -> Result<()> {
    runtime().map(drop)
}

/// Makes one call of MPI. `doing` is a verb and its object.
pub(crate) fn call(doing: &'static str, function: impl FnOnce() -> c_int) -> Result<()> {
    let _entered = runtime()?.enter()?;
    match function() {
        0 => Ok(()),
        code => Err(error(doing, code)),
    }
}

/// Ends all processes of the job.
pub(crate) fn abort_job() -> ! {
    // SAFETY: the value of a constant of the library.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    // SAFETY: MPI is initialized, because there is a communicator. The lock is not taken: another
    // thread may hold it in a call that does not return.
    unsafe { ffi::MPI_Abort(world, 1) };
    std::process::abort()
}

/// Returns the name and the version of the library.
pub(crate) fn library_version() -> Result<String> {
    let mut text = vec![0_u8; TEXT_MAX];
    let mut len = 0;
    let start = text.as_mut_ptr().cast::<c_char>();
    call("read the version of MPI", || {
        // SAFETY: the buffer is longer than the longest version.
        unsafe { ffi::MPI_Get_library_version(start, &raw mut len) }
    })?;
    Ok(text_of(&text, len))
}

fn runtime() -> Result<&'static Runtime> {
    RUNTIME.get_or_init(Runtime::new).as_ref().map_err(Clone::clone)
}

impl Runtime {
    fn new() -> Result<Self> {
        let is_foreign = is_set(ffi::MPI_Initialized);
        let level = if is_foreign { current_level()? } else { initialize_library()? };
        // SAFETY: the value of a constant of the library.
        let serialized = unsafe { ffi::RSMPI_THREAD_SERIALIZED };
        if level < serialized {
            return Err(unavailable(
                "it allows calls only from the main thread: initialize it with MPI_THREAD_MULTIPLE or \
                 MPI_THREAD_SERIALIZED (in rsmpi: mpi::initialize_with_threading), or let comm_mpi::init do it",
            ));
        }
        let is_concurrent = level > serialized;
        Ok(Self { is_over: RwLock::new(false), is_concurrent, is_foreign, process: Process::current() })
    }

    fn enter(&self) -> Result<Entered<'_>> {
        let (entered, is_over) = if self.is_concurrent {
            let guard = self.is_over.read().unwrap_or_else(PoisonError::into_inner);
            let is_over = *guard;
            (Entered::Shared(guard), is_over)
        } else {
            let guard = self.is_over.write().unwrap_or_else(PoisonError::into_inner);
            let is_over = *guard;
            (Entered::Exclusive(guard), is_over)
        };
        if is_over || self.is_foreign && is_set(ffi::MPI_Finalized) {
            return Err(unavailable("it has been finalized"));
        }
        Ok(entered)
    }

    /// Finalizes MPI, unless the program has done so, or this is a forked child.
    fn finalize(&self) {
        if !self.process.is_current() {
            return;
        }
        let mut is_over = self.is_over.write().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *is_over, true) && !is_set(ffi::MPI_Finalized) {
            // SAFETY: MPI is initialized and not finalized, and no other thread calls it, because
            // the lock is held.
            unsafe { ffi::MPI_Finalize() };
        }
    }
}

/// Initializes MPI, and registers its finalization at exit. Returns the thread level.
fn initialize_library() -> Result<c_int> {
    if is_set(ffi::MPI_Finalized) {
        return Err(unavailable("it has been finalized"));
    }
    let mut level = 0;
    // SAFETY: the value of a constant of the library.
    let wanted = unsafe { ffi::RSMPI_THREAD_MULTIPLE };
    // SAFETY: MPI is not initialized, and accepts null pointers in place of the arguments of main.
    let code = unsafe { ffi::MPI_Init_thread(null_mut(), null_mut(), wanted, &raw mut level) };
    if code != 0 {
        return Err(error("initialize MPI", code));
    }
    // SAFETY: the function may be called at exit, once.
    if unsafe { libc::atexit(finalize_at_exit) } != 0 {
        return Err(Error::Internal("cannot register the finalization of MPI".into()));
    }
    Ok(level)
}

extern "C" fn finalize_at_exit() {
    if let Some(Ok(runtime)) = RUNTIME.get() {
        runtime.finalize();
    }
}

fn current_level() -> Result<c_int> {
    let mut level = 0;
    if is_set(ffi::MPI_Finalized) {
        return Err(unavailable("it has been finalized"));
    }
    // SAFETY: MPI is initialized and not finalized.
    match unsafe { ffi::MPI_Query_thread(&raw mut level) } {
        0 => Ok(level),
        code => Err(error("read the thread level of MPI", code)),
    }
}

/// Returns the flag that `MPI_Initialized` or `MPI_Finalized` sets.
fn is_set(function: unsafe extern "C" fn(*mut c_int) -> c_int) -> bool {
    let mut flag = 0;
    // SAFETY: both functions may be called at any time by any thread.
    unsafe { function(&raw mut flag) };
    flag != 0
}

fn unavailable(detail: &str) -> Error {
    Error::BackendUnavailable { backend: BACKEND, detail: detail.into() }
}

/// Returns the error of a call, with the text of the library. The caller has entered MPI.
fn error(doing: &str, code: c_int) -> Error {
    let mut text = vec![0_u8; TEXT_MAX];
    let (mut len, mut class) = (0, code);
    let start = text.as_mut_ptr().cast::<c_char>();
    // SAFETY: the buffer is longer than the longest text.
    unsafe { ffi::MPI_Error_string(code, start, &raw mut len) };
    // SAFETY: `code` comes from a call of MPI.
    unsafe { ffi::MPI_Error_class(code, &raw mut class) };
    let detail = format!("could not {doing}: {}", text_of(&text, len));
    Error::Backend { backend: BACKEND, code: class.into(), detail }
}

fn text_of(text: &[u8], len: c_int) -> String {
    let len = usize::try_from(len).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..len]).trim_end().to_owned()
}
