//! Updates the measured section of a Markdown page.

use std::fs;
use std::io;
use std::path::Path;

/// The lines that delimit the measured section.
const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- /measured -->";

/// Replaces the measured section of a page. If the page does not exist or has no such section, it
/// is written anew with `title`.
///
/// # Errors
///
/// If the page cannot be read or written.
pub fn update(path: &Path, title: &str, measured: &str) -> io::Result<()> {
    let old = match fs::read_to_string(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    write_file(path, &page(old.as_deref(), title, measured))
}

/// Writes a file, creating its folder if necessary.
///
/// # Errors
///
/// If the folder or the file cannot be written.
pub fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(path, text))
}

fn page(old: Option<&str>, title: &str, measured: &str) -> String {
    let measured = format!("{BEGIN}\n{measured}{END}");
    let parts = old.and_then(|old| {
        let (before, rest) = old.split_once(BEGIN)?;
        Some((before, rest.split_once(END)?.1))
    });
    match parts {
        Some((before, after)) => format!("{before}{measured}{after}"),
        None => format!("# {title}\n\n{measured}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_around_the_section_is_kept() {
        let old = format!("# Title\n\nWhy.\n\n{BEGIN}\nold\n{END}\n\n## Outliers\n");
        let page = page(Some(&old), "Another", "fresh\n");
        assert_eq!(page, format!("# Title\n\nWhy.\n\n{BEGIN}\nfresh\n{END}\n\n## Outliers\n"));
    }

    #[test]
    fn a_page_without_the_section_is_replaced() {
        for old in [None, Some("something else"), Some(BEGIN)] {
            assert_eq!(page(old, "Times", "x\n"), format!("# Times\n\n{BEGIN}\nx\n{END}\n"));
        }
    }

    #[test]
    fn a_page_is_created_and_updated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inner/page.md");
        update(&path, "Times", "first\n").unwrap();
        update(&path, "Times", "second\n").unwrap();
        let page = fs::read_to_string(path).unwrap();
        assert!(
            page.starts_with("# Times\n") && page.contains("second") && !page.contains("first"),
            "{page}"
        );
    }
}
