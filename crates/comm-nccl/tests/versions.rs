//! Ranks with unlike libraries. The version is a setting of the process: this test has one of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;
use std::thread;

use comm_core::Error;
use comm_nccl::{Device, NcclCommunicator};
use comm_tcp::FileStore;
use gpu_emu::Setting;

use common::{config, control, devices, library};

#[test]
fn unlike_versions_are_named_on_every_rank() {
    let (devices, folder) = (devices(2), tempfile::tempdir().unwrap());
    let (old, new) = (22_809, 23_007);
    thread::scope(|scope| {
        let join = |rank: usize, version: u64| {
            control().set(Setting::NcclVersion, version);
            let library = library();
            control().set(Setting::NcclVersion, new);
            let (devices, folder) = (&devices, &folder);
            scope.spawn(move || {
                let store = FileStore::open(folder.path()).unwrap();
                let device = Device::open(devices[rank]).unwrap();
                NcclCommunicator::connect_in_store(&library, &device, Arc::new(store), config(rank, 2))
                    .unwrap_err()
            })
        };
        for rank in [join(0, new), join(1, old)] {
            let error = rank.join().unwrap();
            assert!(matches!(error, Error::BackendUnavailable { backend: "nccl", .. }), "{error}");
            assert!(error.to_string().contains("rank 0 has 2.30.7, rank 1 has 2.28.9"), "{error}");
        }
    });
}
