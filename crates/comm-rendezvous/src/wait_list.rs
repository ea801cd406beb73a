//! Processes that wait until a running group admits them.
//!
//! A process enters the list under the next number. The leader of the group, whichever rank that is
//! at present, admits processes in the order of their numbers: it writes to the store that all
//! numbers up to some number have been admitted, draws the round of a rendezvous, and writes for
//! each process which rank it has in that round. So a leader may die at any time: a process that
//! was passed over, because the leader died in between, sees that and enters again.

use std::time::{Duration, Instant};

use comm_core::{Error, LastWill, Membership, Presence, Refusal, Result, Store};

use crate::attempt::{malformed, register_loss_of_leader};

/// The time for which the leader waits for a process that has drawn a number but does not wait yet.
const ENTERING: Duration = Duration::from_millis(100);
/// The interval at which a waiting process checks whether it was passed over.
const LOOK: Duration = Duration::from_millis(500);
/// The largest group that a process joins, so that no store can make it ask for ever more ranks.
const SIZE_MAX: usize = 1 << 16;
/// The names of the keys of each process.
const KEYS: [&str; 3] = ["waiting", "admission", "left"];
/// The value of the key of a process that waits.
const WAITS: &[u8] = b"waits";

/// The processes that wait to join the running group of a job.
///
/// The group and the processes share a [`Store`], and meet in a [`Rendezvous`](crate::Rendezvous)
/// of the round in the [`Admission`]. The keys are specified in `docs/wire-tcp.md`.
#[derive(Clone, Copy)]
pub struct WaitList<'a> {
    store: &'a dyn Store,
    job: u64,
    round: u64,
    clock: fn() -> Instant,
    id: Option<u64>,
}

/// The place of a process in a rendezvous that admits it to a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// The round of the rendezvous.
    pub round: u64,
    /// The rank of the process, and the number of ranks.
    pub membership: Membership,
    /// The timeout of the rendezvous.
    pub timeout: Duration,
}

/// Processes that were admitted to a group.
///
/// The leader keeps it until the rendezvous has ended. Dropping it before, or the exit of the
/// leader, fails the rendezvous, so that the processes do not wait for the group.
#[derive(Debug)]
#[non_exhaustive]
pub struct Admitted {
    /// The round of the rendezvous in which the group and the processes meet.
    pub round: u64,
    /// The numbers of the processes. They have the ranks after those of the group, in this order.
    pub numbers: Vec<u64>,
    /// `None` if the store cannot detect that the leader has exited.
    _presence: Option<Box<dyn Presence>>,
}

/// A place in the list. Dropping it leaves the list.
#[derive(Debug)]
pub struct WaitingProcess<'a> {
    list: WaitList<'a>,
    number: u64,
    /// `None` if the store cannot detect that this process has exited.
    presence: Option<Box<dyn Presence>>,
    /// Whether the leader need not notice that this process leaves the list.
    has_joined: bool,
}

impl std::fmt::Debug for WaitList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { job, round, .. } = self;
        f.debug_struct("WaitList").field("job", job).field("round", round).finish_non_exhaustive()
    }
}

impl<'a> WaitList<'a> {
    /// Creates the list of a job whose first group met in this round.
    #[must_use]
    pub const fn new(store: &'a dyn Store, job: u64, round: u64) -> Self {
        Self { store, job, round, clock: Instant::now, id: None }
    }

    /// Returns the list with this clock for time limits; see
    /// [`Member::clock`](crate::Member::clock).
    #[must_use]
    pub const fn with_clock(self, clock: fn() -> Instant) -> Self {
        Self { clock, ..self }
    }

    /// Returns the list for a process whose launcher knows it by this number; see
    /// [`WaitList::admissions`].
    #[must_use]
    pub const fn with_id(self, id: Option<u64>) -> Self {
        Self { id, ..self }
    }

