//! Downloads files of wheels from PyPI with pip and its local configuration.

use std::fs;
use std::io::{self, Write, stderr};
use std::path::Path;
use std::process::{self, Command, Stdio};

use crate::commands;
use crate::error::{Error, Result};

/// A wheel and the files to extract.
#[derive(Debug)]
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// One hash per architecture.
    pub(crate) sha256: &'static [&'static str],
    /// The part of the wheel that is wanted.
    pub(crate) part: Part,
}

/// A part of a wheel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// Paths of files and folders among Python's packages, with different names.
    Files(&'static [&'static str]),
    /// Paths of files and folders that it installs beside Python's packages, with different names.
    Prefix(&'static [&'static str]),
    /// All that it installs, with programs in `bin`. It can be moved.
    Whole,
}

impl Wheel {
    /// Writes the files to `folder`, unless it already has them. The folder is created only after
    /// all files are downloaded and their hash is verified.
    pub(crate) fn fetch(&self, folder: &Path) -> Result<()> {
        self.fetch_with("python3".as_ref(), folder)
    }

    fn fetch_with(&self, python: &Path, folder: &Path) -> Result<()> {
        if folder.exists() && self.names().all(|name| folder.join(name).exists()) {
            return Ok(());
        }
        // This is only a message, and standard error may be closed.
        drop(writeln!(stderr(), "fetching {self} from PyPI"));
        let staging = folder.with_file_name(format!("part-{}", process::id()));
        let outcome =
            self.fetch_into(python, &staging).and_then(|()| replace(folder, &staging.join("whole")));
        // Leftovers in the build folder are harmless.
        drop(fs::remove_dir_all(&staging));
        outcome
    }

    fn fetch_into(&self, python: &Path, staging: &Path) -> Result<()> {
        let (unpacked, whole) = (staging.join("unpacked"), staging.join("whole"));
        fs::create_dir_all(staging).map_err(Error::file(staging))?;
        let requirements = staging.join("requirements.txt");
        fs::write(&requirements, self.requirement()).map_err(Error::file(&requirements))?;
        self.install(python, &requirements, &unpacked)?;
        // The Python of Debian installs below this folder.
        let local = unpacked.join("local");
        let unpacked = if local.is_dir() { local } else { unpacked };
        if let Part::Whole = self.part {
            return fs::rename(&unpacked, &whole).map_err(Error::file(&unpacked));
        }
        fs::create_dir_all(&whole).map_err(Error::file(&whole))?;
        for (file, name) in self.files().iter().zip(self.names()) {
            let file = unpacked.join(file);
            fs::rename(&file, whole.join(name)).map_err(Error::file(&file))?;
        }
        Ok(())
    }

    fn install(&self, python: &Path, requirements: &Path, folder: &Path) -> Result<()> {
        let into = match self.part {
            Part::Files(_) => "--target",
            Part::Prefix(_) | Part::Whole => "--prefix",
        };
        commands::output(&mut pip_install(python, requirements, into, folder)).map(drop).map_err(|error| {
            match error {
                Error::Failed { program, reason } => {
                    Error::Failed { program: format!("{program} -m pip install {self}"), reason }
                }
                other => other,
            }
        })
    }

    /// Returns a line of a requirements file with hashes, which pip verifies.
    fn requirement(&self) -> String {
        let hashes = self.sha256.iter().map(|hash| format!(" --hash=sha256:{hash}"));
        format!("{}=={}{}\n", self.package, self.version, hashes.collect::<String>())
    }

    const fn files(&self) -> &'static [&'static str] {
        match self.part {
            Part::Files(files) | Part::Prefix(files) => files,
            Part::Whole => &[],
        }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files().iter().map(|file| file.rsplit_once('/').map_or(*file, |(_folder, name)| name))
    }
}

impl std::fmt::Display for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.package, self.version)
    }
}

/// Returns the command that installs wheels to a folder, which is the value of the option `into`.
/// The requirements have hashes, and list dependencies, too.
pub(crate) fn pip_install(python: &Path, requirements: &Path, into: &str, folder: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    command.args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--ignore-installed"]);
    command.arg("--requirement").arg(requirements).arg(into).arg(folder).stdin(Stdio::null());
    command
}

