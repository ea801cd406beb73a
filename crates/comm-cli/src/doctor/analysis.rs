//! Finds the rank at fault from the records of a group.

use std::collections::{BTreeMap, BTreeSet};

use comm::flight::{DumpedCall, DumpedState, FlightDump};

/// The largest number of ranks that a list names.
const NAMED_MAX: usize = 8;

/// The records of the members of a group.
#[derive(Debug)]
pub(crate) struct GroupRecords<'a> {
    /// 0 for the world.
    pub(crate) id: u64,
    /// The members' ranks in the world.
    pub(crate) members: &'a [usize],
    /// The records that were found, by their ranks in the group.
    pub(crate) records: BTreeMap<usize, &'a FlightDump>,
    /// The predicate of a rank without a record, as in "wrote no record".
    pub(crate) missing_verb: &'static str,
    /// The calls of other groups in which members are, by their ranks in the group.
    elsewhere: BTreeMap<usize, String>,
}

/// The kind of a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// Ranks made different calls with the same number.
    Mismatch,
    /// A rank wrote no record.
    Missing,
    /// A rank aborted, or failed on its own.
    Aborted,
    /// Two ranks wait for each other.
    BlockedLink,
    /// A rank is in an earlier call than the others.
    Behind,
    /// All ranks are in the same call.
    SameCall,
    /// No rank has failed or is in a call.
    Healthy,
}

/// A problem that was found in a group.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) kind: FindingKind,
    /// The ranks at fault, as members of the group.
    pub(crate) ranks: Vec<usize>,
    pub(crate) summary: String,
}

/// The point that a rank has reached: a call, and whether it has started it.
type Position = (u64, bool);

/// Returns the call that a rank is in or has yet to make.
pub(crate) fn position(record: &FlightDump) -> Position {
    if let Some(failure) = &record.failure {
        return (failure.sequence, call(record, failure.sequence).is_some());
    }
    match record.calls.last() {
        Some(last) if last.state == DumpedState::Completed => (last.sequence + 1, false),
        Some(last) => (last.sequence, true),
        None => (0, false),
    }
}

/// Returns the call of this number, if it is kept.
pub(crate) fn call(record: &FlightDump, sequence: u64) -> Option<&DumpedCall> {
    let at = record.calls.binary_search_by_key(&sequence, |call| call.sequence).ok()?;
    record.calls.get(at)
}

impl<'a> GroupRecords<'a> {
    /// Returns the groups, that which failed first at the front.
    pub(crate) fn of(records: &'a [FlightDump]) -> Vec<Self> {
        let mut groups: BTreeMap<u64, Self> = BTreeMap::new();
        for record in records {
            let empty = || Self::empty(record);
            groups.entry(record.group).or_insert_with(empty).records.insert(record.rank, record);
        }
        let mut groups: Vec<Self> = groups.into_values().collect();
        let places: Vec<(u64, usize, String)> = groups.iter().flat_map(Self::places).collect();
        for group in &mut groups {
            let members = group.members.iter().enumerate();
            let found = members.filter_map(|(rank, member)| {
                let (.., place) = places.iter().find(|(id, of, _)| *id != group.id && of == member)?;
                Some((rank, place.clone()))
            });
            group.elsewhere = found.collect();
        }
        let time = |group: &Self| group.records.values().map(|record| record.written_ns).min();
        groups.sort_by_key(|group| (Finding::of(group).kind == FindingKind::Healthy, time(group)));
        groups
    }

    fn empty(record: &'a FlightDump) -> Self {
        let missing_verb = "wrote no record";
        let (records, elsewhere) = (BTreeMap::new(), BTreeMap::new());
        Self { id: record.group, members: &record.members, records, missing_verb, elsewhere }
    }

    /// Returns this group, the rank in the world and the call of each member that is in one, as in
    /// "call 40 all_reduce of the world".
    fn places(&self) -> impl Iterator<Item = (u64, usize, String)> {
        let name = if self.id == 0 { "the world".to_owned() } else { format!("group {:x}", self.id) };
        self.positions().filter(|(_, (_, has_started))| *has_started).map(move |(rank, (sequence, _))| {
            (self.id, self.world_rank(rank), format!("{} of {name}", self.call_name(sequence)))
        })
    }

