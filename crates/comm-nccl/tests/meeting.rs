//! How ranks meet in a store, and what is found there from earlier runs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use comm_core::{Buffers, Call, Communicator, During, Error, Invalid, ReduceOp, Refusal, Result, Store};
use comm_nccl::{Device, NcclCommunicator, UniqueId};
use comm_tcp::{FileStore, StoreConfig, TcpStore, TcpStoreServer};

use common::{SOON, config, control, devices, library, options};

/// Every rank connects through a store of its own handle, and takes part in one sum; what became of each.
fn connect<S: Store + 'static>(
    ordinals: &[usize],
    store: impl Fn() -> S + Sync,
    timeout: Duration,
) -> Vec<Result<i32>> {
    let (store, size) = (&store, ordinals.len());
    thread::scope(|scope| {
        let start = |(rank, ordinal): (usize, &usize)| {
            let ordinal = *ordinal;
            scope.spawn(move || {
                let mut config = config(rank, size);
                config.timeout = timeout;
                let device = Device::open(ordinal)?;
                let comm =
                    NcclCommunicator::connect_in_store(&library(), &device, Arc::new(store()), config)?;
                let mut sum = comm_nccl::DeviceBuffer::from_host(comm.stream(), &[rank as i32 + 1])?;
                comm.run(
                    Call::AllReduce { buffers: Buffers::InPlace(sum.view_mut()), op: ReduceOp::Sum },
                    &options(),
                )?;
                Ok(sum.to_vec()?[0])
            })
        };
        let ranks: Vec<_> = ordinals.iter().enumerate().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn assert_met(outcomes: Vec<Result<i32>>) {
    let sum = (1..=outcomes.len() as i32).sum();
    for outcome in outcomes {
        assert_eq!(outcome.unwrap(), sum);
    }
}

#[test]
fn ranks_meet_through_a_server_again_and_again() {
    let devices = devices(3);
    let server = TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), StoreConfig::default()).unwrap();
    let store = || TcpStore::connect(server.local_addr(), StoreConfig::default(), SOON).unwrap();
    for size in [1, 2, 3] {
        assert_met(connect(&devices[..size], store, SOON));
    }
}

#[test]
fn ranks_meet_in_a_folder_which_holds_nothing_afterwards() {
    let (devices, folder) = (devices(3), tempfile::tempdir().unwrap());
    let store = || FileStore::open(folder.path()).unwrap();
    for _ in 0..2 {
        assert_met(connect(&devices, store, SOON));
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, [".lock"]);
    }
}

/// A store that forgets nothing, as if every run before had died before it cleaned up.
struct Keeps(FileStore);

impl Store for Keeps {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, timeout)
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.0.add(key, amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.0.compare_set(key, expected, desired)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.0.wait(keys, timeout)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.0.get(key, Duration::ZERO).map(|_| true).or(Ok(false))
    }
}

#[test]
fn what_earlier_runs_left_is_not_taken_for_an_id() {
    let (devices, folder) = (devices(3), tempfile::tempdir().unwrap());
    let store = || Keeps(FileStore::open(folder.path()).unwrap());
    for run in 1..=4 {
        assert_met(connect(&devices, store, SOON));
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert!(left > 4 * run, "{left} files after {run} runs");
    }
}

/// Ranks come in the order that hurts: the one that waits finds the call of a dead run before rank 0 is there.
#[test]
fn a_rank_that_finds_an_old_call_finds_the_right_one_in_time() {
    let (devices, folder) = (devices(2), tempfile::tempdir().unwrap());
    FileStore::open(folder.path()).unwrap().set("nccl/call", &7_u128.to_le_bytes()).unwrap();
    thread::scope(|scope| {
        let join = |rank: usize| {
            let (device, folder) = (devices[rank], folder.path());
            scope.spawn(move || {
                let (device, store) = (Device::open(device).unwrap(), FileStore::open(folder).unwrap());
                NcclCommunicator::connect_in_store(&library(), &device, Arc::new(store), config(rank, 2))
                    .map(drop)
            })
        };
        let waiting = join(1);
        thread::sleep(Duration::from_millis(250));
        let host = join(0);
        assert!(waiting.join().unwrap().is_ok() && host.join().unwrap().is_ok());
    });
}

