//! Finds the paths in Rust source.
//!
//! It works on tokens, so it ignores comments and strings, and supports grouped imports such as
//! `use std::{net, thread}`. It does not resolve names, so renamed imports are not found.

use std::path::Path;

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

/// Returns whether a file contains only tests.
pub(super) fn is_test_file(path: &Path) -> bool {
    let in_test_folder = path.iter().any(|part| part == "tests" || part == "benches");
    in_test_folder || path.file_name().is_some_and(|name| name == "tests.rs")
}

/// The paths in a source file.
#[derive(Debug)]
pub(super) struct Mentions(Vec<Mention>);

#[derive(Debug, PartialEq, Eq)]
struct Mention {
    line: usize,
    segments: Vec<String>,
    is_macro: bool,
}

impl Mentions {
    pub(super) fn everywhere(text: &str) -> Result<Self, LexError> {
        Self::collect(text, Tests::Included)
    }

    /// Returns the paths outside of items that are compiled only for tests.
    pub(super) fn outside_tests(text: &str) -> Result<Self, LexError> {
        Self::collect(text, Tests::Skipped)
    }

    fn collect(text: &str, tests: Tests) -> Result<Self, LexError> {
        let mut mentions = Vec::new();
        Walk { tests, mentions: &mut mentions }.walk(text.parse()?, &[]);
        Ok(Self(mentions))
    }

    /// Returns the lines with `wanted`: a path such as `std::net`, which may be part of a longer
    /// one, or a macro with its exclamation mark.
    pub(super) fn lines<'a>(&'a self, wanted: &'a str) -> impl Iterator<Item = usize> + 'a {
        let path = wanted.strip_suffix('!');
        let segments: Vec<&str> = path.unwrap_or(wanted).split("::").collect();
        let found = move |mention: &&Mention| {
            let mut windows = mention.segments.windows(segments.len());
            if path.is_some() {
                mention.is_macro && windows.next_back().is_some_and(|last| last == segments)
            } else {
                windows.any(|window| window == segments)
            }
        };
        self.0.iter().filter(found).map(|mention| mention.line)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tests {
    Included,
    Skipped,
}

struct Walk<'a> {
    tests: Tests,
    mentions: &'a mut Vec<Mention>,
}

impl Walk<'_> {
    /// Visits a list of tokens. `prefix` is the path before the braces of an import.
    fn walk(&mut self, stream: TokenStream, prefix: &[String]) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let mut rest = tokens.as_slice();
        while let Some(token) = rest.first() {
            if self.tests == Tests::Skipped
                && let Some(after) = after_test_item(rest)
            {
                rest = after;
                continue;
            }
            rest = match token {
                TokenTree::Ident(_) => self.path(rest, prefix),
                TokenTree::Group(group) => {
                    self.walk(group.stream(), &[]);
                    &rest[1..]
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => &rest[1..],
            };
        }
    }

    /// Records the path at the start of `tokens`, and returns the tokens after it.
    fn path<'t>(&mut self, mut tokens: &'t [TokenTree], prefix: &[String]) -> &'t [TokenTree] {
        let line = tokens[0].span().start().line;
        let mut segments = prefix.to_vec();
        while let [TokenTree::Ident(ident), rest @ ..] = tokens {
            segments.push(ident.to_string());
            tokens = rest;
            match after_colons(tokens) {
                Some([TokenTree::Group(group), rest @ ..]) if group.delimiter() == Delimiter::Brace => {
                    self.walk(group.stream(), &segments);
                    return rest;
                }
                Some(rest @ [TokenTree::Ident(_), ..]) => tokens = rest,
                _ => break,
            }
        }
        let is_macro =
            matches!(tokens, [TokenTree::Punct(mark), TokenTree::Group(_), ..] if mark.as_char() == '!');
        self.mentions.push(Mention { line, segments, is_macro });
        tokens
    }
}

