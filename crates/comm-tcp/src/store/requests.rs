//! Executes requests.

use std::time::Duration;

use comm_core::simulation;
use comm_core::wire::{self, Fixed};

use super::budget::Value;
use super::connection::{CloseReason, Parked, Phase, StoreConnection, Will};
use super::protocol::{Request, Response};
use super::reactor::Reactor;
use super::table::{KEY_OVERHEAD, TableError};

/// The maximum number of bytes of a text in a response.
const TEXT_BYTES_MAX: usize = 4096;

/// The result of a request.
enum Answer {
    Bytes(Vec<u8>),
    Value(Option<Value>),
}

/// The largest will in bytes. Each connection may have one.
const WILL_BYTES_MAX: usize = 4096;

impl Reactor {
    pub(super) fn execute(
        &mut self,
        id: u64,
        connection: &mut StoreConnection,
        frame: &[u8],
    ) -> Result<(), CloseReason> {
        let request = Request::decode(frame).map_err(|_| CloseReason::Malformed)?;
        let (changed, outcome) = match request {
            Request::Get { key, timeout } => {
                return self.park(id, connection, vec![key.to_owned()], true, timeout);
            }
            Request::Wait { keys, timeout } => {
                let keys = keys.into_iter().map(str::to_owned).collect();
                return self.park(id, connection, keys, false, timeout);
            }
            Request::Set { key, value } => (Some(key), self.table.set(key, value).map(|()| Answer::empty())),
            Request::Add { key, amount } => {
                let sum = self.table.add(key, amount);
                (Some(key), sum.map(Answer::number))
            }
            Request::CompareSet { key, expected, desired } => {
                let set = self.table.compare_set(key, expected, desired);
                let value = set.map(|_| Answer::Value(self.table.get(key).cloned()));
                (set.is_ok_and(|set| set).then_some(key), value)
            }
            Request::LeaveWill { condition: (key, holds), value, keys } => {
                let fits = frame.len() <= WILL_BYTES_MAX;
                connection.will = fits.then(|| {
                    Box::new(Will {
                        condition: (key.to_owned(), holds.to_vec()),
                        value: value.to_vec(),
                        keys: keys.into_iter().map(str::to_owned).collect(),
                    })
                });
                (None, if fits { Ok(Answer::Bytes(Vec::new())) } else { Err(TableError::Full) })
            }
            Request::Delete { key } => (None, Ok(Answer::yes_or_no(self.table.delete(key)))),
            Request::Check { keys } => {
                let exist = keys.iter().all(|key| self.table.get(key).is_some());
                (None, Ok(Answer::yes_or_no(exist)))
            }
            Request::Identify => (None, Ok(Answer::number(self.identity))),
            Request::NumKeys => (None, Ok(Answer::number(self.table.len() as u64))),
        };
        self.acknowledge(connection, changed, &outcome)?;
        if let (Some(key), Ok(_)) = (changed, &outcome) {
            self.wake(key);
        }
        Ok(())
    }

    fn acknowledge(
        &self,
        connection: &mut StoreConnection,
        key: Option<&str>,
        outcome: &Result<Answer, TableError>,
    ) -> Result<(), CloseReason> {
        let deadline = self.operation_deadline();
        let response = match outcome {
            Ok(Answer::Bytes(bytes)) => Response::Done(bytes),
            Ok(Answer::Value(Some(value))) => return connection.respond_value(value, deadline),
            Ok(Answer::Value(None)) => Response::Done(&[]),
            Err(TableError::Full) => Response::Full,
            Err(TableError::NotANumber) => {
                let value = key.and_then(|key| self.table.get(key)).map_or(&[][..], |value| value);
                Response::NotANumber(value.get(..TEXT_BYTES_MAX).unwrap_or(value))
            }
        };
        connection.respond(&response, deadline)
    }

