//! Public enums, and structs with public fields, are `#[non_exhaustive]` or listed with a reason.
//!
//! The list is a table in [`TABLE`], with a row per reason; a file of types that are not API is
//! listed by its path in `src`.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;
use super::source::{Attribute, after_test_item, is_test_file};
use super::tree::Tree;

/// The page with the table, and its heading.
const TABLE: (&str, &str) = ("docs/architecture.md", "## Types that stay exhaustive");

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut unused: Vec<Entry> = entries(tree.text(TABLE.0.as_ref()));
    let listed = unused.clone();
    let mut findings = Vec::new();
    for package in tree.packages.iter().filter(|package| package.is_publishable()) {
        let folder = package.folder().join("src");
        for (path, text) in tree.texts_with_extension("rs") {
            let Ok(file) = path.strip_prefix(&folder) else { continue };
            if is_test_file(path) {
                continue;
            }
            let Ok(tokens) = text.parse() else {
                findings.push(Finding::new(path, 1, "is not Rust"));
                continue;
            };
            for found in exhaustive(tokens) {
                let names = |entry: &Entry| entry.names(&package.name, file, &found.name);
                unused.retain(|entry| !names(entry));
                if !listed.iter().any(names) {
                    let message = format!(
                        "{} is exhaustive: make it #[non_exhaustive], or list it with a reason in {}",
                        found.name, TABLE.0
                    );
                    findings.push(Finding::new(path, found.line, message));
                }
            }
        }
    }
    let stale = |entry: Entry| {
        let message = format!("{} has no exhaustive {}", entry.package, entry.item);
        Finding::new(TABLE.0, entry.line, message)
    };
    findings.extend(unused.into_iter().map(stale));
    findings
}

/// A type, file or folder in the table.
#[derive(Clone, Debug)]
struct Entry {
    package: String,
    item: String,
    line: usize,
}

impl Entry {
    fn names(&self, package: &str, file: &Path, name: &str) -> bool {
        let is_path = self.item.ends_with(".rs") || self.item.ends_with('/');
        self.package == package && if is_path { file.starts_with(&self.item) } else { self.item == name }
    }
}

/// Parses the table: each row has a package in the first column and items in the second.
fn entries(page: &str) -> Vec<Entry> {
    let lines = page.lines().enumerate().skip_while(|(_, line)| *line != TABLE.1).skip(1);
    let section = lines.take_while(|(_, line)| !line.starts_with("## "));
    section
        .filter_map(|(index, line)| {
            let mut columns = line.strip_prefix('|')?.split('|').map(quoted);
            let package = columns.next()?.into_iter().next()?;
            Some((index + 1, package, columns.next()?))
        })
        .flat_map(|(line, package, items)| {
            items.into_iter().map(move |item| Entry { package: package.clone(), item, line })
        })
        .collect()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// An exhaustive type.
#[derive(Debug, PartialEq, Eq)]
struct Type {
    name: String,
    line: usize,
}

fn exhaustive(tokens: TokenStream) -> Vec<Type> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    let mut found = Vec::new();
    let mut is_open = false;
    while let Some(token) = rest.first() {
        if let Some(after) = after_test_item(rest) {
            (rest, is_open) = (after, false);
            continue;
        }
        if let Some(attribute) = Attribute::at_start_of(rest) {
            is_open |= attribute.group.stream().to_string() == "non_exhaustive";
            rest = attribute.rest;
            continue;
        }
        match rest {
            [TokenTree::Ident(public), TokenTree::Ident(kind), TokenTree::Ident(name), body @ ..]
                if public == "pub"
                    && (kind == "struct" || kind == "enum")
                    && !is_open
                    && is_public_inside(body, kind == "enum") =>
            {
                found.push(Type { name: name.to_string(), line: name.span().start().line });
            }
            [TokenTree::Group(group), ..] => found.extend(exhaustive(group.stream())),
            _ => {}
        }
        is_open &= matches!(token, TokenTree::Ident(_));
        rest = &rest[1..];
    }
    found
}