fn after_colons(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    match tokens {
        [TokenTree::Punct(a), TokenTree::Punct(b), rest @ ..] if a.as_char() == ':' && b.as_char() == ':' => {
            Some(rest)
        }
        _ => None,
    }
}

/// Calls `visit` with the tokens from each position of a file and of its inline modules, without
/// attributes and items that are compiled only for tests.
pub(super) fn visit_items(stream: TokenStream, visit: &mut dyn FnMut(&[TokenTree])) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut rest = tokens.as_slice();
    while !rest.is_empty() {
        let attribute = || Attribute::at_start_of(rest).map(|attribute| attribute.rest);
        if let Some(after) = after_test_item(rest).or_else(attribute) {
            rest = after;
            continue;
        }
        visit(rest);
        if let [TokenTree::Ident(module), TokenTree::Ident(_), TokenTree::Group(body), ..] = rest
            && module == "mod"
            && body.delimiter() == Delimiter::Brace
        {
            visit_items(body.stream(), visit);
        }
        rest = &rest[1..];
    }
}

/// An attribute, and the tokens after it.
pub(super) struct Attribute<'t> {
    is_inner: bool,
    pub(super) group: &'t Group,
    pub(super) rest: &'t [TokenTree],
}

impl<'t> Attribute<'t> {
    pub(super) fn at_start_of(tokens: &'t [TokenTree]) -> Option<Self> {
        let is =
            |token: &TokenTree, wanted| matches!(token, TokenTree::Punct(mark) if mark.as_char() == wanted);
        let (is_inner, tokens) = match tokens {
            [hash, mark, rest @ ..] if is(hash, '#') && is(mark, '!') => (true, rest),
            [hash, rest @ ..] if is(hash, '#') => (false, rest),
            _ => return None,
        };
        match tokens {
            [TokenTree::Group(group), rest @ ..] if group.delimiter() == Delimiter::Bracket => {
                Some(Self { is_inner, group, rest })
            }
            _ => None,
        }
    }

    /// Returns whether this is a `cfg` that is true only for tests.
    fn is_for_tests(&self) -> bool {
        let tokens: Vec<TokenTree> = self.group.stream().into_iter().collect();
        match tokens.as_slice() {
            [TokenTree::Ident(name), TokenTree::Group(condition)] => name == "cfg" && needs_test(condition),
            _ => false,
        }
    }
}

/// Returns the tokens after an item at the start that is compiled only for tests.
pub(super) fn after_test_item(tokens: &[TokenTree]) -> Option<&[TokenTree]> {
    let attribute = Attribute::at_start_of(tokens).filter(Attribute::is_for_tests)?;
    // An inner attribute applies to the surrounding item.
    Some(if attribute.is_inner { &[] } else { after_item(attribute.rest) })
}

/// `test` and `all(.., test, ..)` require it; `not(test)` and `any(test, ..)` do not.
fn needs_test(condition: &Group) -> bool {
    let tokens: Vec<TokenTree> = condition.stream().into_iter().collect();
    (0..tokens.len()).any(|index| match &tokens[index..] {
        [TokenTree::Ident(name), TokenTree::Group(inner), ..] => name == "all" && needs_test(inner),
        [TokenTree::Ident(name), ..] => name == "test",
        _ => false,
    })
}

