//! A store in virtual time, to which every rank has connections that can break.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use comm_core::{Error, LastWill, Presence, Refusal, Result, Store};

use super::world::{Event, World};
use super::{Defect, SharedWorld, VirtualClock};
use crate::store_table::{RegisteredWill, StoreTable, timed_out};

/// The average number of set keys per overwritten one, for the defect.
const OVERWRITTEN: usize = 3;

/// The state of the store.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    table: StoreTable,
    /// The rank that serves it, if one does.
    server: Option<usize>,
    has_ended: bool,
    /// The number of stores before this one.
    number: u64,
    /// The time until which it does not answer.
    stalled_until: Duration,
    /// The number of times that the connections of each rank broke.
    breaks: Vec<u64>,
    /// The wills, with their numbers and the ranks that registered them.
    wills: Vec<(u64, usize, RegisteredWill)>,
    registered: u64,
}

impl StoreState {
    fn breaks(&self, rank: usize) -> u64 {
        self.breaks.get(rank).copied().unwrap_or_default()
    }
}

impl World {
    /// Ends the store, which executes no will any more.
    pub(super) fn end_store(&mut self) {
        self.store.has_ended = true;
        self.store.wills.clear();
        self.threads.wake_all();
    }

    /// Lets the store answer no request for some time.
    pub(super) fn stall_store(&mut self, lasting: Duration) {
        self.store.stalled_until = self.store.stalled_until.max(self.now() + lasting);
        self.threads.wake_all();
    }

    /// Breaks the connections of a rank to the store, which executes its wills.
    pub(super) fn reset_store_connections(&mut self, rank: usize) {
        let breaks = &mut self.store.breaks;
        breaks.resize(breaks.len().max(rank + 1), 0);
        breaks[rank] += 1;
        self.execute_wills(|_, owner| owner == rank);
    }

    /// Ends the connections of a rank that has died, and the store if the rank serves it. If its
    /// host does not answer any more, this is noticed after `silence`.
    pub(super) fn leave_store(&mut self, rank: usize, silence: Duration) {
        if self.store.server == Some(rank) {
            self.stall_store(silence);
            self.end_store();
        } else if silence.is_zero() {
            self.reset_store_connections(rank);
        } else {
            self.plan_event(silence, Event::LostClient { rank });
        }
    }

    /// Executes and removes wills, given by their numbers and the ranks that registered them.
    fn execute_wills(&mut self, selects: impl Fn(u64, usize) -> bool) {
        let is_lost = self.plan.defect == Some(Defect::LostWill);
        let StoreState { table, wills, .. } = &mut self.store;
        for (_, _, will) in wills.extract_if(.., |(number, rank, _)| selects(*number, *rank)) {
            if !is_lost {
                table.execute(&will);
            }
        }
        self.threads.wake_all();
    }
}

/// A client of the store of a run in virtual time, for one rank.
///
/// Each operation takes the time of two messages, and counts as an operation of the rank. If a rank
/// serves the store, dropping its client ends the store.
#[derive(Debug)]
pub struct NetworkStore(StoreClient);

/// The connections of a rank to the store.
#[derive(Debug, Clone)]
struct StoreClient {
    rank: usize,
    /// The number of the store.
    number: u64,
    /// The time for which an operation waits for its answer.
    patience: Duration,
    world: SharedWorld,
}

/// A time that no operation takes.
const FOREVER: Duration = Duration::from_secs(1 << 32);
/// The time by which the answer may come after the time limit of an operation that waits for keys.
const GRACE: Duration = Duration::from_secs(1);

impl VirtualClock {
    /// Connects this rank to the store of the run. `server` is the rank that serves it, the same on
    /// all ranks; `None` if no rank does.
    #[must_use]
    pub fn store(&self, server: Option<usize>) -> NetworkStore {
        self.world.lock().store.server = server;
        self.client(FOREVER)
    }

    fn client(&self, patience: Duration) -> NetworkStore {
        let number = self.world.lock().store.number;
        NetworkStore(StoreClient { rank: self.rank, number, patience, world: self.world.clone() })
    }

