//! Prints predictions as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::bound::bound;
use super::options::Setup;
use super::predict::Prediction;
use super::table::bandwidths;

#[derive(Debug, Serialize)]
struct Line<'a> {
    collective: &'a str,
    algorithm: &'a str,
    ranks: usize,
    bytes: usize,
    segments: usize,
    time_s: f64,
    /// False if the time was computed by a closed form.
    simulated: bool,
    steps_per_rank: Option<usize>,
    messages_per_rank: usize,
    bytes_per_rank: f64,
    algbw_gb_per_s: Option<f64>,
    busbw_gb_per_s: Option<f64>,
    bound_s: f64,
    /// Whether a communicator with these links selects this algorithm.
    chosen: bool,
}

pub(super) fn write(
    out: &mut dyn Write,
    setup: &Setup,
    predictions: &[Prediction],
    chosen: &str,
) -> io::Result<()> {
    for row in predictions {
        let (algbw_gb_per_s, busbw_gb_per_s) = bandwidths(setup, row.time);
        let line = Line {
            collective: setup.shape.collective.name(),
            algorithm: row.algorithm,
            ranks: setup.shape.ranks,
            bytes: setup.shape.bytes,
            segments: row.segments,
            time_s: row.time,
            simulated: row.steps.is_some(),
            steps_per_rank: row.steps,
            messages_per_rank: row.messages,
            bytes_per_rank: row.bytes,
            algbw_gb_per_s,
            busbw_gb_per_s,
            bound_s: bound(setup),
            chosen: row.algorithm == chosen,
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}
