//! Writes records in the format of PyTorch's flight recorder, which `torchfrtrace` reads.
//!
//! PyTorch's tool aligns records by the number of the entry in the file, and requires the name of a
//! collective that it knows. It compares names, sizes, types and states of calls.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use comm::flight::{DumpedCall, DumpedState, FlightDump};

use super::analysis::GroupRecords;
use super::pickle::Value;
use crate::error::{CliError, Result};

/// The version of PyTorch's format.
const VERSION: &str = "2.10";

/// Writes a file per rank of the world that has a record.
pub(super) fn write(prefix: &Path, groups: &[GroupRecords<'_>]) -> Result<()> {
    let mut ranks: BTreeMap<usize, Vec<(&GroupRecords<'_>, &FlightDump)>> = BTreeMap::new();
    for group in groups {
        for record in group.records.values() {
            ranks.entry(record.world_rank()).or_default().push((group, record));
        }
    }
    for (rank, records) in ranks {
        let mut path = OsString::from(prefix);
        path.push(rank.to_string());
        let path = PathBuf::from(path);
        fs::write(&path, dump(&records).pickle()).map_err(CliError::write(&path))?;
    }
    Ok(())
}

/// Returns the file of a rank, with its records in all groups.
fn dump(records: &[(&GroupRecords<'_>, &FlightDump)]) -> Value {
    let mut calls: Vec<(&GroupRecords<'_>, &DumpedCall)> = Vec::new();
    for &(group, record) in records {
        // Entries are numbered from 0 on every rank, so all must begin with the same call.
        let first =
            group.records.values().filter_map(|record| record.calls.first()).map(|call| call.sequence);
        let first = first.max().unwrap_or(0);
        calls.extend(record.calls.iter().filter(|call| call.sequence >= first).map(|call| (group, call)));
    }
    calls.sort_by_key(|(group, call)| (call.started_ns, group.id, call.sequence));
    let entries = calls.iter().zip(0..).map(|((group, call), number)| entry(group, call, number));
    let config = records.iter().map(|(group, _)| (group_name(group), group_config(group)));
    let status = records.iter().map(|(group, record)| (group_name(group), group_status(record)));
    Value::Dict(vec![
        ("version", Value::str(VERSION)),
        ("entries", Value::List(entries.collect())),
        ("pg_config", Value::Map(config.collect())),
        ("pg_status", Value::Map(status.collect())),
    ])
}

fn group_name(group: &GroupRecords<'_>) -> String {
    format!("{:x}", group.id)
}

fn group_desc(group: &GroupRecords<'_>) -> Value {
    Value::str(if group.id == 0 { "default_pg" } else { "undefined" })
}

fn group_config(group: &GroupRecords<'_>) -> Value {
    Value::Dict(vec![
        ("name", Value::Str(group_name(group))),
        ("desc", group_desc(group)),
        ("ranks", Value::Str(format!("{:?}", group.members))),
    ])
}

fn group_status(record: &FlightDump) -> Value {
    let last = |wanted: fn(&DumpedCall) -> bool| {
        let last = record.calls.iter().rfind(|call| wanted(call));
        last.map_or(Value::None, |call| Value::Int(call.sequence))
    };
    Value::Dict(vec![
        ("last_enqueued_collective", last(|_| true)),
        ("last_started_collective", last(|_| true)),
        ("last_completed_collective", last(|call| call.state == DumpedState::Completed)),
    ])
}

fn entry(group: &GroupRecords<'_>, call: &DumpedCall, number: u64) -> Value {
    let (collective, input, output) = shape(call, group.members.len() as u64);
    let sizes = |elements: Option<u64>| {
        Value::List(vec![Value::List(elements.into_iter().map(Value::Int).collect())])
    };
    let dtypes = || Value::List(call.dtype.iter().map(|name| Value::str(dtype(name))).collect());
    let is_done = call.state == DumpedState::Completed;
    let ended = call.ended_ns.filter(|_| is_done).map_or(Value::None, Value::Int);
    Value::Dict(vec![
        ("record_id", Value::Int(number)),
        ("pg_id", Value::Int(group.id)),
        ("process_group", Value::Tuple(vec![Value::Str(group_name(group)), group_desc(group)])),
        ("collective_seq_id", Value::Int(call.sequence)),
        ("p2p_seq_id", Value::Int(0)),
        ("op_id", Value::Int(call.sequence)),
        ("profiling_name", Value::Str(format!("c10d:{collective}"))),
        ("time_created_ns", Value::Int(call.started_ns)),
        ("input_sizes", sizes(input)),
        ("input_dtypes", dtypes()),
        ("output_sizes", sizes(output)),
        ("output_dtypes", dtypes()),
        ("state", Value::str(if is_done { "completed" } else { "started" })),
        ("time_discovered_started_ns", Value::Int(call.started_ns)),
        ("time_discovered_completed_ns", ended),
        ("retired", Value::Bool(is_done)),
        ("timeout_ms", Value::Int(0)),
        ("is_p2p", Value::Bool(false)),
        ("frames", Value::List(Vec::new())),
    ])
}

/// Returns PyTorch's name of a collective, and the numbers of elements of its input and output that
/// the tool checks. It has no prefix sums, which get the name of another reduction.
fn shape(call: &DumpedCall, ranks: u64) -> (&str, Option<u64>, Option<u64>) {
    let (one, all) = (call.count, call.count.saturating_mul(ranks));
    match call.collective.as_str() {
        "all_gather" => ("all_gather", Some(one), Some(all)),
        "reduce_scatter" => ("reduce_scatter", Some(all), Some(one)),
        "gather" => ("gather", Some(one), Some(all)),
        "scatter" => ("scatter", Some(all), Some(one)),
        "all_to_all" => ("all_to_all", Some(all), Some(all)),
        // Ranks do not know each other's lengths.
        "gather_v" => ("gather", Some(0), Some(0)),
        "scatter_v" => ("scatter", Some(0), Some(0)),
        "all_to_all_v" => ("all_to_all", Some(0), Some(0)),
        "scan" | "exscan" => ("_reduce_oop", Some(one), Some(one)),
        "monitored_barrier" | "new_group" | "duplicate" | "barrier" => ("barrier", None, None),
        "split" => ("split", None, None),
        name @ ("all_reduce" | "reduce" | "broadcast" | "all_gather_v" | "reduce_scatter_v") => {
            (name, Some(one), Some(one))
        }
        // A collective of a later version.
        _ => ("coalesced", None, None),
    }
}

/// Returns PyTorch's name of an element type.
fn dtype(name: &str) -> &str {
    match name {
        "i8" => "Char",
        "u8" => "Byte",
        "i16" => "Short",
        "u16" => "UInt16",
        "i32" => "Int",
        "u32" => "UInt32",
        "i64" => "Long",
        "u64" => "UInt64",
        "f16" => "Half",
        "bf16" => "BFloat16",
        "f32" => "Float",
        "f64" => "Double",
        "f8e4m3" => "Float8_e4m3fn",
        "f8e5m2" => "Float8_e5m2",
        other => other,
    }
}