    /// Says in which call of another group these members are, if all are in the same.
    fn elsewhere(&self, ranks: &[usize]) -> Option<String> {
        let place = self.elsewhere.get(ranks.first()?)?;
        let is_common = ranks.iter().all(|rank| self.elsewhere.get(rank) == Some(place));
        let verb = if ranks.len() == 1 { "is" } else { "are" };
        is_common.then(|| format!("{} {verb} in {place}", self.names(ranks)))
    }

    /// Returns the members without a record.
    pub(crate) fn missing(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|rank| !self.records.contains_key(rank)).collect()
    }

    /// Returns the rank in the world of a member.
    pub(crate) fn world_rank(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or(rank)
    }

    /// Formats members as in "rank 3", "ranks 0, 2 and 7". Of many, names the first.
    pub(crate) fn names(&self, ranks: &[usize]) -> String {
        let mut names: Vec<String> =
            ranks.iter().take(NAMED_MAX).map(|&rank| self.world_rank(rank).to_string()).collect();
        let more = ranks.len().saturating_sub(names.len());
        names.extend((more > 0).then(|| format!("{more} more")));
        match &names[..] {
            [] => "no rank".into(),
            [one] => format!("rank {one}"),
            [init @ .., last] => format!("ranks {} and {last}", init.join(", ")),
        }
    }

    /// Formats these members, or all but these, as "the others".
    fn others(&self, ranks: &[usize], except: &[usize]) -> String {
        match ranks {
            [_] | [] => self.names(ranks),
            _ if ranks.len() + except.len() == self.members.len() => "the others".into(),
            _ => self.names(ranks),
        }
    }

    /// Formats a call of this number as in "call 40 all_reduce".
    fn call_name(&self, sequence: u64) -> String {
        let known = self.records.values().find_map(|record| call(record, sequence));
        known
            .map_or_else(|| format!("call {sequence}"), |call| format!("call {sequence} {}", call.collective))
    }

    fn positions(&self) -> impl Iterator<Item = (usize, Position)> {
        self.records.iter().map(|(&rank, record)| (rank, position(record)))
    }

    /// Returns the members at a position.
    fn at(&self, position: Position) -> Vec<usize> {
        self.positions().filter(|(_, other)| *other == position).map(|(rank, _)| rank).collect()
    }
}

impl Finding {
    /// Finds the problem of a group.
    pub(crate) fn of(group: &GroupRecords<'_>) -> Self {
        mismatch(group)
            .or_else(|| missing(group))
            .or_else(|| aborted(group))
            .or_else(|| blocked_link(group))
            .or_else(|| behind(group))
            .unwrap_or_else(|| same_call(group))
    }

    fn new(kind: FindingKind, ranks: Vec<usize>, summary: String) -> Self {
        Self { kind, ranks, summary }
    }
}

/// Finds the first call that differs between ranks.
fn mismatch(group: &GroupRecords<'_>) -> Option<Finding> {
    let numbers: BTreeSet<u64> =
        group.records.values().flat_map(|record| &record.calls).map(|call| call.sequence).collect();
    numbers.into_iter().find_map(|sequence| {
        let mut variants: BTreeMap<&str, (&DumpedCall, Vec<usize>)> = BTreeMap::new();
        for (&rank, record) in &group.records {
            if let Some(call) = call(record, sequence) {
                variants.entry(&call.signature).or_insert((call, Vec::new())).1.push(rank);
            }
        }
        let mut variants: Vec<(&DumpedCall, Vec<usize>)> = variants.into_values().collect();
        // The rarest first; of equally rare ones that of the highest rank.
        variants.sort_by_key(|(_, ranks)| (ranks.len(), std::cmp::Reverse(ranks.first().copied())));
        let (common, common_ranks) = variants.pop()?;
        let (_, culprits) = variants.first()?;
        let mut culprits = culprits.clone();
        culprits.extend(variants[1..].iter().flat_map(|(_, ranks)| ranks));
        let rare = variants
            .iter()
            .map(|(call, ranks)| format!("{} made {}", group.names(ranks), call.signature))
            .collect::<Vec<_>>()
            .join(", ");
        let others = group.others(&common_ranks, &culprits);
        let summary = format!("call {sequence} differs: {rare}, {others} made {}", common.signature);
        Some(Finding::new(FindingKind::Mismatch, culprits, summary))
    })
}

