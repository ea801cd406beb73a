//! Writes what is documented from the table of algorithms: `docs/algorithms.md` and its drawings.
//!
//! | file | question |
//! |---|---|
//! | `page` | what does the page say? |
//! | `crossover` | which algorithm is chosen for which size? |
//! | `rounds` | who sends what to whom, and when? |
//! | `drawing` | how does that look? |

mod crossover;
mod drawing;
mod page;
mod rounds;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::places;

/// Why the documents cannot be written, or are not up to date.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{what}: nobody can go on after {messages} messages")]
    Stuck { what: String, messages: usize },
    #[error("cannot draw")]
    Drawing(#[from] std::fmt::Error),
    #[error(transparent)]
    Choice(#[from] comm_core::Error),
    #[error("{}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} generated files are not up to date; run `cargo xtask docs`:\n{}", .0.len(), .0.join("\n"))]
    Stale(Vec<String>),
    #[error("cannot write")]
    Output(#[from] io::Error),
}

/// Every generated file, by its path from the root of the repository.
type Files = BTreeMap<String, String>;

const PAGE: &str = "docs/algorithms.md";
const DRAWINGS: &str = "docs/algorithms";

/// Writes the documents, or only checks that they are what would be written.
pub(crate) fn run(check: bool, out: &mut impl Write) -> Result<(), Failure> {
    let root = &places::root();
    let files = generate()?;
    let strays = strays(root, &files)?;
    if check {
        let stale: Vec<String> = files
            .iter()
            .filter_map(|(path, text)| difference(root, path, text))
            .chain(strays.iter().map(|path| format!("{path}: no algorithm has this drawing")))
            .collect();
        if !stale.is_empty() {
            return Err(Failure::Stale(stale));
        }
        writeln!(out, "{} generated files are up to date", files.len())?;
        return Ok(());
    }
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::File { path, source }
    };
    let folder = root.join(DRAWINGS);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    for (path, text) in &files {
        let path = root.join(path);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    for path in strays {
        let path = root.join(path);
        fs::remove_file(&path).map_err(failed(&path))?;
    }
    writeln!(out, "wrote {} files", files.len())?;
    Ok(())
}

fn generate() -> Result<Files, Failure> {
    let mut files = Files::new();
    let page = page::write(&mut files)?;
    files.insert(PAGE.to_owned(), page);
    Ok(files)
}

/// Drawings in the folder that nobody made.
fn strays(root: &Path, files: &Files) -> Result<Vec<String>, Failure> {
    let folder = root.join(DRAWINGS);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Failure::File { path: folder, source }),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Failure::File { path: folder.clone(), source })?;
        let path = format!("{DRAWINGS}/{}", entry.file_name().to_string_lossy());
        if !files.contains_key(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The first line in which a file differs from what it should be.
pub(crate) fn difference(root: &Path, path: &str, expected: &str) -> Option<String> {
    let Ok(found) = fs::read_to_string(root.join(path)) else { return Some(format!("{path}: missing")) };
    first_difference(&found, expected).map(|(line, found, expected)| {
        format!("{path}:{line}: is      {found}\n{path}:{line}: must be {expected}")
    })
}

fn first_difference<'a>(found: &'a str, expected: &'a str) -> Option<(usize, &'a str, &'a str)> {
    if found == expected {
        return None;
    }
    // Lines with their ends, so that these count too.
    let (mut a, mut b) = (found.split_inclusive('\n'), expected.split_inclusive('\n'));
    let mut line = 0;
    loop {
        line += 1;
        match (a.next(), b.next()) {
            (a, b) if a == b && a.is_some() => {}
            (a, b) => {
                return Some((
                    line,
                    a.unwrap_or("(the end)").trim_end(),
                    b.unwrap_or("(the end)").trim_end(),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), Some((2, "b", "x")));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some((2, "(the end)", "b")));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some((2, "b", "(the end)")));
        assert_eq!(first_difference("a", "a\n").map(|found| found.0), Some(1));
    }

    #[test]
    fn documents_are_the_same_every_time() {
        assert_eq!(generate().unwrap(), generate().unwrap());
    }
}
