//! Prints rows as a table, CSV or JSON.

mod csv;
mod json;
mod table;

use std::io::{self, Write};

use super::args::Format;
use super::row::{BenchmarkInfo, Row};
use super::session::Session;
use crate::error::{CliError, Result};

pub(crate) use table::ranks;

/// Prints results on rank 0, and nothing on other ranks.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    info: BenchmarkInfo,
    transport: String,
    is_enabled: bool,
}

impl Printer {
    pub(crate) fn new(format: Format, info: BenchmarkInfo, session: &Session) -> Self {
        Self { format, info, transport: session.transport(), is_enabled: session.prints() }
    }

    pub(crate) fn header(&self, session: &Session) -> Result<()> {
        match self.format {
            Format::Table => self.line(&table::header(&self.info, session)),
            Format::Csv => self.line(csv::HEADER),
            Format::Json => Ok(()),
        }
    }

    pub(crate) fn row(&self, row: &Row) -> Result<()> {
        self.line(&match self.format {
            Format::Table => table::row(&self.info, row),
            Format::Csv => csv::row(&self.info, &self.transport, row),
            Format::Json => json::row(&self.info, &self.transport, row)?,
        })
    }

    pub(crate) fn footer(&self, wrong: Option<u64>) -> Result<()> {
        match (self.format, wrong) {
            (Format::Table, Some(wrong)) => self.line(&format!("# {wrong} wrong elements")),
            _ => Ok(()),
        }
    }

    fn line(&self, text: &str) -> Result<()> {
        if self.is_enabled { line(text) } else { Ok(()) }
    }
}

/// Writes a line to standard output and flushes it.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(CliError::write("standard output"))
}
