//! Reports of measurements: Markdown pages, plots, progress bars, statistics and formatted numbers.

mod axis;
pub mod page;
pub mod plot;
pub mod progress;
pub mod statistics;
pub mod units;
