//! Checks that there is a CUDA driver.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use comm_core::{Error, Result};
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

fn none(words: &[String]) -> Error {
    error::unavailable(error::CUDA, format!("there is no driver: {}", words.join("; ")))
}