    /// Returns the store.
    pub(crate) const fn store(&self) -> &'a dyn Store {
        self.store
    }

    fn key(&self, name: &str) -> String {
        format!("comm/{:016x}/{}/join/{name}", self.job, self.round)
    }

    pub(crate) fn process_key(&self, name: &str, number: u64) -> String {
        self.key(&format!("{name}/{number}"))
    }

    pub(crate) fn add(&self, name: &str, amount: i64) -> Result<u64> {
        let key = self.key(name);
        let sum = self.store.add(&key, amount)?;
        u64::try_from(sum).map_err(|_| malformed(&key, sum.to_string().as_bytes()))
    }

    /// Enters the list. The group has until `timeout` to admit this process.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn enter(&self, timeout: Duration) -> Result<WaitingProcess<'a>> {
        let number = self.add("entered", 1)?;
        if let Some(id) = self.id {
            self.add_number(id, number)?;
        }
        let (waits, left) = (self.process_key("waiting", number), self.process_key("left", number));
        let will = LastWill { condition: (&waits, WAITS), keys: &[&left], value: b"" };
        let presence =
            self.store.register_last_will(&will, &self.process_key("admission", number), timeout)?;
        self.store.set(&waits, WAITS)?;
        Ok(WaitingProcess { list: *self, number, presence, has_joined: false })
    }

    /// Admits at most `most` of the processes that wait to a group of `size` ranks. Called by the
    /// leader of the group, alone. Returns `None` if no process waits; otherwise the group takes
    /// part in the rendezvous, with its present ranks. The timeouts are those of the search for
    /// processes, except for the last request to the store, and of the rendezvous.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn admit(
        &self,
        size: usize,
        most: usize,
        [search, timeout]: [Duration; 2],
    ) -> Result<Option<Admitted>> {
        let (admitted, entered) = (self.add("admitted", 0)?, self.add("entered", 0)?);
        let (mut numbers, mut last, began) = (Vec::new(), admitted, (self.clock)());
        for number in admitted + 1..=entered {
            let passed = (self.clock)().saturating_duration_since(began);
            if numbers.len() == most || passed >= search {
                break;
            }
            if self.is_waiting(number)? {
                numbers.push(number);
            } else if self.has_left(number)? {
                self.remove([number])?;
            }
            last = number;
        }
        if last > admitted {
            self.add("admitted", (last - admitted) as i64)?;
        }
        if numbers.is_empty() {
            return Ok(None);
        }
        let round = self.round.wrapping_add(self.add("rounds", 1)? << 32);
        let text = |rank| format!("{round} {rank} {} {}", size + numbers.len(), timeout.as_millis());
        let first = (self.process_key("admission", numbers[0]), text(size));
        let condition = (first.0.as_str(), first.1.as_bytes());
        let presence = register_loss_of_leader(self.store, (self.job, round), condition, timeout)?;
        for (rank, number) in (size..).zip(&numbers) {
            self.store.set(&self.process_key("admission", *number), text(rank).as_bytes())?;
        }
        Ok(Some(Admitted { round, numbers, _presence: presence }))
    }

    /// Removes the keys of processes that the leader has admitted or passed over, and that do not
    /// wait any more.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn remove(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        // In this order: the will of a process sets the last one while the first one exists.
        for (number, name) in numbers.into_iter().flat_map(|number| KEYS.map(|name| (number, name))) {
            self.store.delete(&self.process_key(name, number))?;
        }
        Ok(())
    }

    /// Makes every process that waits, now or later, return an error, because the group has ended.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn close(&self) -> Result<()> {
        self.store.set(&self.key("closed"), b"")
    }

    /// Returns whether a process waits and has not exited.
    fn is_waiting(&self, number: u64) -> Result<bool> {
        match self.store.get(&self.process_key("waiting", number), ENTERING) {
            Ok(state) => Ok(state == WAITS && !self.has_left(number)?),
            Err(Error::Timeout { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a process has exited or left the list since it entered.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn has_left(&self, number: u64) -> Result<bool> {
        self.store.check(&[&self.process_key("left", number)])
    }
}

/// Leaves the list, unless the process has joined the group: the store does that for a client whose
/// connection it watches.
impl Drop for WaitingProcess<'_> {
    fn drop(&mut self) {
        if self.presence.is_none() && !self.has_joined {
            let left = self.list.process_key("left", self.number);
            if let Err(error) = self.list.store.set(&left, b"") {
                tracing::debug!(%error, "cannot leave the list of waiting processes");
            }
        }
    }
}

impl WaitingProcess<'_> {
    /// Waits until the group admits this process. Returns `None` if it was passed over: then it
    /// should enter again. This place must be kept until the rendezvous has succeeded, because its
    /// end tells the group not to wait for this process.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no group admits this process within `timeout`; [`Error::Handshake`]
    /// with [`Refusal::GroupEnded`]; the errors of the store.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Admission>> {
        let key = self.list.process_key("admission", self.number);
        let start = (self.list.clock)();
        loop {
            let passed = (self.list.clock)().saturating_duration_since(start);
            let left = timeout.saturating_sub(passed);
            match self.list.store.get(&key, left.min(LOOK)) {
                Ok(text) => return Admission::decode(&text).map(Some).ok_or_else(|| malformed(&key, &text)),
                Err(Error::Timeout { waiting_for, during, .. }) if left <= LOOK => {
                    return Err(Error::Timeout { waiting_for, after: timeout, during });
                }
                Err(Error::Timeout { .. }) => {}
                Err(error) => return Err(error),
            }
            if self.list.store.check(&[&self.list.key("closed")])? {
                let with = "the running group".into();
                return Err(Error::Handshake { with, refusal: Refusal::GroupEnded });
            }
            // The leader writes the admission after this number.
            if self.list.add("admitted", 0)? >= self.number
                && let Err(Error::Timeout { .. }) = self.list.store.get(&key, (left - LOOK).min(LOOK))
            {
                return Ok(None);
            }
        }
    }

    /// Leaves the list after the rendezvous has succeeded, without an operation on the store, for
    /// which the group would have to wait. The leader removes the keys.
    pub fn finish(mut self) {
        self.has_joined = true;
    }

    /// Leaves the list after the process was passed over.
    ///
    /// # Errors
    /// The errors of the store.
    pub fn withdraw(mut self) -> Result<()> {
        self.has_joined = true;
        self.list.remove([self.number])
    }
}

impl Admission {
    fn decode(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let round = words.next()?.parse().ok()?;
        let membership = Membership { rank: words.next()?.parse().ok()?, size: words.next()?.parse().ok()? };
        let timeout = Duration::from_millis(words.next()?.parse().ok()?);
        let is_sound = words.next().is_none() && membership.size <= SIZE_MAX;
        is_sound.then_some(Self { round, membership, timeout })
    }
}
