//! Parses the reports of the library.

use std::collections::BTreeMap;

/// A recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Name of the function.
    pub name: String,
    /// Its result.
    pub code: i32,
    /// Its arguments by name, as text: numbers in decimal, addresses in hexadecimal.
    pub arguments: BTreeMap<String, String>,
}

impl Call {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (name, rest) = line.split_once('\t')?;
        let (code, arguments) = rest.split_once('\t')?;
        let pairs = arguments.split(' ').filter_map(|pair| pair.split_once('='));
        let arguments = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Some(Self { name: name.to_owned(), code: code.parse().ok()?, arguments })
    }

    /// Returns an argument by name, if the call has it.
    #[must_use]
    pub fn argument(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).map(String::as_str)
    }

    /// Returns the device of a call of NCCL with a communicator.
    pub(super) fn device(&self) -> Option<usize> {
        self.argument("device")?.parse().ok()
    }
}

/// An action that no correct program takes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// The device on which it happened, if it is known.
    pub device: Option<usize>,
    /// The description.
    pub what: String,
}

impl Fault {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (device, what) = line.split_once('\t')?;
        Some(Self { device: device.parse().ok(), what: what.to_owned() })
    }
}

/// The numbers of existing objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Live {
    /// Bytes allocated on all devices.
    pub bytes: usize,
    /// Pinned ranges of host memory.
    pub pinned: usize,
    /// Streams that were created and not destroyed.
    pub streams: usize,
    /// Threads of streams, including the streams that always exist.
    pub threads: usize,
    /// Events.
    pub events: usize,
    /// Communicators that were neither destroyed nor aborted.
    pub communicators: usize,
}

impl Live {
    pub(super) fn parse(text: &str) -> Self {
        let counts: BTreeMap<&str, usize> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
            .collect();
        let count = |name| counts.get(name).copied().unwrap_or(0);
        Self {
            bytes: count("bytes"),
            pinned: count("pinned"),
            streams: count("streams"),
            threads: count("threads"),
            events: count("events"),
            communicators: count("communicators"),
        }
    }
}
