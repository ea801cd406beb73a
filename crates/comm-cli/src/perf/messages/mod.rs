//! `commctl perf send_recv`: messages between rank 0 and the last rank, as in the OSU benchmarks.

mod endpoint;

use comm_cli::__private::progress::Progress;

use super::args::{Format, Perf};
use super::plan::SizeRange;
use super::print::Printer;
use super::row::{BenchmarkInfo, Percentiles, Row};
use super::session::Session;
use super::timing;
use crate::error::{CliError, Result};
use crate::host;
use endpoint::Endpoint;

/// The maximum number of concurrent messages in one direction.
const WINDOW_MAX: usize = 64;
/// The maximum memory of a window, unless that is less than two messages.
const WINDOW_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A round trip.
    Latency,
    /// A window in one direction.
    Bandwidth,
    /// A window in both directions concurrently.
    Bidirectional,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Latency, Self::Bandwidth, Self::Bidirectional];

    const fn name(self) -> &'static str {
        match self {
            Self::Latency => "send_recv_latency",
            Self::Bandwidth => "send_recv_bandwidth",
            Self::Bidirectional => "send_recv_bidirectional",
        }
    }

    fn info(self, ranks: usize, alloc: bool) -> BenchmarkInfo {
        let bus_factor = if self == Self::Bidirectional { 2.0 } else { 1.0 };
        BenchmarkInfo {
            name: self.name(),
            ranks,
            dtype: None,
            op: None,
            root: None,
            layout: "",
            alloc,
            bus_factor,
        }
    }

    /// Returns the number of messages in one direction per acknowledgement.
    fn window(self, bytes: usize) -> usize {
        match self {
            Self::Latency => 1,
            Self::Bandwidth | Self::Bidirectional => (WINDOW_BYTES_MAX / bytes).clamp(2, WINDOW_MAX),
        }
    }

    /// Returns the number of consecutive messages per call.
    fn messages_per_call(self, bytes: usize) -> f64 {
        match self {
            Self::Latency => 2.0,
            Self::Bandwidth | Self::Bidirectional => self.window(bytes) as f64,
        }
    }

    /// Returns the total memory that both ranks need.
    fn memory(self, bytes: usize) -> usize {
        // A receiver has a buffer per message, and a sender has one for all messages.
        let receivers = if self == Self::Bandwidth { 1 } else { 2 };
        (self.window(bytes) * receivers + 2).saturating_mul(bytes)
    }
}

/// Returns an error for options that only collectives have, and sizes that exceed the memory.
pub(super) fn check(perf: &Perf, ranks: usize) -> Result<()> {
    if ranks < 2 {
        return Err(CliError::usage("send_recv: needs at least two ranks"));
    }
    if let Some(option) = perf.call.collective_option() {
        return Err(CliError::usage(format!("{option}: send_recv sends bytes between two ranks")));
    }
    if perf.output.svg.is_some() {
        return Err(CliError::usage("--svg: send_recv cannot be plotted"));
    }
    let Some(available) = host::available_memory() else { return Ok(()) };
    let does_not_fit = |size: &usize| Kind::Bidirectional.memory(*size) > available;
    match SizeRange::TABLE.or(&perf.sizes)?.sizes().find(does_not_fit) {
        Some(size) => {
            Err(CliError::Memory { size, ranks: 2, needed: Kind::Bidirectional.memory(size), available })
        }
        None => Ok(()),
    }
}

/// Measures and prints all kinds. Ranks between the first and the last only wait.
pub(super) fn run(session: &Session, perf: &Perf) -> Result<()> {
    let sizes: Vec<usize> = SizeRange::TABLE.or(&perf.sizes)?.sizes().collect();
    let progress = Progress::new(sizes.len() * Kind::ALL.len(), session.prints());
    let mut wrong = perf.call.check.then_some(0);
    for kind in Kind::ALL {
        let printer =
            Printer::new(perf.output.format(), kind.info(session.ranks(), perf.call.alloc), session);
        // CSV has a single header.
        if kind == Kind::Latency || perf.output.format() != Format::Csv {
            printer.header(session)?;
        }
        for &bytes in &sizes {
            progress.at(format!("{} of {bytes} bytes", kind.name()));
            let row = row(session, perf, kind, bytes)?;
            progress.done(|| printer.row(&row))?;
            wrong = wrong.zip(row.wrong).map(|(all, row)| all + row);
        }
        if kind == Kind::Bidirectional {
            printer.footer(wrong)?;
        }
    }
    match wrong {
        Some(wrong) if wrong > 0 && session.prints() => Err(CliError::Wrong(wrong)),
        _ => Ok(()),
    }
}

/// Measures one size.
fn row(session: &Session, perf: &Perf, kind: Kind, bytes: usize) -> Result<Row> {
    let mut endpoint = Endpoint::new(&session.comm, kind, bytes, perf.call.alloc)?;
    let mut times = timing::measure(&session.comm, &perf.samples, &mut || endpoint.call())?;
    times.iter_mut().for_each(|time| *time /= kind.messages_per_call(bytes));
    let wrong = if perf.call.check { Some(endpoint.count_wrong()?) } else { None };
    Ok(Row { bytes, algorithm: None, time: Percentiles::of(&times), wrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_bound_their_memory() {
        assert_eq!(Kind::Bandwidth.window(4), 64);
        assert_eq!(Kind::Bandwidth.window(1 << 20), 64);
        assert_eq!(Kind::Bandwidth.window(16 << 20), 4);
        assert_eq!(Kind::Bidirectional.window(256 << 20), 2);
        assert_eq!(Kind::Latency.window(4), 1);
    }

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        for kind in Kind::ALL {
            for ranks in [2, 3, 5] {
                for (bytes, alloc) in [(1, false), (100, true), ((64 << 10) + 1, false), (300 << 10, true)] {
                    let wrong = comm::threads::run(ranks, |comm| {
                        let mut endpoint = Endpoint::new(&comm, kind, bytes, alloc).unwrap();
                        endpoint.call().unwrap();
                        endpoint.count_wrong().unwrap()
                    });
                    assert_eq!(wrong.unwrap(), vec![0; ranks], "{kind:?}, {ranks} ranks, {bytes} bytes");
                }
            }
        }
    }
}
