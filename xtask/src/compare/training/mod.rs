//! Measures the overhead of data parallel training by this library and by PyTorch.
//!
//! A program trains the same models on the same samples with every library, and measures pairs of
//! blocks of steps with and without synchronization in the same processes. In a round every
//! program runs once, in an order that rotates between rounds; ratios are taken within a round.

mod bars;
mod line;
mod model;
mod overhead;
mod page;
mod plot;
mod program;
mod rounds;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use comm_cli::__private::page as document;

use super::args::Compare;
use super::journal::{Journal, LibraryVersions};
use super::machine::Environment;
use super::record::Record;
use crate::error::{Error, Result};
use crate::{commands, places};
pub(crate) use model::TrainingCase;
#[cfg(test)]
use model::TrainingModel;
use overhead::Overheads;

/// Measures, and calls `write` with all records after every round.
pub(super) fn measure(
    compare: &Compare,
    out: &mut impl Write,
    write: impl Fn(&[Record], &mut dyn Write) -> Result<()>,
) -> Result<()> {
    let peer = program::pytorch(&compare.python);
    match &peer {
        Ok((_, version)) => writeln!(out, "pytorch: {version}")?,
        Err(reason) => return Err(Error::Usage(reason.clone())),
    }
    build()?;
    let programs: Vec<_> = program::ours(compare).into_iter().chain(peer).collect();
    let mut journal = Journal::open(&compare.journal(), compare.fresh)?;
    let versions = programs.iter().flat_map(|(program, version)| {
        program.libraries().into_iter().map(|library| (library, version.clone()))
    });
    let libraries = LibraryVersions { installed: versions.collect(), missing: Vec::new() };
    let run = journal.start(Environment::current()?, &libraries)?;
    let programs = programs.into_iter().map(|(program, _)| program).collect();
    let rounds = rounds::TrainingRounds::new(compare, programs);
    rounds.measure(run, &mut journal, out, |journal| write(&journal.records, &mut io::sink()))?;
    write(&journal.records, out)
}

/// Returns the section of the report, after writing its plot next to `page`. Returns an empty text
/// if nothing was measured.
pub(super) fn section(records: &[Record], page: &Path) -> Result<String> {
    let overheads = Overheads::of(records);
    if overheads.is_empty() {
        return Ok(String::new());
    }
    let picture = picture_path(page);
    document::write_file(&picture, &plot::picture(&overheads).svg()?).map_err(Error::file(&picture))?;
    let name = picture.file_name().unwrap_or_default().to_string_lossy();
    Ok(page::text(&overheads, records, &name))
}

/// Returns the path of the plot: that of the page with `-ddp.svg` instead of its extension.
fn picture_path(page: &Path) -> PathBuf {
    let stem = page.file_stem().map_or_else(Default::default, OsStr::to_string_lossy);
    page.with_file_name(format!("{stem}-ddp.svg"))
}

/// Builds the program with the release profile.
fn build() -> Result<()> {
    let mut cargo = commands::cargo();
    cargo.args(["build", "--quiet", "--release", "--package", "benches", "--bin", "ddp"]);
    commands::run(cargo.current_dir(places::root()))
}

#[cfg(test)]
mod tests;
