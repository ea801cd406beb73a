//! Checks that there is a CUDA driver, and asks for its version.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;

use comm_core::{Error, Result};
use cudarc::driver::sys;
use libloading::Library;

use crate::error;

/// The first and the last name that cudarc tries. A driver installs no others.
#[cfg(unix)]
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

/// Returns an error if there is no driver, because cudarc would panic. Must be called before
/// cudarc.
pub(crate) fn driver() -> Result<()> {
    // Only success is cached: a driver may be installed later.
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_some() {
        return Ok(());
    }
    let mut words = Vec::new();
    for name in NAMES {
        // SAFETY: a library of this name is the driver, whose initializers every user of CUDA runs.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                std::mem::forget(library);
                FOUND.get_or_init(|| ());
                return Ok(());
            }
            Err(error) => words.push(format!("{name}: {error}")),
        }
    }
    Err(none(&words))
}

/// Returns the newest version of CUDA that the driver supports, which writes 12.4 as 12040.
pub(crate) fn version() -> Result<u32> {
    driver()?;
    let mut version: c_int = 0;
    // SAFETY: the driver is loaded, and writes one integer.
    let found = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    found.result().map_err(error::cuda("ask for the driver's version"))?;
    Ok(u32::try_from(version).unwrap_or(0))
}

fn none(words: &[String]) -> Error {
    error::unavailable(error::CUDA, format!("there is no driver: {}", words.join("; ")))
}
