//! What the rules look at: the packages of the workspace and the texts of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::packages::{self, Package, PackagesError, relative};

/// What is built or generated, and git's own.
const SKIPPED: [&str; 3] = ["target", "out", ".git"];

/// Files with other extensions are known by their names only.
const TEXTS: [&str; 6] = ["rs", "md", "toml", "sh", "yml", "yaml"];

/// Why the repository could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    /// A folder or a file is not readable.
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A folder could not be listed.
    #[error(transparent)]
    Walk(#[from] walkdir::Error),
    /// The packages could not be listed.
    #[error(transparent)]
    Packages(#[from] PackagesError),
}

/// The repository as the rules see it. All paths are relative to its root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) packages: Vec<Package>,
    /// Every file and folder.
    pub(super) paths: BTreeSet<PathBuf>,
    /// The contents of those that hold text.
    pub(super) texts: BTreeMap<PathBuf, String>,
}

impl Tree {
    /// Reads the repository that this program was built in.
    pub(super) fn of_this_repository() -> Result<Self, TreeError> {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self::read(package.parent().unwrap_or(package))
    }

    fn read(root: &Path) -> Result<Self, TreeError> {
        let mut tree = Self { packages: packages::read(root)?, ..Self::default() };
        let wanted = |name: &OsStr| !SKIPPED.iter().any(|skipped| name == *skipped);
        for entry in
            WalkDir::new(root).min_depth(1).into_iter().filter_entry(|entry| wanted(entry.file_name()))
        {
            let entry = entry?;
            let path = relative(entry.path(), root);
            if entry.file_type().is_file() && is_text(&path) {
                let source = |source| TreeError::Read { path: path.clone(), source };
                tree.texts.insert(path.clone(), fs::read_to_string(entry.path()).map_err(source)?);
            }
            tree.paths.insert(path);
        }
        Ok(tree)
    }

    /// A tree of these texts.
    #[cfg(test)]
    pub(super) fn with_texts<const N: usize>(texts: [(&str, &str); N]) -> Self {
        let texts: BTreeMap<_, _> =
            texts.into_iter().map(|(path, text)| (PathBuf::from(path), text.to_owned())).collect();
        let paths = texts.keys().flat_map(|path| path.ancestors().map(Path::to_owned)).collect();
        Self { packages: Vec::new(), paths, texts }
    }

    /// A tree of these packages, with nothing in it.
    #[cfg(test)]
    pub(super) fn with_packages(packages: Vec<Package>) -> Self {
        Self { packages, ..Self::default() }
    }

    /// The text of a file, empty if there is none.
    pub(super) fn text(&self, path: &Path) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Where a package's manifest first names a dependency, for findings about it.
    pub(super) fn line_of(&self, package: &Package, dependency: &str) -> usize {
        let names =
            |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        self.text(&package.manifest).lines().position(names).map_or(1, |index| index + 1)
    }

    /// All texts with this extension.
    pub(super) fn texts_with_extension(&self, extension: &str) -> impl Iterator<Item = (&Path, &str)> {
        let wanted = move |path: &Path| path.extension().is_some_and(|found| found == extension);
        self.texts
            .iter()
            .map(|(path, text)| (path.as_path(), text.as_str()))
            .filter(move |(path, _)| wanted(path))
    }
}

fn is_text(path: &Path) -> bool {
    path.extension().map_or(path.starts_with(".ci"), |found| TEXTS.iter().any(|text| found == *text))
}
