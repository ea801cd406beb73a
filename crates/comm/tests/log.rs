//! Tests of the log of `comm::init` and of calls.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm::{Comm, Config, Membership, ReduceOp, RingCommunicator, RingConfig, TransportKind};
use comm_sim::in_process::{self, InProcessConfig};
use common::Port;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Records the level and the fields of every event and span of this library.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!("{field} = {value:?}; "));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("comm")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(format!("span {}: ", span.metadata().name()));
        span.record(&mut fields);
        self.0.lock().unwrap().push((*span.metadata().level(), fields.0));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(String::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push((*event.metadata().level(), fields.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Returns the events of at least this level on this thread while `work` runs.
fn report(level: Level, work: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), work);
    let events = log.0.lock().unwrap();
    events.iter().filter(|(of, _)| *of <= level).map(|(_, text)| text.clone()).collect()
}

/// Runs a world of two threads, and returns the events and spans of rank 0.
fn report_of_two(level: Level, rank: impl Fn(&Comm) + Sync) -> Vec<String> {
    let reports = in_process::run(2, &InProcessConfig::default(), |fabric| {
        let comm = RingCommunicator::new(fabric, RingConfig::default(), Duration::from_secs(60)).unwrap();
        let comm = Comm::new(comm);
        report(level, || rank(&comm))
    });
    reports.into_iter().next().unwrap()
}

#[test]
fn a_call_is_a_span_with_its_collective_bytes_algorithm_and_number() {
    let calls = |comm: &Comm| {
        comm.with_algorithm("ring").all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).unwrap();
        comm.barrier().unwrap();
    };
    let spans = report_of_two(Level::TRACE, calls);
    let expected = "span collective: collective = \"all_reduce\"; algorithm = \"ring\"; bytes = 4000; \
                    sequence = 1; group = world; rank = 0; ";
    assert_eq!(spans[0], expected);
    assert!(spans[1].contains("\"barrier\"") && spans[1].contains("sequence = 2; "), "{spans:?}");
    assert_eq!(report_of_two(Level::DEBUG, calls), [""; 0]);
}

#[test]
fn a_call_that_fails_is_an_event_with_its_error() {
    let events = report_of_two(Level::DEBUG, |comm| {
        if comm.rank() == 1 {
            return comm.abort("out of coffee");
        }
        comm.barrier().unwrap_err();
    });
    assert!(
        events.iter().any(|text| text.contains("out of coffee") && text.contains("sequence = 1")),
        "{events:?}"
    );
}

/// Runs a rank 0 of two that serves its store on this host, and fails immediately.
fn alone_of_two(master: &str, bind: Option<IpAddr>, secret: Option<&str>) {
    let port = Port::reserve();
    let mut config = Config::new(Membership { rank: 0, size: 2 }, master, port.number).unwrap();
    (config.bind, config.transport) = (bind, TransportKind::Tcp);
    config.secret = secret.map(|secret| comm::tcp::Secret::new(secret).unwrap());
    config.rendezvous_timeout = Duration::from_millis(50);
    comm::init_with(&config).unwrap_err();
}

fn warns_of_no_secret(master: &str, secret: Option<&str>) -> bool {
    let events = report(Level::WARN, || alone_of_two(master, None, secret));
    events.iter().any(|text| text.contains("COMM_SECRET"))
}

#[test]
fn a_store_for_other_hosts_without_a_secret_is_a_warning() {
    let Some(here) = comm::tcp::outward_address() else { return };
    assert!(warns_of_no_secret(&here.to_string(), None));
    assert!(!warns_of_no_secret(&here.to_string(), Some("open sesame")));
}

#[test]
fn a_store_for_this_host_without_a_secret_is_not_a_warning() {
    assert!(!warns_of_no_secret("127.0.0.1", None));
    assert!(!warns_of_no_secret("localhost", None));
}

#[test]
fn a_rank_that_listens_for_other_hosts_without_a_secret_is_a_warning() {
    let everywhere = Some("0.0.0.0".parse().unwrap());
    for (secret, warnings) in [(None, 1), (Some("open sesame"), 0)] {
        let events = report(Level::WARN, || alone_of_two("127.0.0.1", everywhere, secret));
        let about = |text: &&String| text.contains("COMM_SECRET") && text.contains("0.0.0.0");
        assert_eq!(events.iter().filter(about).count(), warnings, "{events:?}");
    }
}

#[test]
fn a_process_without_a_launcher_logs_that_it_is_alone() {
    // Under a launcher there is no such event.
    if !Config::is_launched() {
        let report = report(Level::INFO, || assert_eq!(Config::from_env().unwrap().world_size, 1));
        assert!(report.iter().any(|text| text.contains("world of one rank")), "{report:?}");
    }
}