    /// Begins to serve an empty store on this rank, in place of one that has ended, and connects
    /// to it.
    ///
    /// # Errors
    /// [`Error::Io`] if there is a store.
    pub fn serve_store(&self, operation_timeout: Duration) -> Result<NetworkStore> {
        self.world.begin_operation(self.rank);
        let mut world = self.world.lock();
        let StoreState { server, has_ended, number, registered, breaks, .. } = &mut world.store;
        if server.is_some() && !*has_ended {
            return Err(Error::io("serve a store", ErrorKind::AddrInUse.into()));
        }
        let (number, registered, breaks) = (*number + 1, *registered, std::mem::take(breaks));
        world.store =
            StoreState { server: Some(self.rank), number, registered, breaks, ..StoreState::default() };
        world.threads.wake_all();
        drop(world);
        Ok(self.client(operation_timeout))
    }

    /// Connects this rank to the store of the run, once there is one. If a rank is to serve it,
    /// `is_served` is set.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no store within this time.
    pub fn connect_store(&self, is_served: bool, operation_timeout: Duration) -> Result<NetworkStore> {
        self.world.begin_operation(self.rank);
        let until = self.elapsed() + operation_timeout;
        loop {
            let world = self.world.lock();
            let StoreState { server, has_ended, .. } = world.store;
            if world.is_dead(self.rank) {
                return Err(Error::Internal("a dead rank uses the store".into()));
            }
            let left = until.saturating_sub(world.now());
            drop(world);
            if !has_ended && server.is_some() == is_served {
                return Ok(self.client(operation_timeout));
            }
            if left.is_zero() {
                return Err(Error::io("reach the store", ErrorKind::ConnectionRefused.into()));
            }
            self.world.sleep(self.rank, left)?;
        }
    }
}

impl StoreClient {
    /// Returns an error if this rank has died, or the connection of an operation is broken.
    fn check(&self, world: &World, breaks: u64) -> Result<()> {
        if world.is_dead(self.rank) {
            return Err(Error::Internal("a dead rank uses the store".into()));
        }
        let StoreState { has_ended, stalled_until, number, .. } = world.store;
        if number != self.number {
            return Err(Error::Handshake { with: "the store".into(), refusal: Refusal::StoreClosing });
        }
        let is_silent = stalled_until > world.now();
        if world.store.breaks(self.rank) != breaks || (has_ended && !is_silent) {
            let kind = if has_ended { ErrorKind::ConnectionRefused } else { ErrorKind::ConnectionReset };
            return Err(Error::io("use the store", io::Error::from(kind)));
        }
        Ok(())
    }

    /// Waits until a message has arrived at the store or from it, at most until a certain time.
    fn travel(&self, breaks: u64, until: Duration) -> Result<()> {
        let latency = self.world.lock().plan.latency;
        self.world.pause(self.rank, latency);
        loop {
            let world = self.world.lock();
            self.check(&world, breaks)?;
            let stalled = world.store.stalled_until.saturating_sub(world.now());
            let left = until.saturating_sub(world.now());
            drop(world);
            if stalled.is_zero() {
                return Ok(());
            }
            if left.is_zero() {
                return Err(timed_out(&[""], self.patience));
            }
            self.world.sleep(self.rank, stalled.min(left))?;
        }
    }

    /// Waits until `request` has an answer, at most for `timeout`. Returns `None` after that time.
    fn call<R>(
        &self,
        timeout: Duration,
        mut request: impl FnMut(&mut World) -> Option<R>,
    ) -> Result<Option<R>> {
        self.world.begin_operation(self.rank);
        let (breaks, began) = {
            let world = self.world.lock();
            (world.store.breaks(self.rank), world.now())
        };
        let until = began.saturating_add(timeout);
        let answered = match timeout {
            Duration::ZERO => began.saturating_add(self.patience),
            _ if self.patience == FOREVER => FOREVER,
            _ => until.saturating_add(GRACE),
        };
        self.travel(breaks, answered)?;
        loop {
            let mut world = self.world.lock();
            self.check(&world, breaks)?;
            let (answer, left) = (request(&mut world), until.saturating_sub(world.now()));
            drop(world);
            if answer.is_some() || left.is_zero() {
                self.travel(breaks, answered)?;
                return Ok(answer);
            }
            self.world.sleep(self.rank, left)?;
        }
    }

