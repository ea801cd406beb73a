//! Which libraries this process has in its memory, as the kernel says.

use std::fs;
use std::path::PathBuf;

use crate::trouble::{Outcome, Trouble};

const MAPS: &str = "/proc/self/maps";
/// What is in the name of the emulator's file, also where it is a copy in memory.
const EMULATOR: [&str; 2] = ["gpu_emu", "gpu-emu"];

/// The files that are mapped, in the order of their addresses.
fn files() -> Vec<PathBuf> {
    // Without /proc nothing is known, which callers say.
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

/// The file of a library, by how its name begins.
pub(crate) fn library(name: &str) -> Option<PathBuf> {
    named(&files(), name).cloned()
}

/// Refuses to go on if the emulator is in this process: what runs there is no proof about a GPU. Call it when driver and NCCL are
/// loaded.
///
/// # Errors
/// [`Trouble::Wrong`], with the file.
pub fn refuse_emulator() -> Outcome {
    refuse_emulator_in(&files())
}

fn refuse_emulator_in(files: &[PathBuf]) -> Outcome {
    if files.is_empty() {
        return Err(Trouble::Wrong(format!("{MAPS} does not say what is loaded")));
    }
    match EMULATOR.iter().find_map(|part| named(files, part)) {
        None => Ok(()),
        Some(path) => {
            Err(Trouble::Wrong(format!("{} is an emulator and no GPU, and is loaded", path.display())))
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
    fn libraries_are_found_by_how_their_names_begin() {
        let files = files_of(MAPS);
        assert_eq!(files.len(), 2);
        assert_eq!(named(&files, "libnccl"), Some(&PathBuf::from("/a folder/libnccl.so.2")));
        assert_eq!(named(&files, "libcuda.so"), Some(&PathBuf::from("/usr/lib/libcuda.so.580.65.06")));
        assert_eq!(named(&files, "libmpi"), None);
    }

    #[test]
    fn the_emulator_is_found_under_all_its_names() {
        assert!(refuse_emulator_in(&files_of(MAPS)).is_ok());
        for path in ["/t/deps/libgpu_emu.so", "/memfd:gpu-emu (deleted)", "/t/libgpu_emu-1a2b.so"] {
            let files = files_of(&format!("{MAPS}7f05-7f06 r-xp 0 0 1  {path}\n"));
            assert!(refuse_emulator_in(&files).unwrap_err().to_string().contains(path), "{path}");
        }
        assert!(refuse_emulator_in(&[]).is_err(), "who knows nothing does not go on");
    }
}
