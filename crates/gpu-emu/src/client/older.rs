//! A copy of the library that lacks some symbols.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};

use super::LoadError;

/// Copies the library at `path` into memory, with `symbols` renamed, and returns a path to the
/// copy, which exists until the process ends.
pub(super) fn copy(path: &Path, symbols: &[&str]) -> Result<PathBuf, LoadError> {
    let mut bytes = fs::read(path)?;
    for symbol in symbols {
        rename(&mut bytes, symbol)?;
    }
    let memory = memfd_create("gpu-emu", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let mut file = File::from(memory);
    file.write_all(&bytes)?;
    file.rewind()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let _stays_open = file.into_raw_fd();
    Ok(path)
}

/// Renames a symbol. The loader finds a symbol by the hash of its name and then compares the name,
/// so a symbol whose first letter has changed is found by neither the old name nor the new one.
fn rename(bytes: &mut [u8], symbol: &str) -> Result<(), LoadError> {
    let name: Vec<u8> = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let places: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| *window == name)
        .map(|(at, _)| at)
        .collect();
    if places.is_empty() {
        return Err(LoadError::NoSymbol(symbol.to_owned()));
    }
    places.into_iter().for_each(|at| bytes[at + 1] = b'-');
    Ok(())
}
