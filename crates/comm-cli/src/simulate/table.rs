//! Prints predictions as a table.

use std::io::{self, Write};

use comm::{Collective, Link};
use comm_cli::__private::units::{about, digits, time};

use super::bound::bound;
use super::options::Setup;
use super::predict::Prediction;

pub(super) fn write(
    out: &mut dyn Write,
    setup: &Setup,
    predictions: &[Prediction],
    chosen: &str,
) -> io::Result<()> {
    header(out, setup)?;
    let width = predictions.iter().map(|row| row.algorithm.len()).max().unwrap_or(0).max("algorithm".len());
    writeln!(
        out,
        "\n  {:<width$} {:>8} {:>9} {:>8} {:>8} {:>9} {:>7} {:>7} {:>6}  from",
        "algorithm", "segments", "time", "steps", "messages", "bytes", "algbw", "busbw", "bound"
    )?;
    writeln!(
        out,
        "  {:<width$} {:>8} {:>9} {:>8} {:>8} {:>9} {:>7} {:>7} {:>6}",
        "", "", "", "per rank", "per rank", "per rank", "GB/s", "GB/s", "share"
    )?;
    for row in predictions {
        let mark = if row.algorithm == chosen { '*' } else { ' ' };
        let steps = row.steps.map_or_else(|| "-".to_owned(), |steps| steps.to_string());
        let (algbw, busbw) = bandwidths(setup, row.time);
        let share = if row.time > 0.0 { 100.0 * bound(setup) / row.time } else { 100.0 };
        let from = if row.steps.is_some() { "simulation" } else { "closed form" };
        writeln!(
            out,
            "{mark} {:<width$} {:>8} {:>9} {:>8} {:>8} {:>9} {:>7} {:>7} {:>4.0} %  {from}",
            row.algorithm,
            row.segments,
            time(row.time),
            steps,
            row.messages,
            about(row.bytes),
            algbw.map_or_else(|| "-".to_owned(), digits),
            busbw.map_or_else(|| "-".to_owned(), digits),
            share,
        )?;
    }
    writeln!(out, "\n* the algorithm that a communicator with these links selects")
}

/// Returns the algorithm and bus bandwidths in 10^9 bytes per second, unless the time is zero.
pub(super) fn bandwidths(setup: &Setup, time: f64) -> (Option<f64>, Option<f64>) {
    let shape = &setup.shape;
    let algbw = (time > 0.0 && shape.bytes > 0).then(|| shape.bytes as f64 / time / 1e9);
    (algbw, algbw.map(|algbw| algbw * shape.collective.bus_factor(shape.ranks)))
}

fn header(out: &mut dyn Write, setup: &Setup) -> io::Result<()> {
    let (shape, links) = (&setup.shape, &setup.tuning.links);
    let hosts = shape.ranks.div_ceil(links.ranks_per_host);
    let (ranks, per_host) = (shape.ranks, links.ranks_per_host);
    let data = match shape.collective {
        Collective::Barrier => String::new(),
        _ => format!(" of {}", about(shape.bytes as f64)),
    };
    writeln!(
        out,
        "{}{data} among {ranks} {} on {hosts} {}",
        shape.collective,
        plural(ranks, "rank"),
        plural(hosts, "host"),
    )?;
    if hosts > 1 {
        writeln!(out, "between hosts: {}", describe(&links.between))?;
    }
    if per_host > 1 {
        writeln!(out, "within a host: {}", describe(&links.within))?;
    }
    if links.reduce > 0.0 {
        writeln!(out, "reductions: {} Gbit/s", digits(8e-9 / links.reduce))?;
    }
    Ok(())
}

fn describe(link: &Link) -> String {
    format!(
        "latency {}, overhead {}, {} Gbit/s",
        time(link.latency),
        time(link.overhead),
        digits(8e-9 / link.per_byte)
    )
}

fn plural(count: usize, one: &str) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}
