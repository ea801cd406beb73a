//! The archive of a package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands;
use crate::error::{Error, Result};
use crate::packages::Package;

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// The maximum size, which is larger than the sources of any package and smaller than data or
/// drawings.
const BYTES_MAX: u64 = 512 << 10;

/// A packed package.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    package: &'a Package,
    path: PathBuf,
}

impl<'a> Archive<'a> {
    /// Returns the archive that cargo wrote for `package`.
    pub(super) fn of(package: &'a Package, target: &Path) -> Self {
        let path = target.join("package").join(format!("{}.crate", package.folder_when_packed()));
        Self { package, path }
    }

    pub(super) fn bytes(&self) -> Result<u64> {
        Ok(fs::metadata(&self.path).map_err(Error::file(&self.path))?.len())
    }

    /// Unpacks the archive into a subfolder of `folder`.
    pub(super) fn unpack(&self, folder: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        // All files in a package have the same date; with --touch, cargo notices changes.
        tar.args(["--extract", "--gzip", "--touch", "--file"]).arg(&self.path).arg("--directory").arg(folder);
        commands::run(&mut tar)
    }

    /// Checks the size, and both licences in the unpacked archive.
    pub(super) fn check(&self, root: &Path, folder: &Path) -> Result<()> {
        let package = || self.package.name.clone();
        let bytes = self.bytes()?;
        if bytes > BYTES_MAX {
            return Err(Error::PackageSize { package: package(), bytes, max: BYTES_MAX });
        }
        for file in LICENCES {
            let licence = root.join(file);
            let expected = fs::read(&licence).map_err(Error::file(&licence))?;
            let found = fs::read(folder.join(self.package.folder_when_packed()).join(file));
            if found.ok() != Some(expected) {
                return Err(Error::Licence { package: package(), file });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a package with the text `licence` in both files; the licences of the repository are
    /// "text".
    fn check(licence: &str, bytes: u64) -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let (root, target) = (folder.path(), folder.path().join("target"));
        let package = Package { version: "1.2.3".into(), ..Package::with_dependencies("comm-x", Vec::new()) };
        let unpacked = root.join("comm-x-1.2.3");
        fs::create_dir(&unpacked).unwrap();
        for file in LICENCES {
            fs::write(root.join(file), "text").unwrap();
            fs::write(unpacked.join(file), licence).unwrap();
        }
        fs::create_dir_all(target.join("package")).unwrap();
        let packed = fs::File::create(target.join("package/comm-x-1.2.3.crate")).unwrap();
        packed.set_len(bytes).unwrap();
        Archive::of(&package, &target).check(root, root)
    }

    #[test]
    fn a_package_holds_the_licences_of_the_repository() {
        assert!(check("text", 1).is_ok());
        assert!(matches!(check("", 1), Err(Error::Licence { file: "LICENSE-APACHE", .. })));
    }

    #[test]
    fn a_package_has_at_most_the_maximum_size() {
        assert!(check("text", BYTES_MAX).is_ok());
        assert!(matches!(check("text", BYTES_MAX + 1), Err(Error::PackageSize { .. })));
    }
}
