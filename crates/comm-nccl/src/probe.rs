//! Whether there is a driver at all.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use comm_core::{Error, Result};
use libloading::Library;

use crate::error;

/// Where cudarc looks first, and last. Nothing else is installed by a driver.
#[cfg(unix)]
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

/// Fails if there is no driver: cudarc would panic. Must come before anything that asks cudarc.
pub(crate) fn driver() -> Result<()> {
    // A driver that is found stays. One that is not may be installed meanwhile.
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_some() {
        return Ok(());
    }
    let mut words = Vec::new();
    for name in NAMES {
        // SAFETY: what runs when a library of this name is loaded is the driver's, which every user
        // of CUDA accepts.
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
