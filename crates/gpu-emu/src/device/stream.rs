//! Streams: queues of work, each with its own thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::settings::{self, Setting};
use crate::sync::{Marker, lock};

use super::Device;

type Work = Box<dyn FnOnce() + Send>;

/// A queue of work and the thread that runs it.
pub(crate) struct Stream {
    pub(crate) device: Arc<Device>,
    line: Arc<StreamCore>,
}

/// The part of a stream that lives while it has work, even after the stream is destroyed.
#[derive(Debug)]
pub(crate) struct StreamCore {
    kind: StreamKind,
    tail: Mutex<Tail>,
}

impl StreamCore {
    /// Returns the marker after all work so far.
    pub(crate) fn last(&self) -> Arc<Marker> {
        lock(&self.tail).last.clone()
    }
}

struct Tail {
    queue: Option<Sender<(Work, Arc<Marker>)>>,
    last: Arc<Marker>,
}

/// The relation of a stream to the legacy stream of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The legacy stream itself. It waits for all blocking streams, and they wait for it.
    Legacy,
    Blocking,
    NonBlocking,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Returns the number of streams with a thread.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::SeqCst)
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stream").field("device", &self.device.ordinal).finish_non_exhaustive()
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tail").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Dropping a stream does not cancel its work.
impl Drop for Stream {
    fn drop(&mut self) {
        lock(&self.line.tail).queue = None;
    }
}

impl Stream {
    pub(crate) fn new(device: Arc<Device>, kind: StreamKind) -> std::io::Result<Arc<Self>> {
        let (queue, work) = channel();
        let last = Arc::new(Marker::default());
        last.reach();
        let line = Arc::new(StreamCore { kind, tail: Mutex::new(Tail { queue: Some(queue), last }) });
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let (name, kept) = (format!("gpu-emu stream {number}"), line.clone());
        thread::Builder::new().name(name).spawn(move || {
            run(&work, number);
            drop(kept);
        })?;
        LIVE.fetch_add(1, Ordering::SeqCst);
        let mut lines = lock(&device.lines);
        lines.retain(|other| other.strong_count() > 0);
        lines.push(Arc::downgrade(&line));
        drop(lines);
        Ok(Arc::new(Self { device, line }))
    }

    /// Returns the stream with handle 0 or 1.
    pub(crate) fn legacy(device: &Arc<Device>) -> std::io::Result<Arc<Self>> {
        if let Some(stream) = device.legacy.get() {
            return Ok(stream.clone());
        }
        let stream = Self::new(device.clone(), StreamKind::Legacy)?;
        Ok(device.legacy.get_or_init(|| stream).clone())
    }

    /// Returns the stream with handle 2, which is different in each thread.
    pub(crate) fn per_thread(device: &Arc<Device>) -> std::io::Result<Arc<Self>> {
        thread_local! {
            static STREAMS: RefCell<BTreeMap<usize, Arc<Stream>>> = const { RefCell::new(BTreeMap::new()) };
        }
        let known = STREAMS.with_borrow(|streams| streams.get(&device.ordinal).cloned());
        if let Some(stream) = known {
            return Ok(stream);
        }
        let stream = Self::new(device.clone(), StreamKind::Blocking)?;
        STREAMS.with_borrow_mut(|streams| streams.insert(device.ordinal, stream.clone()));
        Ok(stream)
    }

    /// Adds work. It is skipped if the device has failed by the time it runs; the marker is reached
    /// in any case.
    pub(crate) fn add(&self, work: impl FnOnce(&Arc<Device>) + Send + 'static) -> Arc<Marker> {
        self.follow_the_rules_of_the_legacy_stream();
        let device = self.device.clone();
        self.push(Box::new(move || {
            if device.healthy().is_ok() {
                work(&device);
            }
        }))
    }

    /// Makes later work wait for `marker`.
    pub(crate) fn wait_for(&self, marker: Arc<Marker>) {
        if !marker.is_reached() {
            self.push(Box::new(move || marker.wait()));
        }
    }

    /// Returns the marker after all work so far.
    pub(crate) fn last(&self) -> Arc<Marker> {
        self.line.last()
    }

    fn push(&self, work: Work) -> Arc<Marker> {
        let mut tail = lock(&self.line.tail);
        let marker = Arc::new(Marker::default());
        let sent = tail.queue.as_ref().is_some_and(|queue| queue.send((work, marker.clone())).is_ok());
        if !sent {
            marker.reach();
        }
        tail.last = marker.clone();
        marker
    }

    fn follow_the_rules_of_the_legacy_stream(&self) {
        match self.line.kind {
            StreamKind::NonBlocking => {}
            StreamKind::Blocking => {
                if let Some(legacy) = self.device.legacy.get() {
                    self.wait_for(legacy.last());
                }
            }
            StreamKind::Legacy => {
                for other in
                    self.device.stream_cores().iter().filter(|line| line.kind == StreamKind::Blocking)
                {
                    self.wait_for(other.last());
                }
            }
        }
    }
}

/// Runs the work of a stream until it is dropped.
fn run(work: &Receiver<(Work, Arc<Marker>)>, number: u64) {
    let mut random = fastrand::Rng::with_seed(settings::get(Setting::JitterSeed) ^ number << 32);
    for (work, marker) in work {
        let longest = settings::get(Setting::JitterMicroseconds);
        if longest > 0 {
            thread::sleep(Duration::from_micros(random.u64(0..=longest)));
        }
        work();
        marker.reach();
    }
    LIVE.fetch_sub(1, Ordering::SeqCst);
}
