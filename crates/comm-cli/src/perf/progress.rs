//! How far it is, on a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error, if that is a terminal. It clears itself when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// For so many steps; hidden on ranks that do not print.
    pub(crate) fn new(steps: usize, speaks: bool) -> Self {
        let visible = speaks && io::stderr().is_terminal();
        let bar = if visible { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        // The template is a constant; if it were wrong the default would do.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says what is being measured.
    pub(crate) fn at(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// One step is done. What `print` writes is not mixed with the line.
    pub(crate) fn done<T>(&self, print: impl FnOnce() -> T) -> T {
        let printed = self.0.suspend(print);
        self.0.inc(1);
        printed
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
