//! The client for tests: it finds the dynamic library, loads it before any code looks for CUDA, and
//! controls it.

mod locate;
mod older;
mod report;

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use libloading::Library;
use nccl_sys::ncclResult_t;

use crate::control::Report;
use crate::device::DEVICES_MAX;
use crate::kernel::Kernel;
use crate::settings::Setting;
use crate::sync::lock;

pub use report::{Call, Fault, Live};

/// The reason why the emulator could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file was not built, or the test runs from an unusual place.
    #[error("libgpu_emu.so is in none of {0:?}")]
    NotFound(Vec<PathBuf>),
    /// The loader rejected it.
    #[error("cannot load {path}: {source}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// The error of the loader.
        r#source: libloading::Error,
    },
    /// A symbol that should be removed does not exist in the library.
    #[error("the library has no symbol {0}")]
    NoSymbol(String),
    /// The library could not be copied.
    #[error("cannot copy the library")]
    Copy(#[from] io::Error),
    /// Another library with this name is already loaded.
    #[error("libcuda.so is already loaded, and is not the emulator")]
    NotFirst,
}

/// The loaded emulator. A process has one. It is never unloaded, because its threads may be
/// running.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    set: unsafe extern "C" fn(u32, u64) -> i32,
    take: unsafe extern "C" fn(u32) -> *mut c_char,
    release: unsafe extern "C" fn(*mut c_char),
    reset_device: unsafe extern "C" fn(usize) -> i32,
    plan_answer: unsafe extern "C" fn(usize, *const c_char, u64, u32) -> i32,
    plan_fault: unsafe extern "C" fn(usize, u64, u32),
    plan_wrong_bit: unsafe extern "C" fn(usize, u64),
    register_kernel: unsafe extern "C" fn(*const c_char, Kernel, *const usize, usize) -> i32,
    read: unsafe extern "C" fn(u64, *mut c_void, usize) -> i32,
    write: unsafe extern "C" fn(u64, *const c_void, usize) -> i32,
}

static LOADED: OnceLock<Control> = OnceLock::new();

