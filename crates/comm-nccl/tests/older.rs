//! A library that lacks functions, like an older one. The whole process uses it, so that this test
//! runs in a separate one.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::Error;
use comm_nccl::{Device, DeviceBuffer, Library, Search};
use gpu_emu::Control;

#[test]
fn memory_that_an_older_library_cannot_allocate_is_an_error_that_names_the_version() {
    let control = Control::load_without(&["ncclMemAlloc", "ncclMemFree"]).unwrap();
    let library = Library::load(&Search::new().at(control.path())).unwrap();
    let stream = Device::open(0).unwrap().new_stream().unwrap();
    let error = DeviceBuffer::<f32>::by_nccl(&library, &stream, 4).unwrap_err();
    assert!(matches!(error, Error::BackendUnavailable { backend: "nccl", .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("has no ncclMemAlloc, which came with 2.19.0"), "{words}");
    assert_eq!(DeviceBuffer::<f32>::zeros(&stream, 4).unwrap().to_vec().unwrap(), [0.0; 4]);
}
