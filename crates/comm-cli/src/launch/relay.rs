//! Relays the output of all ranks line by line, each line tagged with its rank, and also writes it
//! to files as it is.
//!
//! One thread relays all streams, so that lines never mix. It is separate from the supervisor's
//! thread: if the reader of the output is slow, ranks block in their writes, but the supervisor
//! still reacts to failures and Ctrl-C.

use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::lines::TaggedLines;

/// The size of a read in bytes: the default capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;
const STOP: u64 = u64::MAX;

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
    /// The file to which the output is also written.
    log: Option<File>,
}

impl Source {
    pub(super) fn new(rank: usize, pipe: OwnedFd, destination: Destination, log: Option<File>) -> Self {
        Self { pipe, lines: TaggedLines::new(rank), destination, log }
    }
}

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
        let sources = sources.into_iter().map(Some).collect();
        let pump = Pump { sources, chunk: vec![0; READ_BYTES], log_error: None };
        let thread = std::thread::Builder::new().name("relay".into()).spawn(move || {
            // The thread owns the read end; closing `stop` wakes it.
            let _stopped = stopped;
            pump.run(&epoll)
        })?;
        Ok(Self { thread, stop })
    }

    /// Relays the output that the ranks have written so far, and stops. A process outside the
    /// process groups may still hold a pipe open; the relay does not wait for it.
    pub(super) fn finish(self) -> io::Result<()> {
        drop(self.stop);
        self.thread
            .join()
            .unwrap_or_else(|_panic| Err(io::Error::other("the relay of the ranks' output panicked")))
    }
}

/// The state of the thread. A source is `None` after it or its destination is closed.
struct Pump {
    sources: Vec<Option<Source>>,
    chunk: Vec<u8>,
    /// The first error of writing to a file.
    log_error: Option<io::Error>,
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
                        return self.log_error.map_or(Ok(()), Err);
                    }
                    index => {
                        self.pump(index as usize);
                    }
                }
            }
        }
    }

    /// Relays the bytes of one read, and returns their number.
    fn pump(&mut self, index: usize) -> usize {
        let Some(source) = &mut self.sources[index] else { return 0 };
        let mut out = Vec::new();
        let read = match rustix::io::read(&source.pipe, &mut self.chunk[..]) {
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return 0,
            // A read error counts as end of file.
            Err(_) => 0,
        };
        if read == 0 {
            source.lines.finish(&mut out);
        } else {
            source.lines.push(&self.chunk[..read], &mut out);
            if let Some(Err(error)) = source.log.as_mut().map(|log| log.write_all(&self.chunk[..read])) {
                source.log = None;
                self.log_error.get_or_insert(error);
            }
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

    /// Closes all pipes to a destination without a reader, so that ranks get SIGPIPE or EPIPE.
    fn close(&mut self, gone: Destination) {
        for slot in &mut self.sources {
            if slot.as_ref().is_some_and(|source| source.destination == gone) {
                *slot = None;
            }
        }
    }

    /// Relays the bytes that are in the pipes now, and flushes unfinished lines.
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
