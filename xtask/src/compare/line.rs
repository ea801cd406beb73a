//! What a program prints while it measures: what `commctl perf --json` prints, or as much of it as
//! is needed.

use serde::Deserialize;

/// A size, and how long a call of it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    /// Microseconds, in the median.
    pub(crate) us: f64,
}

/// Why a line is no measurement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// It is something else, as a warning of a launcher that prints where results stand.
    Chatter,
    /// It is a result, and a wrong one.
    Wrong(u64),
}

#[derive(Deserialize)]
struct Object {
    bytes: usize,
    time_us: Percentiles,
    wrong: Option<u64>,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: f64,
}

/// Reads a line.
pub(crate) fn parse(line: &str) -> Result<Row, Odd> {
    let Object { bytes, time_us, wrong } = serde_json::from_str(line).map_err(|_| Odd::Chatter)?;
    match wrong {
        Some(wrong) if wrong > 0 => Err(Odd::Wrong(wrong)),
        _ if time_us.p50 > 0.0 => Ok(Row { bytes, us: time_us.p50 }),
        _ => Err(Odd::Chatter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_commctl_and_of_peers_are_read() {
        let ours = r#"{"collective":"all_reduce","ranks":2,"transport":"shm","algorithm":"direct","dtype":"f32","op":"sum",
            "bytes":1024,"time_us":{"p10":0.8,"p50":1.0,"p90":1.2,"p99":1.3},"algbw_gb_per_s":1.0,"busbw_gb_per_s":1.0,"wrong":null}"#;
        assert_eq!(parse(ours), Ok(Row { bytes: 1024, us: 1.0 }));
        let peer = r#"{"collective":"barrier","ranks":4,"bytes":0,"time_us":{"p50":6.5}}"#;
        assert_eq!(parse(peer), Ok(Row { bytes: 0, us: 6.5 }));
    }

    #[test]
    fn a_wrong_result_is_not_a_fast_one() {
        assert_eq!(parse(r#"{"bytes":4,"time_us":{"p50":1.0},"wrong":1}"#), Err(Odd::Wrong(1)));
        assert_eq!(parse(r#"{"bytes":4,"time_us":{"p50":1.0},"wrong":0}"#), Ok(Row { bytes: 4, us: 1.0 }));
    }

    #[test]
    fn what_launchers_say_is_passed_over() {
        for line in
            ["", "WARNING: no InfiniBand", "{}", r#"{"bytes":4}"#, r#"{"bytes":4,"time_us":{"p50":0.0}}"#]
        {
            assert_eq!(parse(line), Err(Odd::Chatter), "{line}");
        }
    }
}
