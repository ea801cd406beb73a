//! Finds the file of a library.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the file of the code at `address`, without symbolic links, if the loader knows it.
///
/// The address is never read.
pub(crate) fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address, and writes to a local value.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: zeros are valid values of all fields, even if dladdr wrote nothing.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name ends with a zero, and is valid while the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    // A file that was moved or deleted keeps the name under which it was loaded.
    Some(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_lies_in_the_file_that_it_was_loaded_from() {
        let address = code_lies_in_the_file_that_it_was_loaded_from as *const c_void;
        assert_eq!(file_of(address), std::env::current_exe().ok().and_then(|path| path.canonicalize().ok()));
    }

    #[test]
    fn what_is_no_code_lies_nowhere() {
        assert_eq!(file_of(std::ptr::null()), None);
    }
}
