//! What the server does with requests.

use std::time::{Duration, Instant};

use super::connection::{Connection, Gone, Parked, Phase};
use super::protocol::{Request, Response};
use super::reactor::Reactor;
use super::table::Denied;

impl Reactor {
    pub(super) fn execute(&mut self, id: u64, connection: &mut Connection, frame: &[u8]) -> Result<(), Gone> {
        let request = Request::decode(frame).ok_or(Gone::Garbage)?;
        let (changed, outcome) = match request {
            Request::Get { key, timeout } => {
                return self.park(id, connection, vec![key.to_owned()], true, timeout);
            }
            Request::Wait { keys, timeout } => {
                let keys = keys.into_iter().map(str::to_owned).collect();
                return self.park(id, connection, keys, false, timeout);
            }
            Request::Set { key, value } => (Some(key), self.table.set(key, value).map(|()| Vec::new())),
            Request::Add { key, amount } => {
                (Some(key), self.table.add(key, amount).map(|sum| sum.to_le_bytes().to_vec()))
            }
            Request::CompareSet { key, expected, desired } => {
                let set = self.table.compare_set(key, expected, desired);
                let value = set.map(|_| self.table.get(key).unwrap_or_default().to_vec());
                (set.is_ok_and(|set| set).then_some(key), value)
            }
            Request::Delete { key } => (None, Ok(vec![u8::from(self.table.delete(key))])),
        };
        self.acknowledge(connection, changed, &outcome)?;
        if let (Some(key), Ok(_)) = (changed, &outcome) {
            self.wake(key);
        }
        Ok(())
    }

    fn acknowledge(
        &self,
        connection: &mut Connection,
        key: Option<&str>,
        outcome: &Result<Vec<u8>, Denied>,
    ) -> Result<(), Gone> {
        let response = match outcome {
            Ok(value) => Response::Done(value),
            Err(Denied::Full) => Response::Full,
            Err(Denied::NotANumber) => {
                Response::NotANumber(key.and_then(|key| self.table.get(key)).unwrap_or_default())
            }
        };
        connection.respond(&response, self.operation_deadline())
    }

    /// Answers a request for keys when they all exist.
    fn park(
        &mut self,
        id: u64,
        connection: &mut Connection,
        keys: Vec<String>,
        wants_value: bool,
        timeout: Duration,
    ) -> Result<(), Gone> {
        connection.phase = Phase::Parked(Parked { keys, missing: 0, wants_value });
        connection.deadline = Instant::now().checked_add(timeout);
        self.retry(id, connection)?;
        if timeout.is_zero() { self.time_out(id, connection) } else { Ok(()) }
    }

    /// Answers a parked request if all its keys exist, else waits for the first that does not.
    fn retry(&mut self, id: u64, connection: &mut Connection) -> Result<(), Gone> {
        let deadline = self.operation_deadline();
        let Phase::Parked(parked) = &mut connection.phase else { return Ok(()) };
        if let Some(missing) = parked.find_missing(|key| self.table.get(key).is_some()) {
            self.table.wait(missing, id);
            return Ok(());
        }
        let only = parked.keys.first().filter(|_| parked.wants_value);
        let value = only.and_then(|key| self.table.get(key)).unwrap_or_default();
        connection.respond(&Response::Done(value), deadline)
    }

    /// Tells a parked client which keys are missing.
    pub(super) fn time_out(&mut self, id: u64, connection: &mut Connection) -> Result<(), Gone> {
        let deadline = self.operation_deadline();
        let Phase::Parked(parked) = &connection.phase else { return Ok(()) };
        if let Some(key) = parked.awaited() {
            self.table.stop_waiting(key, id);
        }
        let missing = parked.keys.iter().filter(|key| self.table.get(key).is_none());
        let names = missing.map(String::as_str).collect::<Vec<_>>().join(", ");
        connection.respond(&Response::TimedOut(names.as_bytes()), deadline)
    }

    /// Answers whoever waits for a key that now exists.
    fn wake(&mut self, key: &str) {
        for waiter in self.table.take_waiters(key) {
            self.serve(waiter, Self::retry);
        }
    }
}
