//! The targets of relative links in documents exist.

use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{CowStr, Event, Parser, Tag};

use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.texts_with_extension("md").flat_map(|(path, text)| check_document(tree, path, text)).collect()
}

fn check_document(tree: &Tree, path: &Path, text: &str) -> Vec<Finding> {
    let exists = |link: &str| target_of(path, link).is_some_and(|target| tree.paths.contains(&target));
    relative_links(text)
        .filter(|(_, link)| !exists(link))
        .map(|(line, link)| Finding::new(path, line, format!("the target of the link {link} does not exist")))
        .collect()
}

/// Returns the links within this repository with their lines.
pub(super) fn relative_links(text: &str) -> impl Iterator<Item = (usize, CowStr<'_>)> {
    Parser::new(text).into_offset_iter().filter_map(|(event, range)| {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else {
            return None;
        };
        is_relative(&dest_url).then(|| (text[..range.start].lines().count().max(1), dest_url))
    })
}

fn is_relative(link: &str) -> bool {
    let leaves = link.contains("://") || link.starts_with("mailto:");
    !leaves && !file_part(link).is_empty()
}

fn file_part(link: &str) -> &str {
    link.split_once('#').map_or(link, |(file, _anchor)| file)
}

/// Returns the file to which a relative link in `document` leads, or `None` if it leaves the
/// repository.
pub(super) fn target_of(document: &Path, link: &str) -> Option<PathBuf> {
    resolve(document.parent().unwrap_or(Path::new("")), file_part(link))
}

/// Resolves `link` from `folder`, or returns `None` if it leaves the repository.
fn resolve(folder: &Path, link: &str) -> Option<PathBuf> {
    let mut target = folder.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            Component::ParentDir if target.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead_links(document: &str) -> Vec<(usize, String)> {
        let tree = Tree::with_texts([("README.md", ""), ("docs/a.md", document), ("docs/b.md", "")]);
        check(&tree).into_iter().map(|finding| (finding.line, finding.message)).collect()
    }

    #[test]
    fn links_to_existing_files_pass() {
        let document = "[b](b.md) [b](./b.md#part) [readme](../README.md) [folder](../docs) [here](#part)
            <https://example.org> [far](https://example.org/x.md) [ref]\n\n[ref]: b.md\n";
        assert_eq!(dead_links(document), []);
    }

    #[test]
    fn dead_links_are_found_with_their_line() {
        for dead in ["[b](c.md)", "[b](/docs/b.md)", "[b](../../x.md)", "![picture](b.svg)", "[b](B.md)"] {
            let found = dead_links(&format!("# Title\n\ntext {dead}\n"));
            assert_eq!(found.len(), 1, "{dead}");
            assert_eq!(found[0].0, 3, "{dead}");
        }
        assert_eq!(dead_links("[ref]\n\n[ref]: c.md\n").len(), 1);
    }

    #[test]
    fn code_has_no_links() {
        assert_eq!(dead_links("```\n[b](c.md)\n```\n\n`[b](c.md)`\n"), []);
    }
}
