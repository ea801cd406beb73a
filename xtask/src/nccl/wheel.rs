//! Files of wheels on PyPI, fetched with whatever settings this machine's pip has.

use std::fs;
use std::io::{self, Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};

/// A wheel, and which of its files are of use.
#[derive(Debug)]
pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// One per machine that there is a wheel for.
    pub(super) sha256: &'static [&'static str],
    /// Paths within the wheel. Their names are unlike each other.
    pub(super) files: &'static [&'static str],
}

/// Why a wheel did not come.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WheelError {
    /// There is no Python.
    #[error("cannot fetch {wheel}: cannot start {}", python.display())]
    NoPython { wheel: String, python: PathBuf, source: io::Error },
    /// There is no pip, no network, no such wheel, or it has another checksum.
    #[error("cannot fetch {wheel}: {} -m pip says:\n{}", python.display(), said.trim_end())]
    Pip { wheel: String, python: PathBuf, said: String },
    /// A file could not be put where it belongs, or is not in the wheel.
    #[error("{}", path.display())]
    File { path: PathBuf, source: io::Error },
}

impl Wheel {
    /// Puts the files into `folder`, under their last names. A folder that has them is left as it
    /// is: it appears when all are there and their checksum was found right, and not before.
    pub(super) fn fetch(&self, folder: &Path) -> Result<(), WheelError> {
        self.fetch_with("python3".as_ref(), folder)
    }

    fn fetch_with(&self, python: &Path, folder: &Path) -> Result<(), WheelError> {
        if self.names().all(|name| folder.join(name).is_file()) {
            return Ok(());
        }
        // Nowhere is left to say that standard error is closed.
        drop(writeln!(stderr(), "fetching {self} from PyPI"));
        let staging = folder.with_file_name(format!("part-{}", process::id()));
        let outcome =
            self.fetch_into(python, &staging).and_then(|()| replace(folder, &staging.join("whole")));
        // What is left of it harms nobody.
        drop(fs::remove_dir_all(&staging));
        outcome
    }

    fn fetch_into(&self, python: &Path, staging: &Path) -> Result<(), WheelError> {
        let (unpacked, whole) = (staging.join("unpacked"), staging.join("whole"));
        fs::create_dir_all(&whole).map_err(failed(&whole))?;
        let requirements = staging.join("requirements.txt");
        fs::write(&requirements, self.requirement()).map_err(failed(&requirements))?;
        self.install(python, &requirements, &unpacked)?;
        for (file, name) in self.files.iter().zip(self.names()) {
            let file = unpacked.join(file);
            fs::rename(&file, whole.join(name)).map_err(failed(&file))?;
        }
        Ok(())
    }

    fn install(&self, python: &Path, requirements: &Path, folder: &Path) -> Result<(), WheelError> {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        command.args(["--no-deps", "--only-binary=:all:", "--require-hashes"]);
        command.arg("--requirement").arg(requirements).arg("--target").arg(folder).stdin(Stdio::null());
        match command.output() {
            Ok(Output { status, .. }) if status.success() => Ok(()),
            Ok(Output { stderr, .. }) => Err(WheelError::Pip {
                wheel: self.to_string(),
                python: python.to_owned(),
                said: String::from_utf8_lossy(&stderr).into_owned(),
            }),
            Err(source) => {
                Err(WheelError::NoPython { wheel: self.to_string(), python: python.to_owned(), source })
            }
        }
    }

    /// The wheel as a line of a requirements file, with which pip compares checksums.
    fn requirement(&self) -> String {
        let hashes = self.sha256.iter().map(|hash| format!(" --hash=sha256:{hash}"));
        format!("{}=={}{}\n", self.package, self.version, hashes.collect::<String>())
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().map(|file| file.rsplit_once('/').map_or(*file, |(_folder, name)| name))
    }
}

impl std::fmt::Display for Wheel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.package, self.version)
    }
}

/// Puts one folder in the place of another.
fn replace(folder: &Path, whole: &Path) -> Result<(), WheelError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(folder)(error)),
        _ => fs::rename(whole, folder).map_err(failed(folder)),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> WheelError {
    let path = path.to_owned();
    move |source| WheelError::File { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WHEEL: Wheel = Wheel {
        package: "paper",
        version: "1.2",
        sha256: &["aa", "bb"],
        files: &["paper/a.h", "paper/b.so"],
    };

    /// A Python whose pip does what the script says, with the requirements as $1 and the folder to
    /// install into as $2.
    fn python(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("python");
        // The options before the requirements are always the same.
        fs::write(&path, format!("#!/bin/sh\nset -e\nshift 9\nset -- \"$2\" \"$4\"\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    const INSTALLS: &str = r#"mkdir -p "$2/paper" && cp "$1" "$2/paper/a.h" && echo b >"$2/paper/b.so""#;

    #[test]
    fn files_are_fetched_once_and_their_checksums_are_left_to_pip() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("paper/1.2");
        WHEEL.fetch_with(&python(scratch.path(), INSTALLS), &folder).unwrap();
        let requirement = fs::read_to_string(folder.join("a.h")).unwrap();
        assert_eq!(requirement, "paper==1.2 --hash=sha256:aa --hash=sha256:bb\n");
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 1, "something is left over");

        WHEEL.fetch_with(&python(scratch.path(), "exit 1"), &folder).unwrap();
        fs::remove_file(folder.join("b.so")).unwrap();
        WHEEL.fetch_with(&python(scratch.path(), INSTALLS), &folder).unwrap();
        assert!(folder.join("b.so").is_file());
    }

    #[test]
    fn nothing_appears_when_pip_fails_and_its_words_are_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("paper/1.2");
        let fails = format!("{INSTALLS}; echo no network >&2; exit 1");
        let said = WHEEL.fetch_with(&python(scratch.path(), &fails), &folder).unwrap_err().to_string();
        assert!(said.contains("paper 1.2") && said.ends_with("no network"), "{said}");
        assert_eq!(fs::read_dir(folder.parent().unwrap()).unwrap().count(), 0);

        let error = WHEEL.fetch_with(&scratch.path().join("no-python"), &folder).unwrap_err();
        assert!(matches!(error, WheelError::NoPython { .. }), "{error}");
    }

    #[test]
    fn a_wheel_without_one_of_the_files_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("1.2");
        let error = WHEEL
            .fetch_with(&python(scratch.path(), &INSTALLS.replace("b.so", "c.so")), &folder)
            .unwrap_err();
        assert!(error.to_string().contains("paper/b.so"), "{error}");
        assert!(!folder.exists());
    }
}
