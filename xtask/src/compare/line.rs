//! Parses the output of measuring programs: lines of `commctl perf --json`, or a subset of their
//! keys.

use serde::Deserialize;

/// The time of a call at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    /// The median time in microseconds.
    pub(crate) us: f64,
}

/// The measurements of `commctl perf send_recv` besides the time of a message.
const IGNORED: [&str; 2] = ["send_recv_bandwidth", "send_recv_bidirectional"];

/// A line that is not a measurement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LineError {
    /// Other output, such as a warning of a launcher.
    Other,
    /// A result with wrong elements.
    Wrong(u64),
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    collective: String,
    bytes: usize,
    time_us: Percentiles,
    wrong: Option<u64>,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: f64,
}

pub(crate) fn parse(line: &str) -> Result<Row, LineError> {
    let object = serde_json::from_str(line).map_err(|_| LineError::Other)?;
    let Object { collective, bytes, time_us, wrong } = object;
    if IGNORED.contains(&&*collective) {
        return Err(LineError::Other);
    }
    match wrong {
        Some(wrong) if wrong > 0 => Err(LineError::Wrong(wrong)),
        _ if time_us.p50 > 0.0 => Ok(Row { bytes, us: time_us.p50 }),
        _ => Err(LineError::Other),
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
    fn a_wrong_result_is_an_error() {
        assert_eq!(parse(r#"{"bytes":4,"time_us":{"p50":1.0},"wrong":1}"#), Err(LineError::Wrong(1)));
        assert_eq!(parse(r#"{"bytes":4,"time_us":{"p50":1.0},"wrong":0}"#), Ok(Row { bytes: 4, us: 1.0 }));
    }

    #[test]
    fn other_output_is_recognised() {
        for line in [
            "",
            r#"{"collective":"send_recv_bandwidth","bytes":4,"time_us":{"p50":1.0}}"#,
            "WARNING: no InfiniBand",
            "{}",
            r#"{"bytes":4}"#,
            r#"{"bytes":4,"time_us":{"p50":0.0}}"#,
        ] {
            assert_eq!(parse(line), Err(LineError::Other), "{line}");
        }
    }
}
