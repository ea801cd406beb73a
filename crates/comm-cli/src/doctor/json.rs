//! Prints findings as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::analysis::{Finding, FindingKind, GroupRecords, call, position};
use super::folder::Folder;
use super::table::{headline, state_of};

/// A group. Ranks are those of the world.
#[derive(Debug, Serialize)]
struct GroupLine<'a> {
    summary: String,
    kind: FindingKind,
    /// The ranks at fault.
    ranks: Vec<usize>,
    /// The id of the group in hexadecimal, 0 for the world.
    group: String,
    missing: Vec<usize>,
    members: Vec<MemberLine<'a>>,
    /// Files that were not used, each with the reason.
    skipped: &'a [(String, String)],
}

/// A member with a record.
#[derive(Debug, Serialize)]
struct MemberLine<'a> {
    rank: usize,
    /// The call that it is in or has yet to make.
    sequence: u64,
    state: &'static str,
    signature: Option<&'a str>,
    waiting_for: Vec<usize>,
    error: Option<&'a str>,
}

pub(super) fn write(
    out: &mut dyn Write,
    folder: &Folder,
    findings: &[(&GroupRecords<'_>, Finding)],
) -> io::Result<()> {
    for (group, finding) in findings {
        let world = |ranks: &[usize]| ranks.iter().map(|&rank| group.world_rank(rank)).collect();
        let members = group.records.iter().map(|(&rank, record)| {
            let (sequence, _) = position(record);
            let current = call(record, sequence);
            MemberLine {
                rank: group.world_rank(rank),
                sequence,
                state: state_of(record),
                signature: current.map(|call| &call.signature[..]),
                waiting_for: current.map_or_else(Vec::new, |call| world(&call.waiting_for)),
                error: record.failure.as_ref().map(|failure| &failure.error[..]),
            }
        });
        let line = GroupLine {
            summary: headline(group, finding),
            kind: finding.kind,
            ranks: world(&finding.ranks),
            group: format!("{:x}", group.id),
            missing: world(&group.missing()),
            members: members.collect(),
            skipped: &folder.skipped,
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}
