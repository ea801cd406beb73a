//! The view as text.

use std::io::{self, Write};

use super::view::{RankState, RankView, View};

pub(super) const HEADER: [&str; 10] =
    ["rank", "pid", "state", "call", "since", "waits for", "calls/s", "busbw", "late", "signature"];
/// The number of ranks that are listed in a cell.
const LISTED: usize = 6;

pub(super) fn write(out: &mut dyn Write, view: &View) -> io::Result<()> {
    writeln!(out, "{}", view.summary)?;
    writeln!(out, "{}", title(view))?;
    let rows: Vec<[String; 10]> = view.ranks.iter().map(cells).collect();
    let header = HEADER.map(str::to_owned);
    let width = |column: usize| {
        rows.iter().chain([&header]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..HEADER.len()).map(width).collect();
    for row in [&header].into_iter().chain(&rows) {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let cell =
                if is_text(column) { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") };
            line.push_str(&cell);
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Returns the line that names the job.
pub(super) fn title(view: &View) -> String {
    let place = if view.hosts.is_empty() { "on this host" } else { "on any host that answers" };
    let elsewhere = match view.elsewhere.len() {
        0 => String::new(),
        _ => format!(", without a process {place}: {}", list(&view.elsewhere)),
    };
    let hosts = match view.hosts.len() {
        0 => String::new(),
        hosts => format!(" on {hosts} hosts"),
    };
    let silent = match &view.silent_hosts[..] {
        [] => String::new(),
        silent => format!(", no answer from {}", silent.join(", ")),
    };
    format!("job {}, {} ranks{hosts}{silent}{elsewhere}", view.launch, view.ranks.len())
}

/// Returns whether a column is aligned to the left.
pub(super) const fn is_text(column: usize) -> bool {
    matches!(column, 2 | 5 | 9)
}

/// Returns the cells of a rank.
pub(super) fn cells(rank: &RankView) -> [String; 10] {
    let number = |number: Option<f64>, digits: usize| {
        number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
    };
    let state = match rank.state {
        RankState::Stopped => "no answer (stopped)",
        RankState::NoAnswer => "no answer",
        RankState::Failed => "failed",
        RankState::InCall => "in call",
        RankState::BetweenCalls => "between calls",
    };
    let pid = match &rank.host {
        Some(host) => format!("{} {}", host.escape_debug(), rank.pid),
        None => rank.pid.to_string(),
    };
    let group = rank.group.as_deref().filter(|group| *group != "0");
    let signature = rank.signature.clone().unwrap_or_default();
    // The signature of a call in a group names the group.
    let signature = if signature.is_empty() { group.unwrap_or_default().to_owned() } else { signature };
    [
        rank.rank.to_string(),
        pid,
        state.to_owned(),
        rank.call.map_or_else(|| "-".to_owned(), |call| call.to_string()),
        rank.seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s")),
        list(&rank.waiting_for),
        number(rank.calls_per_s, 0),
        rank.busbw_gb_per_s.map_or_else(|| "-".to_owned(), |speed| format!("{speed:.2} GB/s")),
        rank.late_ms.map_or_else(|| "-".to_owned(), |late| format!("{late:.0} ms")),
        signature,
    ]
}

/// Lists ranks, as in "0 2 7", the first few of many.
fn list(ranks: &[usize]) -> String {
    let first: Vec<String> = ranks.iter().take(LISTED).map(usize::to_string).collect();
    let more = ranks.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    first.join(" ") + &more
}