    /// Responds to a request for keys once they all exist.
    fn park(
        &mut self,
        id: u64,
        connection: &mut StoreConnection,
        keys: Vec<String>,
        wants_value: bool,
        timeout: Duration,
    ) -> Result<(), CloseReason> {
        // Each key is stored here and in the table of waiters.
        let bytes = keys.iter().map(|key| 2 * key.len() + KEY_OVERHEAD).sum();
        if !connection.hold(bytes) {
            return connection.respond(&Response::Full, self.operation_deadline());
        }
        connection.phase = Phase::Parked(Parked { keys, missing: 0, wants_value });
        connection.deadline = simulation::now().checked_add(timeout);
        if timeout.is_zero() { self.retry_once(id, connection) } else { self.retry(id, connection) }
    }

    /// Responds to a parked request if all its keys exist, and otherwise waits for the first that
    /// does not.
    fn retry(&mut self, id: u64, connection: &mut StoreConnection) -> Result<(), CloseReason> {
        let deadline = self.operation_deadline();
        let Phase::Parked(parked) = &mut connection.phase else { return Ok(()) };
        if let Some(missing) = parked.find_missing(|key| self.table.get(key).is_some()) {
            if self.is_draining() {
                return self.respond_closing(id, connection);
            }
            self.table.wait(missing, id);
            return Ok(());
        }
        let only = parked.keys.first().filter(|_| parked.wants_value);
        match only.and_then(|key| self.table.get(key)) {
            Some(value) => connection.respond_value(value, deadline),
            None => connection.respond(&Response::Done(&[]), deadline),
        }
    }

    /// Responds to a parked request with the keys that are missing.
    pub(super) fn respond_timeout(
        &mut self,
        id: u64,
        connection: &mut StoreConnection,
    ) -> Result<(), CloseReason> {
        let deadline = self.operation_deadline();
        let Phase::Parked(parked) = &connection.phase else { return Ok(()) };
        self.table.stop_waiting(parked.missing_key(), id);
        let missing = parked.keys.iter().filter(|key| self.table.get(key).is_none());
        let names = list(missing.map(String::as_str));
        connection.respond(&Response::TimedOut(names.as_bytes()), deadline)
    }

    /// Responds to a parked request immediately, whether its keys exist or not.
    fn retry_once(&mut self, id: u64, connection: &mut StoreConnection) -> Result<(), CloseReason> {
        let Phase::Parked(parked) = &mut connection.phase else { return Ok(()) };
        match parked.find_missing(|key| self.table.get(key).is_some()) {
            Some(_) => self.respond_timeout(id, connection),
            None => self.retry(id, connection),
        }
    }

    /// Responds to a parked request that the server is closing.
    pub(super) fn respond_closing(
        &mut self,
        id: u64,
        connection: &mut StoreConnection,
    ) -> Result<(), CloseReason> {
        let Phase::Parked(parked) = &connection.phase else { return Ok(()) };
        self.table.stop_waiting(parked.missing_key(), id);
        connection.respond(&Response::Closing, self.operation_deadline())
    }

    /// Sets the keys of the will of a client that has exited.
    pub(super) fn execute_will(&mut self, will: &Will) {
        let (key, holds) = &will.condition;
        let holds = self.table.get(key).is_some_and(|value| **value == **holds);
        let Some(first) = will.keys.first().filter(|_| holds) else { return };
        let value = self.table.get(first).map_or_else(|| will.value.clone(), |value| value.to_vec());
        for key in &will.keys {
            if self.table.get(key).is_none() && self.table.set(key, &value).is_ok() {
                self.wake(key);
            }
        }
    }

    /// Responds to the requests that wait for a key that now exists.
    fn wake(&mut self, key: &str) {
        for waiter in self.table.take_waiters(key) {
            self.serve(waiter, Self::retry);
        }
    }
}

impl Answer {
    const fn empty() -> Self {
        Self::Bytes(Vec::new())
    }

    fn number(number: impl Fixed) -> Self {
        Self::Bytes(wire::encode(|to| _ = to.put(number)))
    }

    fn yes_or_no(yes: bool) -> Self {
        Self::Bytes(vec![u8::from(yes)])
    }
}

/// Lists keys up to a length, and counts the rest.
fn list<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let (mut names, mut more) = (String::new(), 0_usize);
    for key in keys {
        if names.len() + key.len() > TEXT_BYTES_MAX {
            more += 1;
            continue;
        }
        names.push_str(if names.is_empty() { "" } else { ", " });
        names.push_str(key);
    }
    match more {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}
