//! Measures this library and its peers in one run, and writes what came out into a page.
//!
//! Whoever is installed takes part. In a round, every collective of every number of ranks is
//! measured by one after the other, in an order that turns from round to round; ratios are taken
//! within a round, so that what a machine does to one it does to the others too. What was measured
//! lies line by line in a journal, from which a run that was stopped goes on, and from which page
//! and picture can be written again.
//!
//! | file | question |
//! |---|---|
//! | `args` | what does the command line say? |
//! | `collective` | what is measured, and which sizes? |
//! | `subject` | who is measured, is it here, and how is it started? |
//! | `process`, `line` | what does a program print while it measures? |
//! | `rounds` | in which order, and what is left to do? |
//! | `record`, `journal` | what was measured? |
//! | `machine`, `limits` | where, and what can that machine do? |
//! | `ratio` | who is faster, by how much? |
//! | `bars` | is that enough? |
//! | `page`, `plot` | what is said of it? |
//! | `error` | what went wrong? |

mod args;
mod bars;
mod build;
mod collective;
mod error;
mod journal;
mod limits;
mod line;
mod machine;
mod page;
mod plot;
mod process;
mod ratio;
mod record;
mod rounds;
mod subject;

use std::io::{self, Write};
use std::path::Path;

use comm_cli::__private::page as document;

pub(crate) use args::Compare;
pub(crate) use error::CompareError;
use error::Result;
use journal::Journal;
pub(crate) use machine::commit;
use record::Record;
use rounds::Rounds;

const TITLE: &str = "Performance";

impl Compare {
    /// Measures, unless it is only to write, and writes the page and its picture.
    pub(crate) fn execute(&self, out: &mut impl Write) -> Result<()> {
        if !self.from.is_empty() {
            let journals = self.from.iter().map(|path| journal::read(path));
            let records: Vec<Record> = journals.collect::<Result<Vec<_>>>()?.concat();
            return self.write(&records, out);
        }
        let places = build::Places::of_this_repository();
        let subjects = subject::find(self, &places, out)?;
        build::programs(&places)?;
        let mut journal = Journal::open(&self.journal(), self.fresh)?;
        let run = journal.start(machine::look(&places.root)?, &subjects)?;
        if !journal.records.iter().any(|record| matches!(record, Record::Limit(limit) if limit.run == run)) {
            writeln!(out, "measuring what this machine can do")?;
            limits::measure(&places.limits(), run, &mut journal)?;
        }
        let rounds = Rounds::new(self, &subjects);
        rounds.measure(run, &mut journal, out, |journal, _| self.write(&journal.records, &mut io::sink()))?;
        self.write(&journal.records, out)
    }

    /// Writes page and picture from what was measured.
    fn write(&self, records: &[Record], out: &mut impl Write) -> Result<()> {
        let comparison = ratio::Comparison::of(records);
        if comparison.is_empty() {
            return Err(CompareError::Nothing);
        }
        let picture = self.out.with_extension("svg");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CompareError::File { path, source }
        };
        document::write_file(&picture, &plot::picture(&comparison).svg()?).map_err(failed(&picture))?;
        let name = picture.file_name().unwrap_or_default().to_string_lossy();
        let text = page::text(&comparison, records, &name);
        document::update(&self.out, TITLE, &text).map_err(failed(&self.out))?;
        writeln!(out, "wrote {} and {}", self.out.display(), picture.display())?;
        Ok(())
    }
}
