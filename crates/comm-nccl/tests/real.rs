//! A real libnccl without a GPU, in processes that never load the emulator: it is loaded, and
//! creating a communicator returns a typed error.
#![allow(clippy::unwrap_used, clippy::panic)]

// The libraries and the settings of the tests of the bindings.
#[path = "../../../nccl-sys/tests/libraries/mod.rs"]
mod libraries;

use std::time::Duration;

use comm_core::{Error, Membership, Result};
use comm_nccl::{Device, Library, NcclCommunicator, NcclConfig, UniqueId, Version};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::InProcessFabric;

#[test]
fn a_real_library_is_loaded_from_the_path_in_the_environment() {
    libraries::for_each("a_real_library_is_loaded_from_the_path_in_the_environment", || {
        let library = Library::from_env().unwrap();
        assert!(library.version() >= Version::FLOOR);
        if library.path().starts_with(libraries::fetched()) {
            let folder = library.path().parent().unwrap().file_name().unwrap();
            assert_eq!(folder.to_str().unwrap(), library.version().to_string());
        }
        assert!(!mapped().contains("gpu_emu"), "the library must be a real one");
    });
}

/// The files of this process.
fn mapped() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

#[test]
fn a_real_library_makes_ids_that_differ() {
    libraries::for_each("a_real_library_makes_ids_that_differ", || {
        let library = Library::from_env().unwrap();
        let [one, other] = [(); 2].map(|()| UniqueId::generate(&library).unwrap());
        assert!(one != other && one.as_bytes() != &[0; 128]);
        assert_eq!(UniqueId::from_bytes(one.as_bytes()).unwrap(), one);
    });
}

/// The device that a rank would use; none is visible, with or without a driver.
fn no_device() -> Result<Device> {
    let device = Device::from_env();
    let error = device.as_ref().map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::BackendUnavailable { backend: "cuda", .. }), "{error}");
    device
}

#[test]
fn without_a_gpu_there_is_an_error_and_no_communicator() {
    libraries::for_each("without_a_gpu_there_is_an_error_and_no_communicator", || {
        let library = Library::from_env().unwrap();
        let id = UniqueId::generate(&library).unwrap();
        let mut config = NcclConfig::new(Membership { rank: 0, size: 1 }).unwrap();
        config.timeout = Duration::from_secs(60);
        let host = InProcessFabric::create(1).remove(0);
        let host = RingCommunicator::new(host, RingConfig::default(), config.timeout).unwrap();
        let given =
            no_device().and_then(|device| NcclCommunicator::with_id(&library, &device, &id, config.clone()));
        let connected =
            no_device().and_then(|device| NcclCommunicator::connect(&library, &device, &host, config));
        for outcome in [given, connected] {
            assert!(matches!(outcome, Err(Error::BackendUnavailable { .. })));
        }
    });
}
