//! Calls of a real libnccl without a GPU, up to the creation of a communicator. See [`libraries`].

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod libraries;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::ptr;

use nccl_sys::{
    NCCL_CONFIG_INITIALIZER, Nccl, Search, Version, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclScalarResidence_t, ncclUniqueId,
};

/// Runs the test of this name with every library.
#[track_caller]
fn with_each_library(test: &str, check: impl Fn(&Nccl)) {
    libraries::for_each(test, || check(&Nccl::load(&Search::from_env()).unwrap()));
}

/// Returns NCCL's last error.
fn last_error(nccl: &Nccl) -> String {
    nccl.last_error().unwrap_or_default()
}

#[test]
fn version_and_path_are_those_of_the_file() {
    with_each_library("version_and_path_are_those_of_the_file", |nccl| {
        let asked = PathBuf::from(env::var_os(Search::VARIABLE).unwrap()).canonicalize().unwrap();
        assert_eq!(nccl.path(), asked);
        assert!(nccl.version() >= Version::FLOOR);
        // Downloaded libraries are in folders of their versions.
        let folder = asked.parent().unwrap().file_name().map(OsString::from).unwrap_or_default();
        if asked.starts_with(libraries::fetched()) {
            assert_eq!(folder, OsString::from(nccl.version().to_string()));
        }
    });
}

#[test]
fn a_library_has_the_calls_of_its_version_and_no_others() {
    with_each_library("a_library_has_the_calls_of_its_version_and_no_others", |nccl| {
        for call in nccl.calls() {
            assert_eq!(call.present, call.since <= nccl.version(), "{call:?} in {}", nccl.version());
            assert_eq!(nccl.require(call.name).is_ok(), call.present);
        }
    });
}

#[test]
fn every_result_has_a_description() {
    with_each_library("every_result_has_a_description", |nccl| {
        assert_eq!(nccl.error_string(ncclResult_t::ncclSuccess), "no error");
        assert!(nccl.error_string(ncclResult_t::ncclInvalidArgument).starts_with("invalid argument"));
        assert_eq!(nccl.error_string(ncclResult_t(99)), "unknown result code");
        let timeout = if nccl.version() < Version::new(2, 30, 3) { "unknown result code" } else { "timeout" };
        assert_eq!(nccl.error_string(ncclResult_t::ncclTimeout), timeout);
    });
}

#[test]
fn unique_ids_are_created_without_a_gpu() {
    with_each_library("unique_ids_are_created_without_a_gpu", |nccl| {
        let [one, other] = [unique_id(nccl), unique_id(nccl)];
        assert_ne!(one.internal, [0; 128]);
        assert_ne!(one.internal, other.internal);
    });
}

fn unique_id(nccl: &Nccl) -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the call writes an id.
    let result = unsafe { nccl.ncclGetUniqueId(&raw mut id) };
    assert_eq!(result, Ok(ncclResult_t::ncclSuccess), "{}", last_error(nccl));
    id
}

#[test]
fn calls_reject_the_null_communicator() {
    with_each_library("calls_reject_the_null_communicator", |nccl| {
        let mut count = 0;
        // SAFETY: these calls check the communicator before anything else.
        let counted = unsafe { nccl.ncclCommCount(ncclComm_t::NULL, &raw mut count) };
        assert_refused(nccl, counted.unwrap());
        let mut result = ncclResult_t::ncclSuccess;
        // SAFETY: as above.
        let asked = unsafe { nccl.ncclCommGetAsyncError(ncclComm_t::NULL, &raw mut result) };
        assert_refused(nccl, asked.unwrap());
        assert_refused(nccl, reduce_without_communicator(nccl));
        assert_refused(nccl, scale_without_communicator(nccl));
    });
}

#[track_caller]
fn assert_refused(nccl: &Nccl, result: ncclResult_t) {
    assert_eq!(result, ncclResult_t::ncclInvalidArgument);
    assert!(last_error(nccl).contains("NULL"), "{}", last_error(nccl));
}

fn reduce_without_communicator(nccl: &Nccl) -> ncclResult_t {
    let (op, kind) = (ncclRedOp_t::ncclSum, ncclDataType_t::ncclFloat32);
    let nothing = ptr::null_mut();
    // SAFETY: there are no elements, and the communicator is null.
    unsafe { nccl.ncclAllReduce(nothing, nothing, 0, kind, op, ncclComm_t::NULL, ptr::null_mut()) }.unwrap()
}

fn scale_without_communicator(nccl: &Nccl) -> ncclResult_t {
    let (mut op, mut factor) = (ncclRedOp_t::ncclSum, 2.0_f32);
    let (kind, place) = (ncclDataType_t::ncclFloat32, ncclScalarResidence_t::ncclScalarHostImmediate);
    let factor = (&raw mut factor).cast();
    // SAFETY: the factor has the given type and address.
    unsafe { nccl.ncclRedOpCreatePreMulSum(&raw mut op, factor, kind, place, ncclComm_t::NULL) }.unwrap()
}

#[test]
fn closing_the_null_communicator_has_no_effect() {
    with_each_library("closing_the_null_communicator_has_no_effect", |nccl| {
        // SAFETY: the communicator is null.
        assert_eq!(unsafe { nccl.ncclCommDestroy(ncclComm_t::NULL) }, Ok(ncclResult_t::ncclSuccess));
        // SAFETY: as above.
        assert_eq!(unsafe { nccl.ncclCommAbort(ncclComm_t::NULL) }, Ok(ncclResult_t::ncclSuccess));
    });
}

#[test]
fn the_end_of_a_group_without_start_is_an_error() {
    with_each_library("the_end_of_a_group_without_start_is_an_error", |nccl| {
        // SAFETY: there is no group, which NCCL reports.
        assert_eq!(unsafe { nccl.ncclGroupEnd() }, Ok(ncclResult_t::ncclInvalidUsage));
        assert!(last_error(nccl).contains("not in a group call"), "{}", last_error(nccl));
        // SAFETY: an empty group is valid.
        assert_eq!(unsafe { nccl.ncclGroupStart() }, Ok(ncclResult_t::ncclSuccess));
        // SAFETY: as above.
        assert_eq!(unsafe { nccl.ncclGroupEnd() }, Ok(ncclResult_t::ncclSuccess));
    });
}

#[test]
fn creating_a_communicator_without_a_gpu_fails_with_an_error_of_cuda() {
    with_each_library("creating_a_communicator_without_a_gpu_fails_with_an_error_of_cuda", |nccl| {
        let id = unique_id(nccl);
        let mut comm = ncclComm_t::NULL;
        // SAFETY: the id is valid, and the handle is written to a local value.
        let made = unsafe { nccl.ncclCommInitRank(&raw mut comm, 1, id, 0) };
        assert_no_gpu(nccl, made.unwrap(), comm);
        let mut config = NCCL_CONFIG_INITIALIZER;
        // SAFETY: as above, with a default configuration.
        let made = unsafe { nccl.ncclCommInitRankConfig(&raw mut comm, 1, id, 0, &raw mut config) };
        assert_no_gpu(nccl, made.unwrap(), comm);
    });
}

#[track_caller]
fn assert_no_gpu(nccl: &Nccl, result: ncclResult_t, comm: ncclComm_t) {
    assert_eq!(result, ncclResult_t::ncclUnhandledCudaError, "{}", last_error(nccl));
    assert!(comm.is_null());
    assert!(last_error(nccl).contains("Cuda failure"), "{}", last_error(nccl));
}
