//! `commctl perf send_recv`: messages between the first rank and the last, as the OSU benchmarks
//! measure them.

mod exchange;

use comm_cli::__private::progress::Progress;

use super::args::{Format, Perf};
use super::error::{PerfError, Result};
use super::host;
use super::label::Label;
use super::plan::Range;
use super::print::Printer;
use super::row::Row;
use super::session::Session;
use super::statistics::Percentiles;
use super::timing;
use exchange::Buffers;

/// How many messages are under way at once.
const WINDOW_MAX: usize = 64;
/// How much memory they may take, unless that is less than two of them.
const WINDOW_BYTES_MAX: usize = 64 << 20;

/// What is measured of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// There and back.
    Latency,
    /// Many, one way.
    Bandwidth,
    /// Many, both ways at once.
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

    fn label(self, ranks: usize) -> Label {
        let bus_factor = if self == Self::Bidirectional { 2.0 } else { 1.0 };
        Label {
            name: self.name(),
            ranks,
            dtype: None,
            op: None,
            root: None,
            place: "",
            alloc: false,
            bus_factor,
        }
    }

    /// How many messages of this size go one way before an answer comes.
    fn window(self, bytes: usize) -> usize {
        match self {
            Self::Latency => 1,
            Self::Bandwidth | Self::Bidirectional => (WINDOW_BYTES_MAX / bytes).clamp(2, WINDOW_MAX),
        }
    }

    /// By what the time of a call is divided, so that it is that of a message.
    fn share(self, bytes: usize) -> f64 {
        match self {
            Self::Latency => 2.0,
            Self::Bandwidth | Self::Bidirectional => self.window(bytes) as f64,
        }
    }

    /// What two ranks together need for messages of this size.
    fn memory(self, bytes: usize) -> usize {
        // Every receiver has a buffer per message, and a sender one for all.
        let receivers = if self == Self::Bandwidth { 1 } else { 2 };
        (self.window(bytes) * receivers + 2).saturating_mul(bytes)
    }
}

/// Refuses what makes no sense of messages, or does not fit into memory.
pub(super) fn check(perf: &Perf, ranks: usize) -> Result<()> {
    if ranks < 2 {
        return Err(PerfError::usage("send_recv: one rank has nobody to send to; take two at least"));
    }
    if let Some(option) = perf.call.of_a_collective() {
        return Err(PerfError::usage(format!("{option}: messages are bytes between two ranks")));
    }
    if perf.output.svg.is_some() {
        return Err(PerfError::usage("--svg: send_recv has no single picture"));
    }
    let Some(available) = host::available_memory() else { return Ok(()) };
    let does_not_fit = |size: &usize| Kind::Bidirectional.memory(*size) > available;
    match Range::TABLE.or(&perf.sizes)?.sizes().find(does_not_fit) {
        Some(size) => {
            Err(PerfError::Memory { size, ranks: 2, needed: Kind::Bidirectional.memory(size), available })
        }
        None => Ok(()),
    }
}

/// Measures all kinds and prints them. Ranks between the first and the last only wait.
pub(super) fn run(session: &Session, perf: &Perf) -> Result<()> {
    let sizes: Vec<usize> = Range::TABLE.or(&perf.sizes)?.sizes().collect();
    let progress = Progress::new(sizes.len() * Kind::ALL.len(), session.speaks());
    let mut wrong = perf.call.check.then_some(0);
    for kind in Kind::ALL {
        let printer = Printer::new(perf.output.format(), kind.label(session.ranks()), session);
        // The columns of values that only commas separate are named once.
        if kind == Kind::Latency || perf.output.format() != Format::Csv {
            printer.head(session)?;
        }
        for &bytes in &sizes {
            progress.at(format!("{} of {bytes} bytes", kind.name()));
            let row = row(session, perf, kind, bytes)?;
            progress.done(|| printer.row(&row))?;
            wrong = wrong.zip(row.wrong).map(|(all, row)| all + row);
        }
        if kind == Kind::Bidirectional {
            printer.foot(wrong)?;
        }
    }
    match wrong {
        // All ranks know the number, and one says it.
        Some(wrong) if wrong > 0 && session.speaks() => Err(PerfError::Wrong(wrong)),
        _ => Ok(()),
    }
}

/// Measures one size.
fn row(session: &Session, perf: &Perf, kind: Kind, bytes: usize) -> Result<Row> {
    let mut exchange = Buffers::new(&session.comm, kind, bytes)?;
    let mut times = timing::measure(&session.comm, &perf.samples, &mut || exchange.call())?;
    times.iter_mut().for_each(|time| *time /= kind.share(bytes));
    let wrong = if perf.call.check { Some(exchange.wrong()?) } else { None };
    Ok(Row { bytes, algorithm: None, time: Percentiles::of(&times), wrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_bound_the_memory_that_they_take() {
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
                for bytes in [1, 100, (64 << 10) + 1] {
                    let wrong = comm::threads::run(ranks, |comm| {
                        let mut exchange = Buffers::new(&comm, kind, bytes).unwrap();
                        exchange.call().unwrap();
                        exchange.wrong().unwrap()
                    });
                    assert_eq!(wrong.unwrap(), vec![0; ranks], "{kind:?}, {ranks} ranks, {bytes} bytes");
                }
            }
        }
    }
}
