//! What a rank has to play with.

use std::cell::Cell;
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Buffers, CallOptions, Element, Membership, PrefixStore, Result};
use comm_nccl::{Cuda, Device, DeviceBuffer, Library, NcclCommunicator, NcclConfig, Stream};
use comm_tcp::FileStore;

use crate::case::CASES;
use crate::record::Ending;
use crate::trouble::{Outcome, Trouble};
use crate::{Part, place, speed};

/// One rank, as its process sees it.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) part: Part,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) library: Library,
    pub(crate) device: Device,
    /// Not that of any communicator.
    pub(crate) stream: Stream,
    meetings: Cell<usize>,
}

impl Player {
    fn new(part: &Part, library: Library) -> Result<Self> {
        let device = Device::open(part.device)?;
        let stream = device.new_stream()?;
        let (rank, size) = (part.rank, part.size);
        Ok(Self { part: part.clone(), rank, size, library, device, stream, meetings: Cell::default() })
    }

    pub(crate) fn config(&self) -> Result<NcclConfig> {
        let mut config = NcclConfig::new(Membership { rank: self.rank, size: self.size })?;
        config.timeout = self.part.patience;
        config.close_timeout = self.part.patience;
        Ok(config)
    }

    /// A communicator of all ranks of the case, each time another.
    pub(crate) fn connect(&self) -> Result<NcclCommunicator> {
        self.connect_with(self.config()?)
    }

    pub(crate) fn connect_with(&self, config: NcclConfig) -> Result<NcclCommunicator> {
        let number = self.meetings.replace(self.meetings.get() + 1);
        let store = Arc::new(FileStore::open(self.part.folder.join("store"))?);
        let store = Arc::new(PrefixStore::new(format!("meeting-{number}"), store));
        NcclCommunicator::connect(&self.library, &self.device, store, config)
    }

    /// Says something to the other ranks, past all that is tried.
    pub(crate) fn mark(&self, what: &str) -> Outcome {
        fs::write(self.part.folder.join(what), [])
            .map_err(|error| Trouble::Wrong(format!("cannot leave a mark: {error}")))
    }

    /// Whether any rank said so.
    pub(crate) fn is_marked(&self, what: &str) -> bool {
        self.part.folder.join(what).exists()
    }

    /// Waits until any rank said so.
    pub(crate) fn await_mark(&self, what: &str) -> Outcome {
        let began = Instant::now();
        while !self.is_marked(what) {
            if began.elapsed() > self.part.patience {
                return Err(Trouble::Wrong(format!("no rank said {what:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until all ranks have come here, past all that is tried: nobody is within a call then.
    pub(crate) fn meet(&self, place: &str) -> Outcome {
        self.mark(&format!("{place}, rank {}", self.rank))?;
        (0..self.size).try_for_each(|rank| self.await_mark(&format!("{place}, rank {rank}")))
    }

    /// For calls that are to succeed.
    pub(crate) fn options(&self) -> CallOptions {
        within(self.part.patience)
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

/// Plays a part: the whole life of a process that plays one rank. `open` loads NCCL, and whatever stands in for a driver. How
/// it went is written into the folder of the part; what cannot be written down is an error, and so is a part that nobody knows.
///
/// # Errors
/// If the folder cannot be written to.
pub fn play(part: &Part, open: impl FnOnce() -> Outcome<Library>) -> io::Result<()> {
    let mut began = None;
    let start = || -> Outcome<Player> {
        let player = Player::new(part, open()?)?;
        began = Some(Instant::now());
        Ok(player)
    };
    let mut ending = match part.name.as_str() {
        place::NAME => Ending::of(start().and_then(|player| place::look(&player))),
        speed::NAME => Ending::of(start().and_then(|player| speed::answer(&player))),
        name => match CASES.iter().find(|case| case.name == name) {
            Some(case) => Ending::of(start().and_then(|player| (case.play)(&player))),
            None => Ending::of(Err(Trouble::Wrong(format!("no case is called {name}")))),
        },
    };
    ending.seconds = began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    // Under its name only when it is whole: whoever reads it may not wait for the end of the process.
    let whole = part.outcome();
    let draft = whole.with_extension("part");
    fs::write(&draft, serde_json::to_vec(&ending)?)?;
    fs::rename(&draft, &whole)
}
