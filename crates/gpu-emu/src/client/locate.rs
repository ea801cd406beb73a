//! Locates the dynamic library that cargo built.

use std::path::PathBuf;

use super::LoadError;

const FILE: &str = "libgpu_emu.so";

/// Returns the library that was built along with the running program. It is in `deps`, next to the
/// tests; programs and examples are in or below the folder that contains `deps`.
pub(super) fn library() -> Result<PathBuf, LoadError> {
    let program = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_default();
    let folders = program.ancestors().skip(1).take(2);
    let places: Vec<_> =
        folders.flat_map(|folder| [folder.join("deps").join(FILE), folder.join(FILE)]).collect();
    match places.iter().find(|place| place.is_file()) {
        Some(found) => Ok(found.clone()),
        None => Err(LoadError::NotFound(places)),
    }
}
