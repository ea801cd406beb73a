//! Rows for people and for programs.

mod csv;
mod json;
mod table;

use std::io::{self, Write};

use super::args::Format;
use super::error::{PerfError, Result};
use super::label::Label;
use super::row::Row;
use super::session::Session;

pub(crate) use table::ranks;

/// Prints what rank 0 has measured, and nothing on other ranks.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    label: Label,
    transport: String,
    speaks: bool,
}

impl Printer {
    pub(crate) fn new(format: Format, label: Label, session: &Session) -> Self {
        Self { format, label, transport: session.transport(), speaks: session.speaks() }
    }

    /// What comes before the rows.
    pub(crate) fn head(&self, session: &Session) -> Result<()> {
        match self.format {
            Format::Table => self.line(&table::head(&self.label, session)),
            Format::Csv => self.line(csv::HEAD),
            Format::Json => Ok(()),
        }
    }

    pub(crate) fn row(&self, row: &Row) -> Result<()> {
        self.line(&match self.format {
            Format::Table => table::row(&self.label, row),
            Format::Csv => csv::row(&self.label, &self.transport, row),
            Format::Json => json::row(&self.label, &self.transport, row)?,
        })
    }

    /// What comes after the rows.
    pub(crate) fn foot(&self, wrong: Option<u64>) -> Result<()> {
        match (self.format, wrong) {
            (Format::Table, Some(wrong)) => self.line(&format!("# {wrong} wrong elements")),
            _ => Ok(()),
        }
    }

    fn line(&self, text: &str) -> Result<()> {
        if self.speaks { line(text) } else { Ok(()) }
    }
}

/// Writes to standard output at once.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|source| PerfError::Write { path: "standard output".into(), source })
}
