//! Prints findings as text.

use std::io::{self, Write};

use comm::flight::{DumpedState, FlightDump};

use super::analysis::{Finding, FindingKind, GroupRecords, call, position};
use super::folder::Folder;

pub(super) fn write(
    out: &mut dyn Write,
    folder: &Folder,
    findings: &[(&GroupRecords<'_>, Finding)],
) -> io::Result<()> {
    for (at, (group, finding)) in findings.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", headline(group, finding))?;
        write_group(out, group)?;
    }
    if !folder.skipped.is_empty() {
        writeln!(out, "\nfiles that were not used:")?;
    }
    for (name, reason) in &folder.skipped {
        writeln!(out, "  {name}: {reason}")?;
    }
    Ok(())
}

/// Returns the summary of a group, with the name of the group unless it is the world.
pub(crate) fn headline(group: &GroupRecords<'_>, finding: &Finding) -> String {
    let missing = group.missing();
    let note = match finding.kind {
        FindingKind::Missing => String::new(),
        _ if missing.is_empty() => String::new(),
        _ => format!(" ({} {})", group.names(&missing), group.missing_verb),
    };
    match group.id {
        0 => format!("{}{note}", finding.summary),
        id => format!("group {id:x}: {}{note}", finding.summary),
    }
}

fn write_group(out: &mut dyn Write, group: &GroupRecords<'_>) -> io::Result<()> {
    let rows: Vec<[String; 5]> = (0..group.members.len()).map(|rank| row(group, rank)).collect();
    let header = ["rank", "call", "state", "waits for", "signature"].map(str::to_owned);
    let width = |column: usize| {
        rows.iter().chain([&header]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3].map(width);
    let mut line = |row: &[String; 5]| {
        let [rank, call, state, waits, signature] = row;
        let [a, b, c, d] = widths;
        let line = format!("  {rank:>a$}  {call:>b$}  {state:<c$}  {waits:<d$}  {signature}");
        writeln!(out, "{}", line.trim_end())
    };
    line(&header)?;
    rows.iter().try_for_each(line)?;
    for (&rank, record) in &group.records {
        if let Some(failure) = &record.failure {
            writeln!(out, "  {}: {}", group.names(&[rank]), failure.error)?;
        }
    }
    Ok(())
}

/// Returns the state of a rank, as in the table.
pub(super) fn state_of(record: &FlightDump) -> &'static str {
    let (sequence, _) = position(record);
    match (call(record, sequence).map(|call| call.state), &record.failure) {
        (Some(DumpedState::Failed), _) => "failed",
        (Some(_), _) => "started",
        (None, Some(_)) => "failed before it",
        (None, None) => "not made",
    }
}

fn row(group: &GroupRecords<'_>, rank: usize) -> [String; 5] {
    let name = group.world_rank(rank).to_string();
    let Some(record) = group.records.get(&rank) else {
        return [name, "?".into(), "no record".into(), String::new(), String::new()];
    };
    let (sequence, _) = position(record);
    let current = call(record, sequence);
    let waits = current.map_or(&[][..], |call| &call.waiting_for[..]);
    let waits: Vec<String> = waits.iter().map(|&rank| group.world_rank(rank).to_string()).collect();
    let signature = match (current, record.calls.last()) {
        (Some(call), _) => call.signature.clone(),
        (None, Some(last)) => format!("after {}", last.signature),
        (None, None) => String::new(),
    };
    [name, sequence.to_string(), state_of(record).into(), waits.join(" "), signature]
}
