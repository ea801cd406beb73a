//! A package that implements `Communicator` instantiates the suite of all communicators.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use super::Finding;
use super::source::{Mentions, is_test_file, visit_items};
use super::tree::Tree;

const SUITE: &str = "communicator_conformance!";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let folders = tree.packages.iter().map(|package| package.folder());
    folders.filter_map(|folder| check_folder(tree, folder)).collect()
}

/// Returns the first implementation of a package without the suite. Other rules report files that
/// are not Rust.
fn check_folder(tree: &Tree, folder: &Path) -> Option<Finding> {
    let files = || tree.texts_with_extension("rs").filter(|(path, _)| path.starts_with(folder));
    let implementation = files()
        .filter(|(path, _)| path.starts_with(folder.join("src")) && !is_test_file(path))
        .find_map(|(path, text)| Some((path, implementation(text.parse().ok()?)?)));
    let (path, line) = implementation?;
    let has_suite = files()
        .filter_map(|(_, text)| Mentions::everywhere(text).ok())
        .any(|mentions| mentions.lines(SUITE).next().is_some());
    let message = format!("this package implements Communicator: instantiate comm_sim::{SUITE} in its tests");
    (!has_suite).then(|| Finding::new(path, line, message))
}

/// Returns the line of the first implementation of `Communicator` in a file or its inline modules.
fn implementation(tokens: TokenStream) -> Option<usize> {
    let mut line = None;
    visit_items(tokens, &mut |rest| {
        if let [TokenTree::Ident(name), after @ ..] = rest
            && name == "Communicator"
            && is_implemented(after)
        {
            line.get_or_insert(name.span().start().line);
        }
    });
    line
}

/// Returns whether `for` follows the arguments of a trait.
fn is_implemented(after_name: &[TokenTree]) -> bool {
    let mut depth = 0;
    let next = after_name.iter().find(|token| {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '<' => depth += 1,
            TokenTree::Punct(mark) if mark.as_char() == '>' => depth -= 1,
            _ => return depth == 0,
        }
        false
    });
    matches!(next, Some(TokenTree::Ident(word)) if word == "for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_finding(source: &str, test: &str, wanted: Option<usize>) {
        let tree = Tree::with_texts([("a/src/lib.rs", source), ("a/tests/b.rs", test), ("c/d.rs", INSTANCE)]);
        let finding = check_folder(&tree, Path::new("a"));
        assert_eq!(finding.map(|finding| finding.line), wanted, "{source}");
    }

    const INSTANCE: &str = "comm_sim::communicator_conformance!(all, [1], create);";

    #[test]
    fn an_implementation_without_the_suite_is_found() {
        for source in [
            "struct A;\nimpl Communicator for A {}",
            "mod m {\n    impl<T: Transport> comm_core::Communicator<Cuda<T>> for A<T> {} }",
        ] {
            assert_finding(source, "// communicator_conformance!", Some(2));
            assert_finding(source, INSTANCE, None);
        }
    }

    #[test]
    fn bounds_other_traits_and_tests_are_no_implementations() {
        for source in [
            "fn f(a: &dyn Communicator, b: impl Communicator<Cuda>) { for _ in [1] {} }",
            "impl HostCommunicator for A {}",
            "#[cfg(test)]\nmod tests { impl Communicator for A {} }",
        ] {
            assert_finding(source, "", None);
        }
    }
}