impl Control {
    /// Loads the library that cargo built along with the calling test, once per process. This must
    /// precede the first call of cudarc, which keeps the library that it finds.
    ///
    /// # Errors
    /// If the file is missing or cannot be loaded, or if another `libcuda.so` was loaded before.
    pub fn load() -> Result<&'static Self, LoadError> {
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let opened = Self::open(locate::library()?)?;
        Ok(LOADED.get_or_init(|| opened))
    }

    /// Like [`Control::load`], but loads a copy of the library without these symbols, like an older
    /// NCCL. The copy is in memory, and [`Control::path`] refers to it within this process. Later
    /// calls of either function return the library that was loaded first.
    ///
    /// # Errors
    /// As [`Control::load`], and if the library has no such symbol or cannot be copied.
    pub fn load_without(symbols: &[&str]) -> Result<&'static Self, LoadError> {
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let opened = Self::open(older::copy(&locate::library()?, symbols)?)?;
        Ok(LOADED.get_or_init(|| opened))
    }

    fn open(path: PathBuf) -> Result<Self, LoadError> {
        let refused = |source| LoadError::Refused { path: path.clone(), source };
        let library = library_at(&path).map_err(refused)?;
        let control = Self {
            set: symbol(library, c"gpu_emu_set").map_err(refused)?,
            take: symbol(library, c"gpu_emu_take").map_err(refused)?,
            release: symbol(library, c"gpu_emu_release").map_err(refused)?,
            reset_device: symbol(library, c"gpu_emu_reset_device").map_err(refused)?,
            plan_answer: symbol(library, c"gpu_emu_plan_answer").map_err(refused)?,
            plan_fault: symbol(library, c"gpu_emu_plan_fault").map_err(refused)?,
            plan_wrong_bit: symbol(library, c"gpu_emu_plan_wrong_bit").map_err(refused)?,
            register_kernel: symbol(library, c"gpu_emu_register_kernel").map_err(refused)?,
            read: symbol(library, c"gpu_emu_read").map_err(refused)?,
            write: symbol(library, c"gpu_emu_write").map_err(refused)?,
            path: path.clone(),
        };
        // The loader must find the same file by name, or cudarc would use another driver.
        let named = library_at(Path::new("libcuda.so")).map_err(refused)?;
        let found: unsafe extern "C" fn(u32, u64) -> i32 =
            symbol(named, c"gpu_emu_set").map_err(|_| LoadError::NotFirst)?;
        if found as usize == control.set as usize { Ok(control) } else { Err(LoadError::NotFirst) }
    }

    /// Returns the file that was loaded, which also contains NCCL's functions.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves devices that no other test of this process uses, because errors are sticky, and
    /// returns their numbers. Sets the number of devices to the maximum.
    ///
    /// # Panics
    /// If there are no more devices. In that case, spread the tests over more programs.
    #[must_use]
    pub fn reserve_devices(&self, count: usize) -> Vec<usize> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        self.set(Setting::Devices, DEVICES_MAX as u64);
        let first = NEXT.fetch_add(count, Ordering::SeqCst);
        assert!(first + count <= DEVICES_MAX, "the emulator has no more devices");
        (first..first + count).collect()
    }

    /// Returns the new faults of these devices, and those whose device is unknown. Faults of other
    /// devices are kept.
    #[must_use]
    pub fn faults_of(&self, devices: &[usize]) -> Vec<String> {
        static SEEN: Mutex<Vec<Fault>> = Mutex::new(Vec::new());
        let mut seen = lock(&SEEN);
        seen.extend(self.take_faults());
        let is_one = |fault: &mut Fault| fault.device.is_none_or(|device| devices.contains(&device));
        seen.extract_if(.., is_one).map(|fault| fault.what).collect()
    }

    /// Changes a setting for the whole process.
    pub fn set(&self, setting: Setting, value: u64) {
        // SAFETY: the function takes two numbers.
        let _known = unsafe { (self.set)(setting as u32, value) };
    }

    /// Returns all calls that were recorded since this was last called, oldest first.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        self.report(Report::Calls).lines().filter_map(Call::parse).collect()
    }

    /// Returns the new calls of NCCL on these devices, oldest first. Those on other devices are
    /// kept.
    #[must_use]
    pub fn calls_of(&self, devices: &[usize]) -> Vec<Call> {
        static SEEN: Mutex<Vec<Call>> = Mutex::new(Vec::new());
        let mut seen = lock(&SEEN);
        seen.extend(self.take_calls());
        let is_one = |call: &mut Call| call.device().is_some_and(|device| devices.contains(&device));
        seen.extract_if(.., is_one).collect()
    }

    /// Returns all faults since this was last called, oldest first. A fault is an action that no
    /// correct program takes.
    #[must_use]
    pub fn take_faults(&self) -> Vec<Fault> {
        self.report(Report::Faults).lines().filter_map(Fault::parse).collect()
    }

    /// Returns the numbers of existing objects, to detect leaks.
    #[must_use]
    pub fn live(&self) -> Live {
        Live::parse(&self.report(Report::Live))
    }

    /// Makes a failed device usable again. A real device would need a new process.
    pub fn reset_device(&self, ordinal: usize) {
        // SAFETY: the function takes a number.
        let _known = unsafe { (self.reset_device)(ordinal) };
    }

    /// Describes the cause of the wait of each NCCL operation at this moment, one line each. It is
    /// empty if nothing hangs.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        self.report(Report::Waiting).lines().map(str::to_owned).collect()
    }

    /// Makes the NCCL call `name`, on this device and after `before` other calls of this name,
    /// return `code` and do nothing else. Calls without a communicator count for the current device
    /// of their thread.
    pub fn plan_answer(&self, device: usize, name: &CStr, before: u64, code: ncclResult_t) {
        self.plan_code(device, name, before, code.0);
    }

    /// Like [`Control::plan_answer`], but also for driver calls, by the name under which they are
    /// recorded. With code 0, the call appears to succeed. Driver calls count for the current
    /// device of their thread.
    pub fn plan_code(&self, device: usize, name: &CStr, before: u64, code: u32) {
        // SAFETY: the name ends with a NUL and is copied in the call.
        let _planned = unsafe { (self.plan_answer)(device, name.as_ptr(), before, code) };
    }

    /// Makes an operation on this device hang, after `before` others, until its communicator is
    /// aborted.
    pub fn plan_hang(&self, device: usize, before: u64) {
        // SAFETY: the function takes three numbers.
        unsafe { (self.plan_fault)(device, before, 0) };
    }

    /// Like [`Control::plan_hang`], but `ncclCommGetAsyncError` returns `code` in the meantime.
    pub fn plan_async_error(&self, device: usize, before: u64, code: ncclResult_t) {
        // SAFETY: the function takes three numbers.
        unsafe { (self.plan_fault)(device, before, code.0) };
    }

    /// Makes an operation on this device, after `before` others, succeed with one wrong bit in the
    /// last byte of its result, which only a comparison detects.
    pub fn plan_wrong_bit(&self, device: usize, before: u64) {
        // SAFETY: the function takes two numbers.
        unsafe { (self.plan_wrong_bit)(device, before) };
    }

    /// Runs `function` for each launch of a kernel called `name`. `sizes` holds the sizes of its
    /// arguments in bytes.
    pub fn register_kernel(&self, name: &CStr, sizes: &[usize], function: Kernel) {
        // SAFETY: the name ends with a NUL, and the number of sizes is passed; both are copied in
        // the call.
        let _registered =
            unsafe { (self.register_kernel)(name.as_ptr(), function, sizes.as_ptr(), sizes.len()) };
    }

    /// Reads `length` bytes of a device's memory immediately, independently of its streams, like a
    /// kernel. Returns `None` if they are not allocated, which is recorded as a fault of the
    /// device.
    #[must_use]
    pub fn read(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        // SAFETY: the buffer has the length that is passed with it.
        let code = unsafe { (self.read)(address, bytes.as_mut_ptr().cast(), length) };
        (code == 0).then_some(bytes)
    }

    /// Writes to a device's memory immediately, independently of its streams, like a kernel.
    /// Returns false if it is not allocated, which is recorded as a fault of the device.
    #[must_use]
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        // SAFETY: the buffer has the length that is passed with it.
        let code = unsafe { (self.write)(address, bytes.as_ptr().cast(), bytes.len()) };
        code == 0
    }

    fn report(&self, report: Report) -> String {
        // SAFETY: the function takes a number.
        let text = unsafe { (self.take)(report as u32) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a pointer other than NULL is a string that ends with a NUL, and belongs to us
        // until it is released.
        let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: it came from the library, and is not used any more.
        unsafe { (self.release)(text) };
        copy
    }
}

/// Loads a library for the rest of the process.
fn library_at(path: &Path) -> Result<&'static Library, libloading::Error> {
    // SAFETY: the emulator runs no code when it is loaded; any other libcuda.so is a driver, which
    // every user of CUDA trusts.
    let library = unsafe { Library::new(path) }?;
    Ok(Box::leak(Box::new(library)))
}

fn symbol<F: Copy>(library: &'static Library, name: &CStr) -> Result<F, libloading::Error> {
    // SAFETY: the type is that of the function of this name in `control.rs`, which is built from
    // the same commit.
    let symbol = unsafe { library.get::<F>(name.to_bytes_with_nul()) }?;
    Ok(*symbol)
}
