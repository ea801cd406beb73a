//! A package as it is uploaded: a compressed archive of one folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PackageError;
use crate::commands;
use crate::packages::Package;

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
/// Well above the sources of any package, and well below what data or drawings would add.
const BYTES_MAX: u64 = 512 << 10;

/// A packed package.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    package: &'a Package,
    path: PathBuf,
}

impl<'a> Archive<'a> {
    /// The archive that cargo has written for `package`.
    pub(super) fn of(package: &'a Package, target: &Path) -> Self {
        let path = target.join("package").join(format!("{}.crate", package.folder_when_packed()));
        Self { package, path }
    }

    /// Its size.
    pub(super) fn bytes(&self) -> Result<u64, PackageError> {
        Ok(fs::metadata(&self.path).map_err(PackageError::at(&self.path))?.len())
    }

    /// Unpacks the archive into a folder of its own in `folder`.
    pub(super) fn unpack(&self, folder: &Path) -> Result<(), PackageError> {
        let mut tar = Command::new("tar");
        // Files in a package are as old as each other; with --touch, cargo notices that they are
        // new.
        tar.args(["--extract", "--gzip", "--touch", "--file"]).arg(&self.path).arg("--directory").arg(folder);
        Ok(commands::run(&mut tar)?)
    }

    /// Checks the size, and that both licences came along where the archive is unpacked in
    /// `folder`.
    pub(super) fn check(&self, root: &Path, folder: &Path) -> Result<(), PackageError> {
        let package = || self.package.name.clone();
        let bytes = self.bytes()?;
        if bytes > BYTES_MAX {
            return Err(PackageError::Large { package: package(), bytes, max: BYTES_MAX });
        }
        for file in LICENCES {
            let licence = root.join(file);
            let expected = fs::read(&licence).map_err(PackageError::at(&licence))?;
            let found = fs::read(folder.join(self.package.folder_when_packed()).join(file));
            if found.ok() != Some(expected) {
                return Err(PackageError::Licence { package: package(), file });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a package that holds `licence` in both files, next to a repository whose licences are
    /// "text".
    fn check(licence: &str, bytes: u64) -> Result<(), PackageError> {
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
        assert!(matches!(check("", 1), Err(PackageError::Licence { file: "LICENSE-APACHE", .. })));
    }

    #[test]
    fn a_package_is_small() {
        assert!(check("text", BYTES_MAX).is_ok());
        assert!(matches!(check("text", BYTES_MAX + 1), Err(PackageError::Large { .. })));
    }
}
