//! Markdown tables.

use std::fmt;

/// A Markdown table.
#[derive(Debug)]
pub(super) struct Table {
    lines: Vec<String>,
}

impl Table {
    pub(super) fn new(names: &[&str]) -> Self {
        Self { lines: vec![joined(names.iter().copied()), joined(names.iter().map(|_| "---"))] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        self.lines.push(joined(cells.iter().map(String::as_str)));
    }
}

fn joined<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
