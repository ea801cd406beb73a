//! One JSON object per row.

use serde::Serialize;

use crate::error::{CliError, Result};
use crate::perf::row::{BenchmarkInfo, Percentiles, Row};

/// A row. Bandwidths are in 10^9 bytes per second. Fields that do not apply are null.
#[derive(Serialize)]
struct Object<'a> {
    collective: &'static str,
    ranks: usize,
    transport: &'a str,
    algorithm: Option<&'static str>,
    dtype: Option<&'static str>,
    op: Option<&'static str>,
    bytes: usize,
    alloc: bool,
    time_us: Percentiles,
    algbw_gb_per_s: f64,
    busbw_gb_per_s: f64,
    wrong: Option<u64>,
}

pub(super) fn row(info: &BenchmarkInfo, transport: &str, row: &Row) -> Result<String> {
    let object = Object {
        collective: info.name,
        ranks: info.ranks,
        transport,
        algorithm: row.algorithm,
        dtype: info.dtype.map(|dtype| dtype.name()),
        op: info.op.map(|op| op.name()),
        bytes: row.bytes,
        alloc: info.alloc,
        time_us: row.time,
        algbw_gb_per_s: row.algbw(),
        busbw_gb_per_s: row.busbw(info),
        wrong: row.wrong,
    };
    serde_json::to_string(&object)
        .map_err(|error| CliError::Write { path: "standard output".into(), source: error.into() })
}