/// Returns whether the body of a type has a variant or a public field.
fn is_public_inside(tokens: &[TokenTree], is_enum: bool) -> bool {
    let ends = |token: &&TokenTree| !matches!(token, TokenTree::Punct(mark) if mark.as_char() == ';');
    let groups = || {
        tokens.iter().take_while(ends).filter_map(|token| match token {
            TokenTree::Group(group) => Some(group),
            _ => None,
        })
    };
    let braced = groups().find(|group| group.delimiter() == Delimiter::Brace);
    let Some(body) = braced.or_else(|| groups().next()) else { return false };
    let fields: Vec<TokenTree> = body.stream().into_iter().collect();
    let is_public = |pair: &[TokenTree]| match pair {
        [TokenTree::Ident(public), TokenTree::Group(scope)] => {
            public == "pub" && scope.delimiter() != Delimiter::Parenthesis
        }
        [TokenTree::Ident(public), _] => public == "pub",
        _ => false,
    };
    if is_enum { !fields.is_empty() } else { fields.windows(2).any(is_public) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::Package;

    #[track_caller]
    fn assert_types(text: &str, expected: &[(&str, usize)]) {
        let found = exhaustive(text.parse().expect("Rust"));
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.line)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn exhaustive_types_are_found() {
        assert_types("pub enum A { B }", &[("A", 1)]);
        assert_types(
            "/// Doc.\n#[derive(Debug)]\npub struct A<T: Copy> {\n    b: u8,\n    pub c: T,\n}",
            &[("A", 3)],
        );
        assert_types("pub struct A(pub u8);\npub struct B(pub &'static str);", &[("A", 1), ("B", 2)]);
        assert_types("mod m { pub enum A { B } }", &[("A", 1)]);
        assert_types("pub struct A<F> where F: Fn(u8) { pub f: F }", &[("A", 1)]);
        assert_types("#[non_exhaustive]\npub enum A { B }\npub enum C { D }", &[("C", 3)]);
    }

    #[test]
    fn extensible_types_pass() {
        for text in [
            "#[derive(Debug)]\n#[non_exhaustive]\npub struct A { pub b: u8 }",
            "#[non_exhaustive]\n/// Doc.\npub enum A { B }",
            "pub struct A { b: u8, pub(crate) c: u8 }\npub struct D(pub(crate) u8);",
            "pub struct A;\npub struct B();\npub enum C {}",
            "pub(crate) enum A { B }\nenum C { D }",
            "#[cfg(test)]\nmod tests { pub enum A { B } }",
            "pub struct A { b: fn(u8) }\nimpl A { pub fn c() {} }",
        ] {
            assert_types(text, &[]);
        }
    }

    /// Checks one file of a published package, with these rows in the table.
    fn messages(path: &str, text: &str, rows: &str) -> Vec<String> {
        let page =
            format!("# Page\n\n| `a` | `Early` |\n\n{}\n\n| crate | types |\n|---|---|\n{rows}\n", TABLE.1);
        let mut tree = Tree::with_texts([(path, text), (TABLE.0, &page)]);
        tree.packages = vec![Package::with_dependencies("a", Vec::new())];
        check(&tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_type_needs_a_row_of_its_own_crate() {
        let text = "pub enum A { B }";
        assert!(
            messages("crates/a/src/b.rs", text, "| `a` | `A`, `folder/` | why |\n")[0].contains("folder/")
        );
        assert!(messages("crates/a/src/b.rs", text, "| `a` | `A` | as `B` |").is_empty());
        assert!(messages("crates/a/src/b/c.rs", text, "| `a` | `b/` | why |").is_empty());
        assert!(messages("crates/a/src/b.rs", text, "| `a` | `b.rs` | why |").is_empty());
        assert!(messages("crates/a/src/b.rs", text, "")[0].starts_with("A is exhaustive"));
        assert_eq!(messages("crates/a/src/b.rs", text, "| `b` | `A` | why |").len(), 2);
        assert_eq!(messages("crates/a/src/b.rs", text, "| `a` | `c/` | why |").len(), 2);
    }

    #[test]
    fn tests_and_private_packages_are_exempt() {
        assert!(messages("crates/a/tests/b.rs", "pub enum A { B }", "").is_empty());
        assert!(messages("crates/c/src/b.rs", "pub enum A { B }", "").is_empty());
    }
}
