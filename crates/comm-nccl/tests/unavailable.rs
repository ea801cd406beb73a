//! A process that finds neither CUDA nor NCCL, because the emulator is not loaded.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Error, Result};
use comm_nccl::{Device, Library, Search};

#[track_caller]
fn assert_unavailable<T>(outcome: Result<T>, backend: &str, words: &str) {
    let Err(error) = outcome else { panic!("{backend} is available") };
    assert!(
        matches!(&error, Error::BackendUnavailable { backend: known, .. } if *known == backend),
        "{error}"
    );
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_library_that_is_not_there_is_an_error_with_every_path() {
    let search = Search::new().at("/nowhere/libnccl.so.2");
    assert_unavailable(Library::load(&search), "nccl", "/nowhere/libnccl.so.2");
    let search = Search::new().with_variable(Some("/elsewhere/libnccl.so".into()));
    assert_unavailable(Library::load(&search), "nccl", "COMM_NCCL_PATH");
}

/// If a driver is installed, the test depends on the devices that it reports.
#[test]
fn a_machine_without_a_driver_has_no_devices_and_nothing_panics() {
    match Device::count() {
        Err(error) => {
            assert_unavailable::<usize>(Err(error), "cuda", "driver");
            assert_unavailable(Device::open(0), "cuda", "driver");
            assert_unavailable(Device::for_local_rank(3), "cuda", "driver");
        }
        Ok(0) => assert_unavailable(Device::open(0), "cuda", "no device"),
        Ok(count) => {
            assert!(matches!(Device::open(count), Err(Error::Invalid(_))));
            assert_eq!(Device::for_local_rank(count).unwrap().ordinal(), 0);
        }
    }
}
