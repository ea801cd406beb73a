//! Comma-separated values with the keys of the JSON object, flattened.

use crate::perf::row::{BenchmarkInfo, Percentiles, Row};

pub(super) const HEADER: &str = "collective,ranks,transport,algorithm,dtype,op,bytes,time_us_p10,time_us_p50,\
    time_us_p90,time_us_p99,algbw_gb_per_s,busbw_gb_per_s,wrong";

/// Formats a row. No value contains a comma or a quote; null is empty.
pub(super) fn row(info: &BenchmarkInfo, transport: &str, row: &Row) -> String {
    let Percentiles { p10, p50, p90, p99 } = row.time;
    let dtype = info.dtype.map_or("", |dtype| dtype.name());
    let op = info.op.map_or("", |op| op.name());
    let wrong = row.wrong.map_or_else(String::new, |wrong| wrong.to_string());
    let (name, ranks, bytes) = (info.name, info.ranks, row.bytes);
    let algorithm = row.algorithm.unwrap_or_default();
    let (algbw, busbw) = (row.algbw(), row.busbw(info));
    format!(
        "{name},{ranks},{transport},{algorithm},{dtype},{op},{bytes},{p10},{p50},{p90},{p99},{algbw},{busbw},{wrong}"
    )
}
