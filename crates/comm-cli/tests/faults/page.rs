//! The page docs/faults.md, which is compared with the lines that the tests see. With
//! `WRITE_FAULTS=1` the lines are written to it instead.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Mutex;

use crate::table::{FAULTS, Fault};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/faults.md");
const WRITE: &str = "WRITE_FAULTS";

const START: &str = "\
# Injected faults

Each fault of this table was injected into real processes, and the line is the first one that a user sees of it: of `commctl doctor` before a
job, of `commctl top` during one, or the error of a rank. [debugging.md](debugging.md) describes the commands, and [failures.md](failures.md)
the errors. `HOST` stands for the name of the host on which the tests ran.

`cargo test -p comm-cli --test faults` injects all of them, and compares the lines with this page; numbers other than those of ranks may
differ. With `WRITE_FAULTS=1` it writes the page. Faults of links and mounts take root, and are skipped without.

| fault | injected by | printed by | first line | test |
|---|---|---|---|---|
";

/// The lines of the page by test.
type Lines = BTreeMap<String, String>;

fn read() -> (String, Lines) {
    let page = fs::read_to_string(PAGE).unwrap_or_default();
    let row = |row: &str| {
        let [.., line, test, _] = &row.split('|').map(str::trim).collect::<Vec<_>>()[..] else { return None };
        Some((test.trim_matches('`').to_owned(), line.trim_matches(['`', ' ']).to_owned()))
    };
    let lines = page.lines().filter_map(row).collect();
    (page, lines)
}

fn render(lines: &Lines) -> String {
    let row = |fault: &Fault| {
        let Fault { name, injection, printed_by, test, .. } = fault;
        // A line may contain code itself.
        let line = lines.get(*test).map_or("", String::as_str);
        format!("| {name} | {injection} | {printed_by} | `` {line} `` | `{test}` |\n")
    };
    START.to_owned() + &FAULTS.iter().map(row).collect::<String>()
}

/// Asserts that the page has this line, except for numbers, or writes it there.
#[track_caller]
pub(crate) fn check(fault: &Fault, line: &str) {
    static LOCK: Mutex<()> = Mutex::new(());
    assert!(!line.contains(['|']), "a line that fits into a table: {line}");
    if std::env::var_os(WRITE).is_some() {
        let _guard = LOCK.lock().unwrap();
        let (_, mut lines) = read();
        lines.insert(fault.test.to_owned(), line.to_owned());
        return fs::write(PAGE, render(&lines)).unwrap();
    }
    let (_, lines) = read();
    let expected = lines.get(fault.test).map(|line| masked(line));
    assert_eq!(expected, Some(masked(line)), "set {WRITE}=1 to rewrite the page");
}

/// Replaces all numbers; the numbers of ranks have been compared with the fault already.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for char in line.chars() {
        let is_part = char.is_ascii_digit() || (char == '.' && masked.ends_with('#'));
        match is_part {
            true if masked.ends_with('#') => {}
            true => masked.push('#'),
            false => masked.push(char),
        }
    }
    masked
}

#[test]
fn the_page_has_each_fault_with_a_test_that_exists() {
    let (page, lines) = read();
    if std::env::var_os(WRITE).is_none() {
        assert_eq!(page, render(&lines), "set {WRITE}=1 to rewrite the page");
    }
    let listed = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for Fault { test, .. } in &FAULTS {
        assert!(listed.lines().any(|line| line.ends_with(&format!("::{test}: test"))), "{test}");
    }
}
