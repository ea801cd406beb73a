//! Comma-separated values: the keys of the JSON object, without its nesting.

use crate::perf::plan::Plan;
use crate::perf::row::Row;
use crate::perf::statistics::Percentiles;

pub(super) const HEAD: &str = "collective,ranks,transport,algorithm,dtype,op,bytes,time_us_p10,time_us_p50,\
    time_us_p90,time_us_p99,algbw_gbps,busbw_gbps,wrong";

/// A row. No value has a comma or a quote in it; what is null in JSON is empty.
pub(super) fn row(plan: &Plan, transport: &str, row: &Row) -> String {
    let Percentiles { p10, p50, p90, p99 } = row.time;
    let dtype = if plan.operation.has_data() { plan.dtype.name() } else { "" };
    let op = plan.op.map_or("", |op| op.name());
    let wrong = row.wrong.map_or_else(String::new, |wrong| wrong.to_string());
    let (name, ranks, algorithm, bytes) = (plan.operation.name(), plan.ranks, row.algorithm, row.bytes);
    let (algbw, busbw) = (row.algbw(), row.busbw(plan));
    format!(
        "{name},{ranks},{transport},{algorithm},{dtype},{op},{bytes},{p10},{p50},{p90},{p99},{algbw},{busbw},{wrong}"
    )
}
