//! Prints a table like nccl-tests', with percentiles and the algorithm.

use std::fmt::Write;

use comm_cli::__private::units::short;

use crate::perf::row::{BenchmarkInfo, Row};
use crate::perf::session::Session;

pub(super) fn header(info: &BenchmarkInfo, session: &Session) -> String {
    let BenchmarkInfo { name, layout, .. } = info;
    let mut text = format!("# commctl {} perf {name}{layout}\n", env!("CARGO_PKG_VERSION"));
    text += &ranks(session);
    text += "#\n";
    let names = "size count type redop root algorithm time p10 p90 p99 algbw busbw #wrong";
    let units = "(B) (elements)     (us) (us) (us) (us) (GB/s) (GB/s) ";
    text += &format!("#{}\n#{}", &cells(names.split(' '))[1..], &cells(units.split(' '))[1..]);
    text.trim_end().to_owned()
}

/// Lists the ranks with their process ids, hosts and cores.
pub(crate) fn ranks(session: &Session) -> String {
    let hosts = session.hosts().len();
    let (count, plural) = (session.ranks(), if hosts == 1 { "" } else { "s" });
    let mut text = format!(
        "# {count} ranks on {hosts} host{plural} over {}: {}\n",
        session.transport(),
        session.detail()
    );
    for (rank, info) in session.rank_infos.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "#  rank {rank} pid {} on {} cores {}", info.pid, info.host, info.cores);
    }
    text
}

pub(super) fn row(info: &BenchmarkInfo, row: &Row) -> String {
    let or_none = |known: Option<String>| known.unwrap_or_else(|| "-".into());
    let text = cells([
        &*row.bytes.to_string(),
        &info.count(row.bytes).to_string(),
        &or_none(info.dtype.map(|dtype| dtype.to_string())),
        &or_none(info.op.map(|op| op.to_string())),
        &or_none(info.root.map(|root| root.to_string())),
        row.algorithm.unwrap_or("-"),
        &short(row.time.p50),
        &short(row.time.p10),
        &short(row.time.p90),
        &short(row.time.p99),
        &short(row.algbw()),
        &short(row.busbw(info)),
        &or_none(row.wrong.map(|wrong| wrong.to_string())),
    ]);
    text.trim_end().to_owned()
}

fn cells<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    const WIDTHS: [usize; 13] = [13, 13, 6, 11, 5, 20, 10, 10, 10, 10, 8, 8, 8];
    cells.into_iter().zip(WIDTHS).map(|(cell, width)| format!("{cell:>width$}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_do_not_run_into_each_other() {
        let widest = "274877906944 274877906944 bf16 premul_sum 1023 recursive_doubling 123456789 123456789 123456789 \
            123456789 1234.56 1234.56 1234567";
        let widest = cells(widest.split(' '));
        assert_eq!(widest.split_whitespace().count(), 13, "{widest}");
    }
}
