//! Measures this library and its peers in one run, and writes a report.
//!
//! A round measures every collective with every number of ranks: first the limits of the machine
//! that bound its times, then all installed libraries, one after another, in an order that rotates
//! between rounds. Ratios are taken within a round, so that a slow phase of the machine affects all
//! of them. Measurements are appended to a journal, from which an interrupted run continues, and
//! from which the report can be written again.

mod args;
mod bars;
mod bounds;
mod collective;
mod journal;
mod library;
mod limits;
mod line;
mod machine;
mod page;
mod plot;
mod process;
mod ratio;
mod record;
mod rounds;
mod training;

use std::io::{self, Write};
use std::path::PathBuf;

use comm_cli::__private::page as document;

use crate::error::{Error, Result};
use crate::{commands, places};
pub(crate) use args::Compare;
use collective::Collective;
use journal::Journal;
pub(crate) use machine::commit;
use record::Record;
use rounds::Rounds;

const TITLE: &str = "Performance";

impl Compare {
    /// Measures, unless journals are given, and writes the report with its plot.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        if !self.from.is_empty() {
            let journals = self.from.iter().map(|path| journal::read(path));
            let records: Vec<Record> = journals.collect::<Result<Vec<_>>>()?.concat();
            return self.write(&records, out);
        }
        if self.ddp {
            return training::measure(self, out, |records, mut out| self.write(records, &mut out));
        }
        let libraries = library::find(self, out)?;
        build()?;
        let mut journal = Journal::open(&self.journal(), self.fresh)?;
        let run = journal.start(machine::Environment::current()?, &libraries.versions())?;
        if !journal.records.iter().any(|record| matches!(record, Record::Limit(limit) if limit.run == run)) {
            writeln!(out, "measuring the limits of this machine")?;
            limits::measure(run, &mut journal)?;
        }
        let rounds = Rounds::new(self, &libraries, built(limits::PROGRAM));
        rounds.measure(run, &mut journal, out, |journal, _| self.write(&journal.records, &mut io::sink()))?;
        self.write(&journal.records, out)
    }

    fn write(&self, records: &[Record], out: &mut impl Write) -> Result<()> {
        let text = self.collectives_section(records)? + &training::section(records, &self.out)?;
        if text.is_empty() {
            return Err(Error::NoMeasurements);
        }
        document::update(&self.out, TITLE, &text).map_err(Error::file(&self.out))?;
        writeln!(out, "wrote {} and its pictures", self.out.display())?;
        Ok(())
    }

    /// Returns the report on collectives, after writing its plot. Returns an empty text if no
    /// collective was measured.
    fn collectives_section(&self, records: &[Record]) -> Result<String> {
        let comparison = ratio::Comparison::of(records);
        if comparison.is_empty() {
            return Ok(String::new());
        }
        let mut pictures = Vec::new();
        for collective in Collective::ALL {
            let Some(figure) = plot::picture(&comparison, collective) else { continue };
            let path = self.picture(collective);
            document::write_file(&path, &figure.svg()?).map_err(Error::file(&path))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            pictures.push((collective, name.into_owned()));
        }
        Ok(page::text(&comparison, records, &pictures))
    }

    /// Returns the path of the plot of a collective: that of the page with `-NAME.svg` instead of
    /// its extension.
    fn picture(&self, collective: Collective) -> PathBuf {
        let stem = self.out.file_stem().unwrap_or_default().to_string_lossy();
        self.out.with_file_name(format!("{stem}-{collective}.svg"))
    }
}

/// Builds the programs with the release profile.
fn build() -> Result<()> {
    let packages = ["--package", "comm-cli", "--bin", "commctl", "--package", "benches", "--bin", "limits"];
    let mut cargo = commands::cargo();
    cargo.args(["build", "--quiet", "--release"]).args(packages).current_dir(places::root());
    commands::run(&mut cargo)
}

fn built(program: &str) -> PathBuf {
    places::target().join("release").join(program)
}
