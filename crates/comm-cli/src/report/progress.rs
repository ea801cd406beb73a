//! A progress bar.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on standard error, if that is a terminal. Dropping it clears it.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Creates a bar of `steps` steps, which is hidden unless `is_visible`.
    pub fn new(steps: usize, is_visible: bool) -> Self {
        Self::with_template(steps, is_visible, "{bar:30} {pos}/{len} {msg}")
    }

    /// Creates a bar with an estimate of the remaining time.
    pub fn with_estimate(steps: usize) -> Self {
        Self::with_template(steps, true, "{bar:30} {pos}/{len}, about {eta} left: {wide_msg}")
    }

    fn with_template(steps: usize, is_visible: bool, template: &str) -> Self {
        let is_visible = is_visible && io::stderr().is_terminal();
        let bar = if is_visible { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Sets the message.
    pub fn at(&self, what: String) {
        self.0.set_message(what);
        self.0.tick();
    }

    /// Hides the bar while `print` runs.
    pub fn suspended<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }

    /// Completes a step. Hides the bar while `print` runs.
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