fn replace(folder: &Path, whole: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file(folder)(error)),
        _ => fs::rename(whole, folder).map_err(Error::file(folder)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    const WHEEL: Wheel = Wheel {
        package: "paper",
        version: "1.2",
        sha256: &["aa", "bb"],
        part: Part::Files(&["paper/a.h", "paper/b.so"]),
    };

    /// Creates a Python whose pip runs `script`, with the requirements as $1 and the target folder
    /// as $2.
    fn python(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("python");
        // The options before the requirements are constant.
        fs::write(&path, format!("#!/bin/sh\nset -e\nshift 10\nset -- \"$2\" \"$4\"\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    const INSTALLS: &str = r#"mkdir -p "$2/paper" && cp "$1" "$2/paper/a.h" && echo b >"$2/paper/b.so""#;

    #[test]
    fn files_are_downloaded_once_with_hashes_for_pip() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("paper/1.2");
        WHEEL.fetch_with(&python(scratch.path(), INSTALLS), &folder).unwrap();
        let requirement = fs::read_to_string(folder.join("a.h")).unwrap();
        assert_eq!(requirement, "paper==1.2 --hash=sha256:aa --hash=sha256:bb\n");
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1, "temporary files remain");

        WHEEL.fetch_with(&python(scratch.path(), "exit 1"), &folder).unwrap();
        fs::remove_file(folder.join("b.so")).unwrap();
        WHEEL.fetch_with(&python(scratch.path(), INSTALLS), &folder).unwrap();
        assert!(folder.join("b.so").is_file());
    }

    #[test]
    fn nothing_appears_when_pip_fails_and_the_error_has_its_message() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("paper/1.2");
        let fails = format!("{INSTALLS}; echo no network >&2; exit 1");
        let error = WHEEL.fetch_with(&python(scratch.path(), &fails), &folder).unwrap_err().to_string();
        assert!(error.contains("paper 1.2") && error.ends_with("no network"), "{error}");
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 0);

        let error = WHEEL.fetch_with(&scratch.path().join("no-python"), &folder).unwrap_err();
        assert!(matches!(error, Error::Start { .. }), "{error}");
    }

    #[test]
    fn a_whole_wheel_is_below_its_folder_also_with_the_python_of_debian() {
        let whole = Wheel { part: Part::Whole, ..WHEEL };
        for inner in ["", "/local"] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("paper-1.2");
            let installs = format!(r#"mkdir -p "$2{inner}/bin" && echo run >"$2{inner}/bin/fold""#);
            whole.fetch_with(&python(scratch.path(), &installs), &folder).unwrap();
            assert!(folder.join("bin/fold").is_file());
            whole.fetch_with(&python(scratch.path(), "exit 1"), &folder).unwrap();
        }
    }

    #[test]
    fn files_beside_the_packages_are_found_also_with_the_python_of_debian() {
        let files = Wheel { part: Part::Prefix(&["include/paper", "lib/b.so"]), ..WHEEL };
        for inner in ["", "/local"] {
            let scratch = tempfile::tempdir().unwrap();
            let folder = scratch.path().join("paper-1.2");
            let installs = format!(
                r#"mkdir -p "$2{inner}/include/paper" "$2{inner}/lib" && echo b >"$2{inner}/lib/b.so""#
            );
            files.fetch_with(&python(scratch.path(), &installs), &folder).unwrap();
            assert!(folder.join("paper").is_dir() && folder.join("b.so").is_file());
            files.fetch_with(&python(scratch.path(), "exit 1"), &folder).unwrap();
        }
    }

    #[test]
    fn a_wheel_without_one_of_the_files_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("1.2");
        let error = WHEEL
            .fetch_with(&python(scratch.path(), &INSTALLS.replace("b.so", "c.so")), &folder)
            .unwrap_err();
        assert!(error.to_string().contains("paper/b.so"), "{error}");
        assert!(!folder.exists());
    }
}