#[test]
fn a_leftover_that_makes_no_sense_is_refused() {
    let (devices, folder) = (devices(2), tempfile::tempdir().unwrap());
    FileStore::open(folder.path()).unwrap().set("nccl/call", &[1; 127]).unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let device = Device::open(devices[1]).unwrap();
    let error =
        NcclCommunicator::connect_in_store(&library(), &device, Arc::new(store), config(1, 2)).unwrap_err();
    assert!(matches!(error, Error::Handshake { .. }), "{error}");
}

#[test]
fn an_id_of_127_bytes_is_none() {
    for length in [0, 127, 129] {
        let error = UniqueId::from_bytes(&vec![1; length]).unwrap_err().to_string();
        assert!(error.contains(&format!("{length} elements, but 128 are needed")), "{error}");
    }
    assert_eq!(UniqueId::from_bytes(&[1; 128]).unwrap().as_bytes(), &[1; 128]);
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let (devices, folder) = (devices(2), tempfile::tempdir().unwrap());
    let waits_for = |rank: usize| {
        let mut config = config(rank, 4);
        config.timeout = Duration::from_millis(300);
        let store = FileStore::open(folder.path()).unwrap();
        let device = Device::open(devices[rank % 2]).unwrap();
        let error =
            NcclCommunicator::connect_in_store(&library(), &device, Arc::new(store), config).unwrap_err();
        let Error::Timeout { waiting_for, during: During::Rendezvous, .. } = error else { panic!("{error}") };
        waiting_for
    };
    assert_eq!(waits_for(3), [0]);
    thread::scope(|scope| {
        let first = scope.spawn(|| waits_for(0));
        waits_for(2);
        assert_eq!(first.join().unwrap(), [1, 3]);
    });
}

#[test]
fn two_ranks_on_one_device_are_named_on_every_rank_before_nccl_is_asked() {
    let (devices, folder) = (devices(2), tempfile::tempdir().unwrap());
    let store = || FileStore::open(folder.path()).unwrap();
    let name = format!("GPU-6770752d-656d-752d-6465-7669636500{:02x}", devices[0]);
    for outcome in connect(&[devices[0], devices[1], devices[0]], store, SOON) {
        let error = outcome.unwrap_err();
        let Error::Invalid(Invalid::SharedDevice { ranks: (0, 2), device, advice }) = &error else {
            panic!("{error}");
        };
        assert_eq!(device, &name);
        assert!(advice.contains("NCCL_MULTI_RANK_GPU_ENABLE=1"), "{advice}");
    }
    let ours = |call: &gpu_emu::Call| {
        devices.iter().any(|device| call.argument("device") == Some(&device.to_string()))
    };
    let made = control().take_calls().into_iter().filter(ours).map(|call| call.name);
    assert_eq!(made.collect::<Vec<_>>(), Vec::<String>::new());
    assert_met(connect(&devices, store, SOON));
}

/// Whatever its form, a hello begins with the number of the form and ends with that of whoever says it.
#[test]
fn a_peer_that_says_hello_in_another_way_is_refused_and_told_why() {
    let (devices, folder) = (devices(1), tempfile::tempdir().unwrap());
    let store = || FileStore::open(folder.path()).unwrap();
    let hello = [&[2][..], b"something new", &9_u128.to_le_bytes()].concat();
    thread::scope(|scope| {
        let host = scope.spawn(|| {
            let device = Device::open(devices[0]).unwrap();
            let met =
                NcclCommunicator::connect_in_store(&library(), &device, Arc::new(store()), config(0, 2));
            met.unwrap_err()
        });
        let call = store().get("nccl/call", SOON).unwrap();
        let call = u128::from_le_bytes(call.try_into().unwrap());
        store().set(&format!("nccl/{call:x}/hello/1"), &hello).unwrap();
        let answer = store().get(&format!("nccl/{call:x}/answer/1/9"), SOON).unwrap();
        assert_eq!(answer[0], 1);
        let words = String::from_utf8(answer[1..].to_vec()).unwrap();
        let error = host.join().unwrap();
        let refusal = Refusal::Version { ours: 1, theirs: 2 };
        assert!(matches!(&error, Error::Handshake { refusal: why, .. } if *why == refusal), "{error}");
        assert_eq!(words, error.to_string());
        assert!(
            words.contains("rank 1") && words.contains("protocol version 2, and this process 1"),
            "{words}"
        );
    });
}