/// Returns the tokens after the item at the start, which ends with a semicolon or a body in braces.
fn after_item(mut tokens: &[TokenTree]) -> &[TokenTree] {
    while let Some(attribute) = Attribute::at_start_of(tokens) {
        tokens = attribute.rest;
    }
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => mark.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Ident(_) | TokenTree::Literal(_) => false,
    };
    let length = tokens.iter().position(ends).map_or(tokens.len(), |end| end + 1);
    &tokens[length..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_lines(text: &str, wanted: &str, lines: &[usize]) {
        let mentions = Mentions::outside_tests(text).expect("Rust");
        assert_eq!(mentions.lines(wanted).collect::<Vec<_>>(), lines, "{wanted} in {text}");
    }

    #[test]
    fn plain_mentions_are_found() {
        assert_lines("fn f() {\n    std::thread::spawn(|| ());\n}", "std::thread", &[2]);
        assert_lines("fn f() -> ::std::net::SocketAddr { g() }", "std::net", &[1]);
        assert_lines("fn f() { let t = std::time::Instant::now(); }", "Instant::now", &[1]);
        assert_lines("fn f(step: Step) -> Vec<Step> { g::<Step>() }", "Step", &[1, 1, 1]);
    }

    #[test]
    fn imports_are_found_however_they_are_grouped() {
        assert_lines("use std::net::TcpStream;", "std::net", &[1]);
        assert_lines("use std::{fmt,\n thread};", "std::thread", &[2]);
        assert_lines("use std::{io::{self, Read}, net::{SocketAddr, TcpStream}};", "std::net", &[1, 1]);
        assert_lines("use std::thread::{self, Builder};", "std::thread", &[1, 1]);
        assert_lines("pub(crate) use std::fs as files;", "std::fs", &[1]);
        assert_lines("use std::fs::*;", "std::fs", &[1]);
    }

    #[test]
    fn macros_are_found_even_inside_macros() {
        assert_lines("fn f() { println!(\"x\"); }", "println!", &[1]);
        assert_lines("fn f() { std::println!(\"x\"); }", "println!", &[1]);
        assert_lines("macro_rules! m { () => { eprintln!(\"x\") } }", "eprintln!", &[1]);
        assert_lines("fn f() { vec![std::env::var(\"X\")]; }", "std::env", &[1]);
    }

    #[test]
    fn comments_strings_and_longer_names_do_not_count() {
        assert_lines("// std::thread\n/* std::thread /* nested */ */ fn f() {}", "std::thread", &[]);
        assert_lines("//! std::thread\n/// std::thread\nfn f() {}", "std::thread", &[]);
        assert_lines(
            r##"const A: &str = "std::thread"; const B: &str = r#"std::thread"#;"##,
            "std::thread",
            &[],
        );
        assert_lines("struct Stepper; fn step() { Stepper::Steps }", "Step", &[]);
        assert_lines("use core::net::IpAddr; use std::networks;", "std::net", &[]);
        assert_lines("fn println() { println() != 3; }", "println!", &[]);
    }

    #[test]
    fn items_for_tests_do_not_count() {
        assert_lines("#[cfg(test)]\nmod tests { use std::thread; }", "std::thread", &[]);
        assert_lines(
            "#[cfg(test)]\n#[allow(x)]\npub fn f() { std::thread::yield_now() }",
            "std::thread",
            &[],
        );
        assert_lines("#[cfg(all(test, unix))] use std::thread;", "std::thread", &[]);
        assert_lines("mod a { #[cfg(test)] mod b { use std::thread; } }", "std::thread", &[]);
        assert_lines("#![cfg(test)]\nuse std::fmt;\nuse std::thread;", "std::thread", &[]);
        let text = "#[cfg(test)]\nmod tests {}\nuse std::thread;";
        assert_lines(text, "std::thread", &[3]);
        assert_eq!(
            Mentions::everywhere("#[cfg(test)] use std::thread;").expect("Rust").lines("std::thread").count(),
            1
        );
    }

    #[test]
    fn items_for_more_than_tests_count() {
        assert_lines("#[cfg(not(test))] use std::thread;", "std::thread", &[1]);
        assert_lines("#[cfg(any(test, feature = \"x\"))] use std::thread;", "std::thread", &[1]);
        assert_lines("#[cfg(unix)] use std::thread;", "std::thread", &[1]);
        assert_lines("#[test] fn f() {} use std::thread;", "std::thread", &[1]);
    }

    #[test]
    fn test_files_are_recognised_by_their_path() {
        for path in ["crates/a/tests/b.rs", "crates/a/src/c/tests.rs", "crates/a/benches/b.rs"] {
            assert!(is_test_file(path.as_ref()), "{path}");
        }
        assert!(!is_test_file("crates/a/src/latests.rs".as_ref()));
    }
}