/// Finds ranks without a record for which others wait.
fn missing(group: &GroupRecords<'_>) -> Option<Finding> {
    let missing = group.missing();
    let last = group.positions().map(|(_, position)| position).max()?;
    let names = |record: &FlightDump, rank: &usize| {
        let failed = record.failure.as_ref().is_some_and(|failure| failure.ranks.contains(rank));
        let waits = call(record, position(record).0).is_some_and(|call| call.waiting_for.contains(rank));
        (failed, waits)
    };
    let named: Vec<usize> = missing
        .iter()
        .filter(|rank| group.records.values().any(|record| names(record, rank) != (false, false)))
        .copied()
        .collect();
    if named.is_empty() {
        return None;
    }
    let waiting: Vec<usize> = group
        .records
        .iter()
        .filter(|(_, record)| record.failure.is_some() || position(record).1)
        .map(|(&rank, _)| rank)
        .collect();
    let all = waiting.len() + missing.len() == group.members.len() && waiting.len() > 1;
    let others = if all { "all others".into() } else { group.names(&waiting) };
    let is_lost =
        group.records.values().filter_map(|record| record.failure.as_ref()).any(|failure| {
            failure.kind == "peer_lost" && failure.ranks.iter().any(|rank| named.contains(rank))
        });
    let verb = match (is_lost, waiting.len() == 1) {
        (true, _) => "lost",
        (false, true) => "waits for",
        (false, false) => "wait for",
    };
    let them = if named.len() == 1 { "it" } else { "them" };
    let place =
        if last.1 { format!("in {}", group.call_name(last.0)) } else { format!("before call {}", last.0) };
    // A rank that was lost is in no call any more.
    let elsewhere = group.elsewhere(&named).filter(|_| !is_lost);
    let at_fault = elsewhere.unwrap_or_else(|| format!("{} {}", group.names(&named), group.missing_verb));
    let summary = format!("{at_fault}; {others} {verb} {them} {place}");
    Some(Finding::new(FindingKind::Missing, named, summary))
}

/// Finds a rank that aborted, or that failed for a reason of its own.
fn aborted(group: &GroupRecords<'_>) -> Option<Finding> {
    let failures =
        || group.records.iter().filter_map(|(&rank, record)| Some((rank, record.failure.as_ref()?)));
    if let Some((rank, failure)) = failures().find(|(_, failure)| failure.kind == "other") {
        let summary =
            format!("{} failed in call {}: {}", group.names(&[rank]), failure.sequence, failure.error);
        return Some(Finding::new(FindingKind::Aborted, vec![rank], summary));
    }
    // A rank that failed because of another one also aborts, but is not at fault.
    let failed_itself = |rank: &usize| {
        let theirs = group.records.get(rank).and_then(|record| record.failure.as_ref());
        theirs.is_none_or(|theirs| theirs.kind == "aborted" && theirs.ranks.contains(rank))
    };
    let (_, failure) = failures()
        .find(|(_, failure)| failure.kind == "aborted" && failure.ranks.iter().all(failed_itself))?;
    let (ranks, place) = (failure.ranks.clone(), group.call_name(failure.sequence));
    let summary = format!("{}, in {place}", failure.error);
    Some(Finding::new(FindingKind::Aborted, ranks, summary))
}

/// Finds two ranks that wait for each other though all have made the call: no byte arrives. Returns
/// `None` if there are several such pairs that have no rank in common.
fn blocked_link(group: &GroupRecords<'_>) -> Option<Finding> {
    if group.positions().any(|(_, (_, has_started))| !has_started) {
        return None;
    }
    let waits = |rank: usize, other: usize| {
        let record = group.records.get(&rank).filter(|record| record.failure.is_none());
        let call = record.and_then(|record| call(record, position(record).0));
        call.is_some_and(|call| call.waiting_for.contains(&other))
    };
    let ranks = || group.records.keys().copied();
    let pairs: Vec<[usize; 2]> = ranks()
        .flat_map(|one| ranks().filter(move |other| one < *other).map(move |other| [one, other]))
        .filter(|[one, other]| waits(*one, *other) && waits(*other, *one))
        .collect();
    let first = group.positions().map(|(_, (sequence, _))| sequence).min()?;
    let place = group.call_name(first);
    let (ranks, summary) = match &pairs[..] {
        [] => return None,
        [pair] => {
            let names = group.names(pair);
            let summary = format!("{names} wait for each other in {place}: check the link between them");
            (pair.to_vec(), summary)
        }
        _ => {
            let common = ranks().find(|rank| pairs.iter().all(|pair| pair.contains(rank)))?;
            let name = group.names(&[common]);
            let summary =
                format!("{name} and others wait for each other in {place}: check the links of {name}");
            (vec![common], summary)
        }
    };
    Some(Finding::new(FindingKind::BlockedLink, ranks, summary))
}

