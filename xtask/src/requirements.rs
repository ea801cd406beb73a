//! Installs Python packages from PyPI in the build folder.

use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::error::{Error, Result};
use crate::{commands, places, wheel};

/// A list of packages, one per line, with hashes.
pub(crate) struct Requirements {
    /// The list, in the repository.
    pub(crate) file: &'static str,
    /// The package of the list that names its installation.
    pub(crate) package: &'static str,
    /// The bytes to download, for the user.
    pub(crate) size: &'static str,
}

impl Requirements {
    /// Installs the packages in the folder `packages` of a folder for this list and Python, unless
    /// that exists, and returns its absolute path. `finish` may add to it before others see it.
    pub(crate) fn install(&self, python: &Path, finish: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let file = places::root().join(self.file);
        let text = fs::read_to_string(&file).map_err(Error::file(&file))?;
        let version = self.version(&text)?;
        let tag = commands::output(
            Command::new(python).args(["-c", "import sys; print(sys.implementation.cache_tag)"]),
        )?;
        let folder = places::target().join(self.package).join(format!("{version}-{}", tag.trim()));
        if !folder.exists() {
            // This is only a message, and standard error may be closed.
            drop(writeln!(stderr(), "fetching {} {version} from PyPI, {}", self.package, self.size));
            let staging = folder.with_file_name(format!("part-{}", process::id()));
            let packages = staging.join("packages");
            let whole = commands::output(&mut wheel::pip_install(python, &file, "--target", &packages))
                .and_then(|_| finish(&staging))
                .and_then(|()| fs::rename(&staging, &folder).map_err(Error::file(&folder)));
            // Leftovers in the build folder are harmless.
            drop(fs::remove_dir_all(&staging));
            whole?;
        }
        std::path::absolute(&folder).map_err(Error::file(&folder))
    }

    fn version<'a>(&self, text: &'a str) -> Result<&'a str> {
        let version = |line: &'a str| line.strip_prefix(self.package)?.strip_prefix("==")?.split(' ').next();
        let found = text.lines().find_map(version);
        found.ok_or_else(|| Error::Usage(format!("{} lists no version of {}", self.file, self.package)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package_of_this_name() {
        let list = Requirements { file: "list.txt", package: "paper", size: "1 MB" };
        let text = "# paper==0\npaperclip==1 --hash=a\npaper==2 \\\n    --hash=b\n";
        assert_eq!(list.version(text).unwrap(), "2");
        assert!(list.version("paperclip==1").unwrap_err().to_string().contains("list.txt"));
    }
}
