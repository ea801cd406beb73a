//! Tests of the log of `comm::init`.
#![cfg(feature = "tcp")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm::{Config, Membership, TransportKind};
use common::Port;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Records the level and the fields of every event of this library.
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

    fn new_span(&self, _: &Attributes<'_>) -> Id {
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
