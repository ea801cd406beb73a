//! Ranks with different versions of the library.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Error, Fabric};
use comm_nccl::{Device, Library, NcclCommunicator};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{InProcessConfig, run};
use gpu_emu::Setting;

use crate::alone;
use crate::common::{SOON, config, control, devices, library};

#[test]
fn unlike_versions_are_named_on_every_rank() {
    let _alone = alone();
    let devices = devices(2);
    let libraries: Vec<Library> = [23_007, 22_809]
        .map(|version| {
            control().set(Setting::NcclVersion, version);
            library()
        })
        .into();
    control().set(Setting::NcclVersion, 23_007);
    let errors = run(2, &InProcessConfig::default(), |fabric| {
        let rank = fabric.group().rank();
        let device = Device::open(devices[rank]).unwrap();
        let host = RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap();
        NcclCommunicator::connect(&libraries[rank], &device, &host, config(rank, 2)).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::BackendUnavailable { backend: "nccl", .. }), "{error}");
        assert!(error.to_string().contains("rank 0 has 2.30.7, rank 1 has 2.28.9"), "{error}");
    }
}
