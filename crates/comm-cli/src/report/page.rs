//! Pages that people write, with a place in them for what is measured.

use std::fs;
use std::io;
use std::path::Path;

/// Between these lines a page is written anew; what people wrote around them stays.
const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- /measured -->";

/// Puts what was measured into its place on a page. A page that does not exist, or has no such
/// place, is written whole, under this title.
///
/// # Errors
///
/// If the page can be neither read nor written.
pub fn update(path: &Path, title: &str, measured: &str) -> io::Result<()> {
    let old = match fs::read_to_string(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    write_file(path, &page(old.as_deref(), title, measured))
}

/// Writes a file, and makes its folder if there is none.
///
/// # Errors
///
/// If the file system refuses one or the other.
pub fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| fs::write(path, text))
}

/// The page with what was measured in its place.
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
    fn what_people_wrote_stays() {
        let old = format!("# Title\n\nWhy.\n\n{BEGIN}\nold\n{END}\n\n## Outliers\n");
        let page = page(Some(&old), "Another", "fresh\n");
        assert_eq!(page, format!("# Title\n\nWhy.\n\n{BEGIN}\nfresh\n{END}\n\n## Outliers\n"));
    }

    #[test]
    fn a_page_without_a_place_is_written_whole() {
        for old in [None, Some("something else"), Some(BEGIN)] {
            assert_eq!(page(old, "Times", "x\n"), format!("# Times\n\n{BEGIN}\nx\n{END}\n"));
        }
    }

    #[test]
    fn a_page_is_made_and_written_again() {
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
