//! The input of the rules: the packages of the workspace and the texts of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::error::{Error, Result};
use crate::packages::{self, Package, relative};
use crate::places;

/// Folders that the rules ignore.
const SKIPPED: [&str; 3] = ["target", "out", ".git"];

/// The extensions of text files.
const TEXTS: [&str; 6] = ["rs", "md", "toml", "sh", "yml", "yaml"];

/// The repository. All paths are relative to its root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) packages: Vec<Package>,
    /// Every file and folder.
    pub(super) paths: BTreeSet<PathBuf>,
    /// The contents of all text files.
    pub(super) texts: BTreeMap<PathBuf, String>,
}

impl Tree {
    pub(super) fn of_this_repository() -> Result<Self> {
        Self::read(&places::root())
    }

    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self { packages: packages::read(root)?, ..Self::default() };
        let wanted = |name: &OsStr| !SKIPPED.iter().any(|skipped| name == *skipped);
        for entry in
            WalkDir::new(root).min_depth(1).into_iter().filter_entry(|entry| wanted(entry.file_name()))
        {
            let entry = entry?;
            let path = relative(entry.path(), root);
            if entry.file_type().is_file() && is_text(&path) {
                tree.texts.insert(
                    path.clone(),
                    fs::read_to_string(entry.path()).map_err(Error::file(entry.path()))?,
                );
            }
            tree.paths.insert(path);
        }
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn with_texts<const N: usize>(texts: [(&str, &str); N]) -> Self {
        let texts: BTreeMap<_, _> =
            texts.into_iter().map(|(path, text)| (PathBuf::from(path), text.to_owned())).collect();
        let paths = texts.keys().flat_map(|path| path.ancestors().map(Path::to_owned)).collect();
        Self { packages: Vec::new(), paths, texts }
    }

    #[cfg(test)]
    pub(super) fn with_packages(packages: Vec<Package>) -> Self {
        Self { packages, ..Self::default() }
    }

    /// Returns the text of a file, or an empty one.
    pub(super) fn text(&self, path: &Path) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Returns the line of a dependency in a package's manifest.
    pub(super) fn line_of(&self, package: &Package, dependency: &str) -> usize {
        let names =
            |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with([' ', '.', '=']));
        self.text(&package.manifest).lines().position(names).map_or(1, |index| index + 1)
    }

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
