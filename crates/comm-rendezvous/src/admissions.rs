//! The processes of a launcher in the list of those that wait to join a group.
//!
//! A launcher that starts processes for lost ranks has to know whether any of its processes is in
//! the group: if none is, nobody admits those that wait.

use std::time::Duration;

use comm_core::{Error, Result};

use crate::attempt::malformed;
use crate::wait_list::WaitList;

/// The processes of a launcher that a group has admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admissions {
    /// The ids of those that were admitted when they last waited. They are in the group, on the way
    /// into it, or have exited since. One that a leader has passed over is among them until it
    /// waits again, for about a second.
    pub admitted: Vec<u64>,
    /// Whether other processes have waited, too. Then the group may have members that the launcher
    /// does not know.
    pub has_others: bool,
}

impl WaitList<'_> {
    /// Returns which of the processes with these ids ([`WaitList::with_id`]) were admitted. A
    /// process that is in the group all the time while this reads the store is among them.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn admissions(&self, ids: impl IntoIterator<Item = u64>) -> Result<Admissions> {
        let numbers = ids
            .into_iter()
            .map(|id| Ok((id, self.numbers(id)?)))
            .collect::<Result<Vec<(u64, Vec<u64>)>>>()?;
        // These are read last: a process is admitted only after its number is known.
        let (passed, entered) = (self.add("admitted", 0)?, self.add("entered", 0)?);
        let known = numbers.iter().map(|(_, numbers)| numbers.len() as u64).sum::<u64>();
        let is_admitted = |numbers: &[u64]| numbers.last().is_some_and(|last| *last <= passed);
        let admitted = numbers.iter().filter(|(_, numbers)| is_admitted(numbers)).map(|(id, _)| *id);
        Ok(Admissions { admitted: admitted.collect(), has_others: entered > known })
    }

    /// Adds a number that the process with this id has drawn.
    pub(crate) fn add_number(&self, id: u64, number: u64) -> Result<()> {
        let mut numbers = self.numbers(id)?;
        numbers.push(number);
        let text = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        self.store().set(&self.process_key("process", id), text.as_bytes())
    }

    /// Returns the numbers that the process with this id has drawn.
    fn numbers(&self, id: u64) -> Result<Vec<u64>> {
        let key = self.process_key("process", id);
        let text = match self.store().get(&key, Duration::ZERO) {
            Ok(text) => text,
            Err(Error::Timeout { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let numbers = |text: &str| text.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>();
        std::str::from_utf8(&text).ok().and_then(numbers).ok_or_else(|| malformed(&key, &text))
    }
}