    /// Changes the table, and wakes the threads that wait for keys.
    fn change<R>(&self, mut change: impl FnMut(&mut StoreTable) -> R) -> Result<R> {
        let changed = self.call(Duration::ZERO, |world| {
            let changed = change(&mut world.store.table);
            world.threads.wake_all();
            Some(changed)
        })?;
        changed.ok_or_else(|| Error::Internal("a store did not answer".into()))
    }

    /// Reads and sets in two operations, for the defect.
    fn read_and_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let value = self.change(|table| table.get(key).cloned().unwrap_or_default())?;
        if value != expected {
            return Ok(value);
        }
        self.change(|table| table.set(key, desired))?;
        Ok(desired.to_vec())
    }
}

impl Store for NetworkStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.change(|table| table.set(key, value))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let value = self.0.call(timeout, |world| world.store.table.get(key).cloned())?;
        value.ok_or_else(|| timed_out(&[key], timeout))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.0.change(|table| table.add(key, amount))?
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        let defect = self.0.world.lock().plan.defect;
        if defect == Some(Defect::SplitCompareSet) {
            return self.0.read_and_set(key, expected, desired);
        }
        let overwrites = defect == Some(Defect::Overwrite) && self.0.world.lock().one_in(OVERWRITTEN);
        self.0.change(|table| {
            if overwrites {
                table.set(key, desired);
            }
            table.compare_set(key, expected, desired)
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let present = self.0.call(timeout, |world| world.store.table.has_all(keys).then_some(()))?;
        present.ok_or_else(|| timed_out(keys, timeout))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.0.change(|table| table.delete(key))
    }

    fn num_keys(&self) -> Result<u64> {
        self.0.change(|table| table.len() as u64)
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        _: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        let (server, descriptor) = UnixStream::pair().map_err(|error| Error::io("watch a key", error))?;
        let mut server = Some(server);
        let registered = self.0.call(Duration::ZERO, |world| {
            let breaks = world.store.breaks(self.0.rank);
            let StoreState { table, wills, registered, .. } = &mut world.store;
            *registered += 1;
            wills.push((*registered, self.0.rank, will.into()));
            if let Some(server) = server.take() {
                table.watch(watch, server);
            }
            Some((*registered, breaks))
        })?;
        let (number, breaks) = registered.unwrap_or_default();
        let (client, watch) = (self.0.clone(), watch.to_owned());
        Ok(Some(Box::new(NetworkPresence { client, number, breaks, watch, descriptor })))
    }
}

impl Drop for NetworkStore {
    fn drop(&mut self) {
        let mut world = self.0.world.lock();
        if world.store.server == Some(self.0.rank) && world.store.number == self.0.number {
            world.end_store();
        }
    }
}

/// A connection whose end executes a will.
#[derive(Debug)]
struct NetworkPresence {
    client: StoreClient,
    /// The number of the will.
    number: u64,
    breaks: u64,
    watch: String,
    descriptor: UnixStream,
}

impl Presence for NetworkPresence {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn poll(&self) -> Result<Option<Vec<u8>>> {
        let world = self.client.world.lock();
        self.client.check(&world, self.breaks)?;
        Ok(world.store.table.get(&self.watch).cloned())
    }
}

impl Drop for NetworkPresence {
    fn drop(&mut self) {
        let mut world = self.client.world.lock();
        // The store cannot know of an exit before the host of a dead rank is lost.
        if !world.is_dead(self.client.rank) {
            world.execute_wills(|number, _| number == self.number);
        }
    }
}