/// Finds ranks that are in an earlier call than others.
fn behind(group: &GroupRecords<'_>) -> Option<Finding> {
    let positions: BTreeSet<Position> = group.positions().map(|(_, position)| position).collect();
    let (&first, &last) = (positions.first()?, positions.last()?);
    if first == last {
        return None;
    }
    let (late, ahead) = (group.at(first), group.at(last));
    let (names, others) = (group.names(&late), group.others(&ahead, &late));
    let place = group.call_name(first.0);
    let ours = match (first.1, &late[..]) {
        (true, [_]) => format!("{names} is in {place}"),
        (true, _) => format!("{names} are in {place}"),
        (false, [_]) => format!("{names} has not made {place}"),
        (false, _) => format!("{names} have not made {place}"),
    };
    let theirs = match last {
        (_, false) => format!("{others} completed {}", group.call_name(last.0.saturating_sub(1))),
        (sequence, true) if sequence == first.0 && ahead.len() == 1 => format!("{others} waits in it"),
        (sequence, true) if sequence == first.0 => format!("{others} wait in it"),
        (sequence, true) if first.1 => format!("{others} in {}", group.call_name(sequence)),
        (sequence, true) => format!("{others} reached {}", group.call_name(sequence)),
    };
    let elsewhere = group.elsewhere(&late).map_or_else(String::new, |place| format!("; {place}"));
    let summary = format!("{ours}, {theirs}{elsewhere}");
    Some(Finding::new(FindingKind::Behind, late, summary))
}

/// Describes ranks that are all in the same call, or in none.
fn same_call(group: &GroupRecords<'_>) -> Finding {
    let Some((_, (sequence, is_in_call))) = group.positions().next() else {
        return Finding::new(FindingKind::Healthy, Vec::new(), "there is no record".into());
    };
    let failures: Vec<_> = group.records.values().filter_map(|record| record.failure.as_ref()).collect();
    let place = group.call_name(if is_in_call { sequence } else { sequence.saturating_sub(1) });
    let Some(failure) = failures.first() else {
        let summary = if is_in_call {
            format!("no rank has failed; all are in {place}")
        } else {
            format!("nothing is wrong: the last call, {place}, is complete on every rank")
        };
        let kind = if is_in_call { FindingKind::SameCall } else { FindingKind::Healthy };
        return Finding::new(kind, Vec::new(), summary);
    };
    let ranks: Vec<usize> = failures.iter().flat_map(|failure| failure.ranks.iter().copied()).collect();
    let ranks: Vec<usize> = ranks.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    let summary = match (failure.kind.as_str(), late(group, sequence, &ranks)) {
        ("timeout", Some(seconds)) => {
            let names = group.names(&ranks);
            format!("{names} came too late to {place}: {seconds:.1} s after the first rank")
        }
        _ if is_in_call => format!("all ranks failed in {place}: {}", failure.error),
        _ => format!("all ranks failed after {place}: {}", failure.error),
    };
    Finding::new(FindingKind::SameCall, ranks, summary)
}

/// Returns the time in seconds from the first start of a call to the first start of it on one of
/// these ranks.
fn late(group: &GroupRecords<'_>, sequence: u64, ranks: &[usize]) -> Option<f64> {
    let started = |rank: &usize| Some(call(group.records.get(rank)?, sequence)?.started_ns);
    let first = group.records.keys().filter_map(started).min()?;
    let theirs = ranks.iter().filter_map(started).min()?;
    (theirs > first).then(|| (theirs - first) as f64 * 1e-9)
}
