//! The state of one rank in its process.

use std::cell::Cell;
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, CallOptions, Element, Membership, Result};
use comm_nccl::{Cuda, Device, DeviceBuffer, Library, NcclCommunicator, NcclConfig, Stream};
use comm_ring::{RingCommunicator, RingConfig};
use comm_tcp::{FileStore, RendezvousConfig, TcpFabric};

use crate::case::CASES;
use crate::error::{CaseError, Outcome};
use crate::record::RankResult;
use crate::{CaseSpec, machine, speed};

/// One rank of a case, which runs in its own process.
#[derive(Debug)]
pub(crate) struct RankContext {
    pub(crate) spec: CaseSpec,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) library: Library,
    pub(crate) device: Device,
    /// A stream that no communicator uses.
    pub(crate) stream: Stream,
    connections: Cell<u64>,
}

impl RankContext {
    fn new(spec: &CaseSpec, library: Library) -> Result<Self> {
        let device = Device::open(spec.device)?;
        let stream = device.new_stream()?;
        let (rank, size) = (spec.rank, spec.size);
        Ok(Self { spec: spec.clone(), rank, size, library, device, stream, connections: Cell::default() })
    }

    pub(crate) fn config(&self) -> Result<NcclConfig> {
        let mut config = NcclConfig::new(Membership { rank: self.rank, size: self.size })?;
        config.timeout = self.spec.call_timeout;
        config.close_timeout = self.spec.call_timeout;
        Ok(config)
    }

    /// Connects a new communicator of all ranks of the case.
    pub(crate) fn connect(&self) -> Result<NcclCommunicator> {
        self.connect_with(self.config()?)
    }

    pub(crate) fn connect_with(&self, config: NcclConfig) -> Result<NcclCommunicator> {
        let store = FileStore::open(self.spec.folder.join("store"))?;
        let mut rendezvous = RendezvousConfig::new(Membership { rank: self.rank, size: self.size });
        rendezvous.member.timeout = self.spec.call_timeout;
        rendezvous.member.round = self.connections.replace(self.connections.get() + 1);
        let fabric = TcpFabric::rendezvous(&store, &rendezvous)?;
        let host = RingCommunicator::new(fabric, RingConfig::default(), self.spec.call_timeout)?;
        NcclCommunicator::connect(&self.library, &self.device, &host, config)
    }

    /// Sets a flag for all ranks, outside of the communicators under test.
    pub(crate) fn set_flag(&self, what: &str) -> Outcome {
        fs::write(self.spec.folder.join(what), [])
            .map_err(|error| CaseError::Wrong(format!("cannot set a flag: {error}")))
    }

    /// Returns whether any rank has set the flag.
    pub(crate) fn has_flag(&self, what: &str) -> bool {
        self.spec.folder.join(what).exists()
    }

    /// Waits until any rank sets the flag.
    pub(crate) fn wait_for_flag(&self, what: &str) -> Outcome {
        let began = Instant::now();
        while !self.has_flag(what) {
            if began.elapsed() > self.spec.call_timeout {
                return Err(CaseError::Wrong(format!("no rank set the flag {what:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for all ranks without using the communicators under test, so that no rank is in a
    /// call.
    pub(crate) fn sync_ranks(&self, place: &str) -> Outcome {
        self.set_flag(&format!("{place}, rank {}", self.rank))?;
        (0..self.size).try_for_each(|rank| self.wait_for_flag(&format!("{place}, rank {rank}")))
    }

    /// Returns the options of calls that must succeed.
    pub(crate) fn options(&self) -> CallOptions {
        within(self.spec.call_timeout)
    }

    pub(crate) fn buffer<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::from_host(&self.stream, elements)
    }

    pub(crate) fn zeros<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::zeros(&self.stream, len)
    }
}

pub(crate) fn within(timeout: Duration) -> CallOptions {
    let mut options = CallOptions::default();
    options.timeout = timeout;
    options
}

pub(crate) fn separate<'a, T: Element>(
    send: &'a DeviceBuffer<T>,
    recv: &'a mut DeviceBuffer<T>,
) -> Buffers<'a, Cuda> {
    Buffers::Separate { send: send.view(), recv: recv.view_mut() }
}

pub(crate) fn in_place<T: Element>(buffer: &mut DeviceBuffer<T>) -> Buffers<'_, Cuda> {
    Buffers::InPlace(buffer.view_mut())
}

/// Runs one rank of a case. This is the main function of the rank's process. `open` loads NCCL, and
/// the emulated driver if there is one. The result is written to the folder of the case.
///
/// # Errors
/// If the folder is not writable.
pub fn run_rank(spec: &CaseSpec, open: impl FnOnce() -> Outcome<Library>) -> io::Result<()> {
    let mut began = None;
    let start = || -> Outcome<RankContext> {
        let ctx = RankContext::new(spec, open()?)?;
        began = Some(Instant::now());
        Ok(ctx)
    };
    let mut ending = match spec.name.as_str() {
        machine::NAME => RankResult::of(start().and_then(|ctx| machine::inspect(&ctx))),
        speed::NAME => RankResult::of(start().and_then(|ctx| speed::serve(&ctx))),
        name => match CASES.iter().find(|case| case.name == name) {
            Some(case) => RankResult::of(start().and_then(|ctx| (case.run)(&ctx))),
            None => RankResult::of(Err(CaseError::Wrong(format!("there is no case {name}")))),
        },
    };
    ending.seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    // The file is renamed when it is complete, because it may be read before the process ends.
    let whole = spec.result_path();
    let draft = whole.with_extension("part");
    fs::write(&draft, serde_json::to_vec(&ending)?)?;
    fs::rename(&draft, &whole)
}
