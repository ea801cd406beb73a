//! A rendezvous through a store that returns anything, in virtual time.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use comm_core::{Error, Group, LastWill, Membership, Presence, Result, Store};
use comm_rendezvous::{Member, Rendezvous, WaitList};
use comm_sim::hostile::Input;
use comm_sim::network::{self, FaultPlan, NetworkStore};

const RANKS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time after its deadline by which a rank has ended.
const GRACE: Duration = Duration::from_secs(3);

/// Texts of the protocol, and others that are close to them.
const TEXTS: [&str; 16] = [
    "",
    "0",
    "1",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "complete",
    "complete\na\nb\nc",
    "superseded\n0",
    "lost\n1",
    "lost\n18446744073709551615",
    "missing\n0\n1\n1",
    "setting\nworld_size\n0\n3\n7\n4",
    "setting\n\u{1b}[2J\n1\n\u{1b}[2J\n2\n\u{7f}",
    "failed\n2\nno \u{1b}[2J memory",
    "0\nworld_size\t4",
];

/// A store whose answers are altered.
struct HostileStore<'s> {
    store: NetworkStore,
    input: &'s Mutex<Input>,
}

impl HostileStore<'_> {
    /// Returns the draws of the next answer, if it is altered.
    fn altered(&self) -> Option<MutexGuard<'_, Input>> {
        let mut input = self.input.lock().unwrap();
        input.one_in(6).then_some(input)
    }

    fn value(&self, value: Vec<u8>) -> Vec<u8> {
        let Some(mut input) = self.altered() else { return value };
        if input.one_in(2) { input.alter(&value) } else { input.pick(&TEXTS).as_bytes().to_vec() }
    }
}

impl Store for HostileStore<'_> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(key, &self.value(value.to_vec()))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(key, timeout).map(|value| self.value(value))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let sum = self.store.add(key, amount)?;
        Ok(self.altered().map_or(sum, |mut input| input.number().cast_signed()))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(key, expected, desired).map(|value| self.value(value))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        if self.altered().is_some() { Ok(()) } else { self.store.wait(keys, timeout) }
    }

    fn delete(&self, key: &str) -> Result<bool> {
        Ok(self.store.delete(key)? != self.altered().is_some())
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        Ok(self.store.check(keys)? != self.altered().is_some())
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        timeout: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        self.store.register_last_will(will, watch, timeout)
    }
}

/// Joins and finishes a rendezvous. Then rank 0 removes its keys, and admits processes that wait.
fn meet(store: &HostileStore<'_>, rank: usize) -> Result<()> {
    let mut member = Member::new(Membership { rank, size: RANKS });
    (member.timeout, member.clock) = (TIMEOUT, network::now);
    let (rendezvous, records) = Rendezvous::join(store, member, Ok(format!("record {rank}")))?;
    assert_eq!(records.len(), RANKS);
    rendezvous.finish()?;
    if rank > 0 {
        return Ok(());
    }
    Rendezvous::remove(store, 0, 0, RANKS)?;
    let list = WaitList::new(store, 0, 0).with_clock(network::now);
    let process = list.enter(GRACE)?;
    list.admit(RANKS, 1, [GRACE / 10; 2])?;
    process.wait(GRACE / 10).map(drop)
}

/// Checks that an error names possible ranks, also of a larger world, and cannot control a
/// terminal.
fn check_error(error: &Error) {
    let named = match error {
        Error::PeerLost { peer, .. } => vec![*peer],
        Error::Aborted { by, .. } => vec![*by],
        Error::Timeout { waiting_for, .. } => waiting_for.clone(),
        Error::Internal(_) => panic!("{error}"),
        _ => Vec::new(),
    };
    assert!(named.iter().all(|rank| *rank < Group::SIZE_MAX), "{error}");
    assert!(!error.to_string().contains(char::is_control), "{error:?}");
}

comm_sim::hostile_input!(a_rendezvous_through_a_hostile_store_ends: 1000, |input| {
    let (seed, input) = (input.below(256) as u64, Mutex::new(input.clone()));
    network::run(RANKS, seed, &FaultPlan::calm(), |fabric, clock| {
        let store = HostileStore { store: clock.store(None), input: &input };
        let outcome = meet(&store, comm_core::Fabric::group(&fabric).rank());
        assert!(clock.elapsed() < TIMEOUT + GRACE, "it took {:?}", clock.elapsed());
        outcome.inspect_err(check_error).is_ok()
    });
});

#[test]
fn numbers_that_no_rank_wrote_cause_neither_overflows_nor_endless_loops() {
    network::run(1, 0, &FaultPlan::calm(), |_, clock| {
        let (store, last) = (clock.store(None), u64::MAX);
        let key = |name: &str| format!("comm/{:016x}/0/{name}", 0);
        store.set(&key("attempt"), last.to_string().as_bytes()).unwrap();
        store.set(&key(&format!("{last}/joined/0")), b"7").unwrap();
        let mut member = Member::new(Membership { rank: 0, size: 1 });
        (member.timeout, member.clock) = (TIMEOUT, network::now);
        let error = Rendezvous::join(&store, member, Ok(String::new())).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        Rendezvous::remove(&store, 0, 0, 1).unwrap();
        store.add(&key("join/entered"), i64::MAX).unwrap();
        let list = WaitList::new(&store, 0, 0).with_clock(network::now);
        assert!(list.admit(1, 1, [TIMEOUT; 2]).unwrap().is_none());
        assert!(clock.elapsed() < 2 * TIMEOUT, "it took {:?}", clock.elapsed());
    });
}
