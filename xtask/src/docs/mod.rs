//! Generates `docs/algorithms.md` and its drawings from the table of algorithms.

mod crossover;
mod drawing;
mod page;
mod rounds;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};
use crate::places;

/// The generated files by path.
type GeneratedFiles = BTreeMap<String, String>;

const PAGE: &str = "docs/algorithms.md";
const DRAWINGS: &str = "docs/algorithms";

/// Writes the files, or checks that they are up to date.
pub(crate) fn run(check: bool, out: &mut impl Write) -> Result<()> {
    let root = &places::root();
    let files = generate()?;
    let strays = find_strays(root, &files)?;
    if check {
        let stale: Vec<String> = files
            .iter()
            .filter_map(|(path, text)| difference(root, path, text))
            .chain(strays.iter().map(|path| format!("{path}: not generated")))
            .collect();
        if !stale.is_empty() {
            return Err(Error::Outdated { count: stale.len(), task: "docs", differences: stale.join("\n") });
        }
        writeln!(out, "{} generated files are up to date", files.len())?;
        return Ok(());
    }
    let folder = root.join(DRAWINGS);
    fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    for (path, text) in &files {
        let path = root.join(path);
        fs::write(&path, text).map_err(Error::file(&path))?;
    }
    for path in strays {
        let path = root.join(path);
        fs::remove_file(&path).map_err(Error::file(&path))?;
    }
    writeln!(out, "wrote {} files", files.len())?;
    Ok(())
}

fn generate() -> Result<GeneratedFiles> {
    let mut files = GeneratedFiles::new();
    let page = page::write(&mut files)?;
    files.insert(PAGE.to_owned(), page);
    Ok(files)
}

/// Returns files in the folder that are not generated.
fn find_strays(root: &Path, files: &GeneratedFiles) -> Result<Vec<String>> {
    let folder = root.join(DRAWINGS);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::file(&folder)(source)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::file(&folder))?;
        let path = format!("{DRAWINGS}/{}", entry.file_name().to_string_lossy());
        if !files.contains_key(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the first line in which a file differs from `expected`.
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
    // Compares line ends too.
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
    fn the_first_different_line_is_found() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), Some((2, "b", "x")));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some((2, "(the end)", "b")));
        assert_eq!(first_difference("a\nb\n", "a\n"), Some((2, "b", "(the end)")));
        assert_eq!(first_difference("a", "a\n").map(|found| found.0), Some(1));
    }

    #[test]
    fn generation_is_deterministic() {
        assert_eq!(generate().unwrap(), generate().unwrap());
    }
}
