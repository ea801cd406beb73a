//! Passes the output of all ranks on, line by line, each line tagged with its rank.
//!
//! One thread does it for all streams, so that whole lines are written one after the other and
//! never mix. It is apart from the supervisor: when whoever reads our output is slow, ranks wait in
//! their writes, but a failing rank and a Ctrl-C are still noticed at once.

use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::lines::TaggedLines;

/// As much as a pipe holds by default.
const READ_BYTES: usize = 64 * 1024;
const STOP: u64 = u64::MAX;

/// Where a rank's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Stdout,
    Stderr,
}

impl Destination {
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()
            }
            Self::Stderr => io::stderr().lock().write_all(bytes),
        }
    }
}

/// One output stream of one rank.
#[derive(Debug)]
pub(super) struct Source {
    pipe: OwnedFd,
    lines: TaggedLines,
    destination: Destination,
}

impl Source {
    pub(super) fn new(rank: usize, pipe: OwnedFd, destination: Destination) -> Self {
        Self { pipe, lines: TaggedLines::new(rank), destination }
    }
}

/// The running relay.
#[derive(Debug)]
pub(super) struct Relay {
    thread: JoinHandle<io::Result<()>>,
    stop: PipeWriter,
}

impl Relay {
    pub(super) fn start(sources: Vec<Source>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stopped, EventData::new_u64(STOP), EventFlags::IN)?;
        for (index, source) in sources.iter().enumerate() {
            rustix::io::ioctl_fionbio(&source.pipe, true)?;
            epoll::add(&epoll, &source.pipe, EventData::new_u64(index as u64), EventFlags::IN)?;
        }
        let pump = Pump { sources: sources.into_iter().map(Some).collect(), chunk: vec![0; READ_BYTES] };
        let thread = std::thread::Builder::new().name("relay".into()).spawn(move || {
            // The thread owns the read end, so that the end of `stop` wakes it.
            let _stopped = stopped;
            pump.run(&epoll)
        })?;
        Ok(Self { thread, stop })
    }

    /// Passes on what the ranks have written up to now and ends. A process that has left its rank's
    /// process group may still hold a pipe open; it is not waited for.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.stop);
        self.thread
            .join()
            .unwrap_or_else(|_panic| Err(io::Error::other("the relay of the ranks' output panicked")))
    }
}

/// The state of the relay's thread. A source is gone once it has ended or its destination has.
struct Pump {
    sources: Vec<Option<Source>>,
    chunk: Vec<u8>,
}

impl Pump {
    fn run(mut self, epoll: &OwnedFd) -> io::Result<()> {
        let mut events = Vec::with_capacity(self.sources.len() + 1);
        loop {
            match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    STOP => {
                        self.drain();
                        return Ok(());
                    }
                    index => {
                        self.pump(index as usize);
                    }
                }
            }
        }
    }

    /// Moves what one read yields, and says how many bytes that were.
    fn pump(&mut self, index: usize) -> usize {
        let Some(source) = &mut self.sources[index] else { return 0 };
        let mut out = Vec::new();
        let read = match rustix::io::read(&source.pipe, &mut self.chunk[..]) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return 0,
            // A pipe that cannot be read is as good as at its end.
            Err(_) => 0,
        };
        if read == 0 {
            source.lines.finish(&mut out);
        } else {
            source.lines.push(&self.chunk[..read], &mut out);
        }
        let destination = source.destination;
        if read == 0 {
            self.sources[index] = None;
        }
        if destination.write(&out).is_err() {
            self.close(destination);
        }
        read
    }

    /// Nobody reads this destination any more. Closing the pipes tells the ranks in the usual way:
    /// SIGPIPE, or EPIPE.
    fn close(&mut self, gone: Destination) {
        for slot in &mut self.sources {
            if slot.as_ref().is_some_and(|source| source.destination == gone) {
                *slot = None;
            }
        }
    }

    /// Moves what is in the pipes now, but not what a surviving writer keeps adding, and flushes
    /// unfinished lines.
    fn drain(&mut self) {
        for index in 0..self.sources.len() {
            let Some(source) = &self.sources[index] else { continue };
            let mut left = rustix::io::ioctl_fionread(source.pipe.as_fd()).unwrap_or(0) as usize;
            while left > 0 {
                match self.pump(index) {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
            let Some(mut source) = self.sources[index].take() else { continue };
            let mut out = Vec::new();
            source.lines.finish(&mut out);
            if source.destination.write(&out).is_err() {
                self.close(source.destination);
            }
        }
    }
}
