//! How far it is, on a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A line on standard error, if that is a terminal. It clears itself when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// For so many steps; hidden on ranks that do not print.
    pub fn new(steps: usize, speaks: bool) -> Self {
        Self::with_template(steps, speaks, "{bar:30} {pos}/{len} {msg}")
    }

    /// For so many steps, with an estimate of how long the rest will take.
    pub fn with_estimate(steps: usize) -> Self {
        Self::with_template(steps, true, "{bar:30} {pos}/{len}, about {eta} left: {wide_msg}")
    }

    fn with_template(steps: usize, speaks: bool, template: &str) -> Self {
        let visible = speaks && io::stderr().is_terminal();
        let bar = if visible { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        // The templates are constants; if one were wrong the default would do.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says what is being measured.
    pub fn at(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// Prints what is not mixed with the line.
    pub fn suspended<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// One step is done. What `print` writes is not mixed with the line.
    pub fn done<T>(&self, print: impl FnOnce() -> T) -> T {
        let printed = self.suspended(print);
        self.0.inc(1);
        printed
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
