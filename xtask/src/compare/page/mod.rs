//! The report of a comparison.

mod numbers;
mod runs;
mod verdicts;

use super::collective::Collective;
use super::ratio::Comparison;
use super::record::Record;

/// The first part of the report.
const INTRODUCTION: &str = "
The pictures show the time of each library divided by that of the fastest peer in the same round: below 1, a library is faster than all \
of them. *limit* is the least time that the machine allows. Peers that are more than 20 times as slow are left out.

";

/// The explanation of numbers, after the pictures.
const EXPLANATION: &str = "## What the numbers are

Written by `cargo xtask compare`. A ratio is the time of comm divided by that of a peer in the same round: below 1, comm is faster. A cell is \
the median over the rounds, and the time of a round the median of its samples. A sample is the average time of consecutive calls on the \
slowest rank. Sizes are those of nccl-tests, elements are `f32`, reductions are sums, and every result was checked. *send_recv* is a \
message from one rank to another: half the time of one there and one back. *Best MPI* is the \
fastest MPI in a round, with default settings; the *tuned* ones are configured to keep allocated memory. *oneccl* is oneCCL over Intel \
MPI. With more ranks than cores, Open MPI, Intel MPI and oneCCL are told to yield, and MPICH is not measured, because its ranks only \
spin. *Limit* is the time of the bytes which a collective reads and writes at least, at the bandwidth of memory that as many threads as \
ranks measured, or, for two ranks that send each other up to 1 MiB, the time that two threads take to copy so many bytes into memory that \
both share, and out of it; \
*flag* is the round trip of a flag, and *limit-tcp* is the time of the copies of a TCP connection, or, for two ranks that send each other \
up to 256 B, that of one byte. All are measured in each round directly before the libraries, but only once in runs of earlier versions. \
The host of a virtual machine may move its cores while the libraries take turns, so that they share a cache or not: if the time of a \
flag between two cores changes by half of it, the libraries measure again. In the tables *from memory*, calls use \
copies of their buffers in turn, which all ranks together have in twice the size of the last-level cache, and which are written after \
each call, outside the measured time.

";

/// Returns the generated part of the report, with these pictures of collectives.
pub(super) fn text(comparison: &Comparison, records: &[Record], pictures: &[(Collective, String)]) -> String {
    let mut text = String::from(INTRODUCTION);
    for (collective, picture) in pictures {
        text += &format!("![{collective} relative to the fastest peer]({picture})\n\n");
    }
    text += EXPLANATION;
    text += &verdicts::section(comparison);
    text += &numbers::means(comparison);
    text += &runs::section(records);
    text += "## Times\n\n";
    text += &numbers::tables(comparison);
    text
}

/// A cell without a number.
pub(super) const ABSENT: &str = "–";

/// Formats a Markdown table whose first column is text and all others numbers.
pub(super) fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|---{}|\n", "|--:".repeat(head.len().saturating_sub(1)));
    let rows: String = rows.iter().map(|cells| row(cells)).collect();
    format!("{}{rule}{rows}\n", row(head))
}

/// Formats a ratio.
pub(super) fn ratio(ratio: f64) -> String {
    match ratio {
        r if r < 0.001 => "< 0.001".into(),
        r if r < 0.1 => format!("{r:.3}"),
        r => format!("{r:.2}"),
    }
}

#[cfg(test)]
mod tests;
