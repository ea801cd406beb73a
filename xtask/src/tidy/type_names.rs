//! No two types of a package have the same name, and none shadows a name of the prelude.
//!
//! Types that only tests compile do not count, and neither do aliases called `Result`, as in
//! `std::io`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

use super::Finding;
use super::source::{is_test_file, visit_items};
use super::tree::Tree;

/// Types, traits and variants of the prelude of the 2024 edition.
const PRELUDE: [&str; 38] = [
    "AsMut",
    "AsRef",
    "Box",
    "Clone",
    "Copy",
    "Default",
    "DoubleEndedIterator",
    "Drop",
    "Eq",
    "Err",
    "ExactSizeIterator",
    "Extend",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "FromIterator",
    "Future",
    "Into",
    "IntoFuture",
    "IntoIterator",
    "Iterator",
    "None",
    "Ok",
    "Option",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "Send",
    "Sized",
    "Some",
    "String",
    "Sync",
    "ToOwned",
    "ToString",
    "TryFrom",
    "TryInto",
    "Vec",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.packages
        .iter()
        .flat_map(|package| {
            let folder = package.folder().join("src");
            let files = tree
                .texts_with_extension("rs")
                .filter(move |(path, _)| path.starts_with(&folder) && !is_test_file(path));
            check_package(files)
        })
        .collect()
}

fn check_package<'a>(files: impl Iterator<Item = (&'a Path, &'a str)>) -> Vec<Finding> {
    let mut seen: BTreeMap<String, (PathBuf, usize)> = BTreeMap::new();
    let mut findings = Vec::new();
    for (path, text) in files {
        let Ok(tokens) = text.parse() else {
            findings.push(Finding::new(path, 1, "is not Rust"));
            continue;
        };
        for (name, line) in types(tokens) {
            if PRELUDE.contains(&name.as_str()) {
                let message = format!("{name} is a name of the prelude: rename it");
                findings.push(Finding::new(path, line, message));
            }
            if let Some((other, at)) = seen.get(&name) {
                let message = format!("{name} is also a type at {}:{at}: rename one", other.display());
                findings.push(Finding::new(path, line, message));
            } else {
                seen.insert(name, (path.to_owned(), line));
            }
        }
    }
    findings
}

/// Returns the names and lines of the types of a file and of its inline modules.
fn types(tokens: TokenStream) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    visit_items(tokens, &mut |rest| {
        if let [TokenTree::Ident(kind), TokenTree::Ident(name), ..] = rest
            && ["struct", "enum", "union", "trait", "type"].iter().any(|word| kind == word)
            && !(kind == "type" && name == "Result")
        {
            found.push((name.to_string(), name.span().start().line));
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_messages(files: &[(&str, &str)], expected: &[&str]) {
        let files = files.iter().map(|(path, text)| (Path::new(*path), *text));
        let messages: Vec<String> = check_package(files).into_iter().map(|finding| finding.message).collect();
        assert_eq!(messages, expected);
    }

    #[test]
    fn two_types_of_a_name_are_found() {
        assert_messages(
            &[("a.rs", "struct A;\nenum B {}"), ("b.rs", "pub(crate) trait C {}\nmod m { type A = u8; }")],
            &["A is also a type at a.rs:1: rename one"],
        );
    }

    #[test]
    fn names_of_the_prelude_are_found() {
        assert_messages(&[("a.rs", "enum Into { A }")], &["Into is a name of the prelude: rename it"]);
    }

    #[test]
    fn tests_associated_types_and_results_do_not_count() {
        assert_messages(
            &[
                ("a.rs", "struct A;\ntype Result<T> = u8;\nimpl I for A { type A = u8; }"),
                ("b.rs", "type Result<T> = u8;\n#[cfg(test)]\nmod tests { struct A; }"),
            ],
            &[],
        );
    }
}
