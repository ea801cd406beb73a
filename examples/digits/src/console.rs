//! Prints a table to standard output, and a progress bar to standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use digits::error::{Error, Result};
use digits::train::EpochReport;

/// Prints on rank 0, and nothing on other ranks.
pub(crate) struct Console {
    speaks: bool,
    bar: ProgressBar,
}

impl Console {
    /// Creates a console, with a progress bar if `steps` is given.
    pub(crate) fn new(rank: usize, steps: Option<u64>) -> Self {
        let speaks = rank == 0;
        let bar = match steps {
            Some(steps) if speaks && io::stderr().is_terminal() => ProgressBar::new(steps),
            _ => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{bar:40} step {pos} of {len}, {eta} left") {
            bar.set_style(style);
        }
        Self { speaks, bar }
    }

    /// Returns whether this rank prints.
    pub(crate) const fn speaks(&self) -> bool {
        self.speaks
    }

    /// Prints from now on if this rank is rank 0.
    pub(crate) const fn set_rank(&mut self, rank: usize) {
        self.speaks = rank == 0;
    }

    pub(crate) fn line(&self, line: &str) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        self.bar.suspend(|| writeln!(io::stdout(), "{line}")).map_err(Error::Print)
    }

    pub(crate) fn heading(&self) -> Result<()> {
        self.line("epoch     loss   held-out   images/s    comm ms   comm %   wait %")
    }

    pub(crate) fn row(&self, report: &EpochReport) -> Result<()> {
        let EpochReport { epoch, loss, accuracy, images_per_second, .. } = *report;
        let millis = report.communicating.as_secs_f64() * 1e3;
        let share = |time: Duration| time.div_duration_f64(report.elapsed) * 100.0;
        let (communicating, waiting) = (share(report.communicating), share(report.waiting));
        self.line(&format!(
            "{epoch:5} {loss:8.4} {accuracy:10.4} {images_per_second:10.0} {millis:10.1} {communicating:8.1} {waiting:8.1}"
        ))
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }
}
