//! The pages in `docs` form a book: its contents list each page, and no page links to a file
//! outside of `docs`, which the book does not contain.

use std::path::{Path, PathBuf};

use super::Finding;
use super::links::{relative_links, target_of};
use super::tree::Tree;

const FOLDER: &str = "docs";
const CONTENTS: &str = "docs/SUMMARY.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = || tree.texts_with_extension("md").filter(|(path, _)| path.starts_with(FOLDER));
    let listed: Vec<PathBuf> = targets(Path::new(CONTENTS), tree.text(Path::new(CONTENTS)))
        .filter_map(|(_, _, target)| target)
        .collect();
    let missing = pages()
        .filter(|(path, _)| *path != Path::new(CONTENTS) && !listed.iter().any(|page| page == *path))
        .map(|(path, _)| Finding::new(path, 1, format!("is not listed in {CONTENTS}")));
    let outside = pages().flat_map(|(path, text)| {
        targets(path, text)
            .filter(|(_, _, target)| !target.as_ref().is_some_and(|file| file.starts_with(FOLDER)))
            .map(move |(line, link, _)| {
                let message = format!("the link {link} leaves {FOLDER}: name the file without a link");
                Finding::new(path, line, message)
            })
    });
    missing.chain(outside).collect()
}

/// Returns the relative links of a page with their lines and the files to which they lead.
fn targets<'a>(path: &'a Path, text: &'a str) -> impl Iterator<Item = (usize, String, Option<PathBuf>)> {
    relative_links(text).map(|(line, link)| (line, link.to_string(), target_of(path, &link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a book with this page and these contents.
    fn messages(contents: &str, page: &str) -> Vec<String> {
        let tree = Tree::with_texts([("README.md", ""), (CONTENTS, contents), ("docs/a.md", page)]);
        check(&tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_listed_page_with_links_inside_the_book_passes() {
        let page = "[own](#part) [page](a.md#part) [far](https://example.org)\n";
        assert!(messages("- [A](a.md)\n", page).is_empty());
    }

    #[test]
    fn a_page_that_is_not_listed_is_found() {
        assert_eq!(messages("# Summary\n", ""), ["is not listed in docs/SUMMARY.md"]);
    }

    #[test]
    fn a_link_out_of_the_book_is_found() {
        let found = messages("- [A](a.md)\n", "[readme](../README.md)\n");
        assert_eq!(found, ["the link ../README.md leaves docs: name the file without a link"]);
    }
}
