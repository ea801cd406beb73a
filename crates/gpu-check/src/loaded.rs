//! The libraries that are mapped into this process.

use std::fs;
use std::path::PathBuf;

use crate::error::{CaseError, Outcome};

const MAPS: &str = "/proc/self/maps";
/// Parts of the emulator's file name. They also match a copy in memory.
const EMULATOR: [&str; 2] = ["gpu_emu", "gpu-emu"];

/// Returns the mapped files in the order of their addresses.
fn files() -> Vec<PathBuf> {
    // Without /proc the list is empty, which is an error for callers.
    files_of(&fs::read_to_string(MAPS).unwrap_or_default())
}

fn files_of(maps: &str) -> Vec<PathBuf> {
    let path = |line: &str| line.find('/').map(|at| PathBuf::from(line[at..].trim_end()));
    let mut files: Vec<PathBuf> = maps.lines().filter_map(path).collect();
    files.dedup();
    files
}

fn named<'a>(files: &'a [PathBuf], part: &str) -> Option<&'a PathBuf> {
    files.iter().find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part)))
}

/// Returns the mapped file whose name contains `name`.
pub(crate) fn library(name: &str) -> Option<PathBuf> {
    named(&files(), name).cloned()
}

/// Returns an error if the emulator is loaded into this process, because its results would prove
/// nothing about a GPU. Call it after the driver and NCCL are loaded.
///
/// # Errors
/// [`CaseError::Wrong`] with the file.
pub fn reject_emulator() -> Outcome {
    reject_emulator_in(&files())
}

fn reject_emulator_in(files: &[PathBuf]) -> Outcome {
    if files.is_empty() {
        return Err(CaseError::Wrong(format!("{MAPS} does not list the loaded files")));
    }
    match EMULATOR.iter().find_map(|part| named(files, part)) {
        None => Ok(()),
        Some(path) => {
            Err(CaseError::Wrong(format!("{} is loaded, and it is an emulator, not a GPU", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
7f00-7f01 r--p 00000000 fe:00 12   /usr/lib/libcuda.so.580.65.06
7f01-7f02 r-xp 00001000 fe:00 12   /usr/lib/libcuda.so.580.65.06
7f02-7f03 rw-p 00000000 00:00 0
7f03-7f04 r--p 00000000 fe:00 13   /a folder/libnccl.so.2
7ffe-7fff r-xp 00000000 00:00 0    [vdso]
";

    #[test]
    fn libraries_are_found_by_the_start_of_their_names() {
        let files = files_of(MAPS);
        assert_eq!(files.len(), 2);
        assert_eq!(named(&files, "libnccl"), Some(&PathBuf::from("/a folder/libnccl.so.2")));
        assert_eq!(named(&files, "libcuda.so"), Some(&PathBuf::from("/usr/lib/libcuda.so.580.65.06")));
        assert_eq!(named(&files, "libmpi"), None);
    }

    #[test]
    fn the_emulator_is_found_under_all_its_names() {
        assert!(reject_emulator_in(&files_of(MAPS)).is_ok());
        for path in ["/t/deps/libgpu_emu.so", "/memfd:gpu-emu (deleted)", "/t/libgpu_emu-1a2b.so"] {
            let files = files_of(&format!("{MAPS}7f05-7f06 r-xp 0 0 1  {path}\n"));
            assert!(reject_emulator_in(&files).unwrap_err().to_string().contains(path), "{path}");
        }
        assert!(reject_emulator_in(&[]).is_err(), "an empty list is an error");
    }
}
