// Written by `cargo xtask nccl-bindings` from nccl.h of NCCL 2.32.3.
//
// Names, values and layouts are NCCL's, whose header is Copyright (c) NVIDIA CORPORATION &
// AFFILIATES, Apache-2.0 (https://github.com/NVIDIA/nccl/blob/master/LICENSE.txt).

pub const NCCL_MAJOR: i32 = 2;
pub const NCCL_MINOR: i32 = 32;
pub const NCCL_PATCH: i32 = 3;
pub const NCCL_VERSION_CODE: i32 = 23203;
pub const NCCL_UNIQUE_ID_BYTES: i32 = 128;
pub const NCCL_CONFIG_UNDEF_INT: i32 = -2147483648;
pub const NCCL_SPLIT_NOCOLOR: i32 = -1;
pub const NCCL_UNDEF_FLOAT: f64 = -1.0;
pub const NCCL_API_MAGIC: i64 = 3405692655;
pub const NCCL_WIN_DEFAULT: i32 = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: i32 = 1;
pub const NCCL_WIN_STRICT_ORDERING: i32 = 2;
pub const NCCL_WIN_GIN_ONLY: i32 = 4;
pub const NCCL_WIN_CFT_COUNTED: i32 = 8;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: i32 = 4096;
pub const NCCL_CTA_POLICY_DEFAULT: i32 = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: i32 = 1;
pub const NCCL_CTA_POLICY_ZERO: i32 = 2;
pub const NCCL_SHRINK_DEFAULT: i32 = 0;
pub const NCCL_SHRINK_ABORT: i32 = 1;
pub const NCCL_REVOKE_DEFAULT: i32 = 0;
pub const NCCL_SUSPEND_MEM: i32 = 1;
#[repr(C)]
#[derive(Debug)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)]
#[derive(Debug)]
pub struct CUevent_st {
    _unused: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _unused: [u8; 0],
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone)]
pub struct ncclComm_t(pub *mut ncclComm);
#[repr(C)]
#[derive(Debug)]
pub struct ncclWindow_vidmem {
    _unused: [u8; 0],
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone)]
pub struct ncclWindow_t(pub *mut ncclWindow_vidmem);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclUniqueId {
    pub internal: [::core::ffi::c_char; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclUniqueId"][::core::mem::size_of::<ncclUniqueId>() - 128usize];
    ["Alignment of ncclUniqueId"][::core::mem::align_of::<ncclUniqueId>() - 1usize];
    ["Offset of field: ncclUniqueId::internal"][::core::mem::offset_of!(ncclUniqueId, internal) - 0usize];
};
impl ncclResult_t {
    pub const ncclSuccess: ncclResult_t = ncclResult_t(0);
    pub const ncclUnhandledCudaError: ncclResult_t = ncclResult_t(1);
    pub const ncclSystemError: ncclResult_t = ncclResult_t(2);
    pub const ncclInternalError: ncclResult_t = ncclResult_t(3);
    pub const ncclInvalidArgument: ncclResult_t = ncclResult_t(4);
    pub const ncclInvalidUsage: ncclResult_t = ncclResult_t(5);
    pub const ncclRemoteError: ncclResult_t = ncclResult_t(6);
    pub const ncclInProgress: ncclResult_t = ncclResult_t(7);
    pub const ncclTimeout: ncclResult_t = ncclResult_t(8);
    pub const ncclNumResults: ncclResult_t = ncclResult_t(9);
}
#[repr(transparent)]
#[must_use]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclResult_t(pub ::core::ffi::c_uint);
impl ncclHostCftMode_t {
    pub const ncclHostCftDefault: ncclHostCftMode_t = ncclHostCftMode_t(-2147483648);
    pub const ncclHostCftEnable: ncclHostCftMode_t = ncclHostCftMode_t(1);
    pub const ncclHostCftDisable: ncclHostCftMode_t = ncclHostCftMode_t(2);
    pub const ncclHostCftFallback: ncclHostCftMode_t = ncclHostCftMode_t(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclHostCftMode_t(pub ::core::ffi::c_int);
impl ncclNvlsHostMode_t {
    pub const ncclNvlsHostModeDefault: ncclNvlsHostMode_t = ncclNvlsHostMode_t(-2147483648);
    pub const ncclNvlsHostModeEnable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(0);
    pub const ncclNvlsHostModeDisableTransport: ncclNvlsHostMode_t = ncclNvlsHostMode_t(1);
    pub const ncclNvlsHostModeDisableSymmetricMultimem: ncclNvlsHostMode_t = ncclNvlsHostMode_t(2);
    pub const ncclNvlsHostModeDisable: ncclNvlsHostMode_t = ncclNvlsHostMode_t(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclNvlsHostMode_t(pub ::core::ffi::c_int);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclConfig_v23100 {
    pub size: usize,
    pub magic: ::core::ffi::c_uint,
    pub version: ::core::ffi::c_uint,
    pub blocking: ::core::ffi::c_int,
    pub cgaClusterSize: ::core::ffi::c_int,
    pub minCTAs: ::core::ffi::c_int,
    pub maxCTAs: ::core::ffi::c_int,
    pub netName: *const ::core::ffi::c_char,
    pub splitShare: ::core::ffi::c_int,
    pub trafficClass: ::core::ffi::c_int,
    pub commName: *const ::core::ffi::c_char,
    pub collnetEnable: ::core::ffi::c_int,
    pub CTAPolicy: ::core::ffi::c_int,
    pub shrinkShare: ::core::ffi::c_int,
    pub nvlsCTAs: ::core::ffi::c_int,
    pub nChannelsPerNetPeer: ::core::ffi::c_int,
    pub nvlinkCentricSched: ::core::ffi::c_int,
    pub graphUsageMode: ::core::ffi::c_int,
    pub numRmaCtx: ::core::ffi::c_int,
    pub maxP2pPeers: ::core::ffi::c_int,
    pub graphStreamOrdering: ::core::ffi::c_int,
    pub launchOrderImplicit: ::core::ffi::c_int,
    pub numRmaSig: ::core::ffi::c_int,
    pub rmaEagerInit: ::core::ffi::c_int,
    pub hostCftMode: ::core::ffi::c_int,
    pub nvlsHostMode: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfig_v23100"][::core::mem::size_of::<ncclConfig_v23100>() - 120usize];
    ["Alignment of ncclConfig_v23100"][::core::mem::align_of::<ncclConfig_v23100>() - 8usize];
    ["Offset of field: ncclConfig_v23100::size"][::core::mem::offset_of!(ncclConfig_v23100, size) - 0usize];
    ["Offset of field: ncclConfig_v23100::magic"][::core::mem::offset_of!(ncclConfig_v23100, magic) - 8usize];
    ["Offset of field: ncclConfig_v23100::version"]
        [::core::mem::offset_of!(ncclConfig_v23100, version) - 12usize];
    ["Offset of field: ncclConfig_v23100::blocking"]
        [::core::mem::offset_of!(ncclConfig_v23100, blocking) - 16usize];
    ["Offset of field: ncclConfig_v23100::cgaClusterSize"]
        [::core::mem::offset_of!(ncclConfig_v23100, cgaClusterSize) - 20usize];
    ["Offset of field: ncclConfig_v23100::minCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, minCTAs) - 24usize];
    ["Offset of field: ncclConfig_v23100::maxCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, maxCTAs) - 28usize];
    ["Offset of field: ncclConfig_v23100::netName"]
        [::core::mem::offset_of!(ncclConfig_v23100, netName) - 32usize];
    ["Offset of field: ncclConfig_v23100::splitShare"]
        [::core::mem::offset_of!(ncclConfig_v23100, splitShare) - 40usize];
    ["Offset of field: ncclConfig_v23100::trafficClass"]
        [::core::mem::offset_of!(ncclConfig_v23100, trafficClass) - 44usize];
    ["Offset of field: ncclConfig_v23100::commName"]
        [::core::mem::offset_of!(ncclConfig_v23100, commName) - 48usize];
    ["Offset of field: ncclConfig_v23100::collnetEnable"]
        [::core::mem::offset_of!(ncclConfig_v23100, collnetEnable) - 56usize];
    ["Offset of field: ncclConfig_v23100::CTAPolicy"]
        [::core::mem::offset_of!(ncclConfig_v23100, CTAPolicy) - 60usize];
    ["Offset of field: ncclConfig_v23100::shrinkShare"]
        [::core::mem::offset_of!(ncclConfig_v23100, shrinkShare) - 64usize];
    ["Offset of field: ncclConfig_v23100::nvlsCTAs"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlsCTAs) - 68usize];
    ["Offset of field: ncclConfig_v23100::nChannelsPerNetPeer"]
        [::core::mem::offset_of!(ncclConfig_v23100, nChannelsPerNetPeer) - 72usize];
    ["Offset of field: ncclConfig_v23100::nvlinkCentricSched"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlinkCentricSched) - 76usize];
    ["Offset of field: ncclConfig_v23100::graphUsageMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, graphUsageMode) - 80usize];
    ["Offset of field: ncclConfig_v23100::numRmaCtx"]
        [::core::mem::offset_of!(ncclConfig_v23100, numRmaCtx) - 84usize];
    ["Offset of field: ncclConfig_v23100::maxP2pPeers"]
        [::core::mem::offset_of!(ncclConfig_v23100, maxP2pPeers) - 88usize];
    ["Offset of field: ncclConfig_v23100::graphStreamOrdering"]
        [::core::mem::offset_of!(ncclConfig_v23100, graphStreamOrdering) - 92usize];
    ["Offset of field: ncclConfig_v23100::launchOrderImplicit"]
        [::core::mem::offset_of!(ncclConfig_v23100, launchOrderImplicit) - 96usize];
    ["Offset of field: ncclConfig_v23100::numRmaSig"]
        [::core::mem::offset_of!(ncclConfig_v23100, numRmaSig) - 100usize];
    ["Offset of field: ncclConfig_v23100::rmaEagerInit"]
        [::core::mem::offset_of!(ncclConfig_v23100, rmaEagerInit) - 104usize];
    ["Offset of field: ncclConfig_v23100::hostCftMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, hostCftMode) - 108usize];
    ["Offset of field: ncclConfig_v23100::nvlsHostMode"]
        [::core::mem::offset_of!(ncclConfig_v23100, nvlsHostMode) - 112usize];
};
pub type ncclConfig_t = ncclConfig_v23100;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ncclConfigExt {
    pub next: *mut ncclConfigExt,
    pub key: ncclConfigExt__bindgen_ty_1,
    pub val: ncclConfigExt__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclConfigExt__bindgen_ty_1 {
    pub vendorId: ::core::ffi::c_int,
    pub optionId: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt__bindgen_ty_1"][::core::mem::size_of::<ncclConfigExt__bindgen_ty_1>() - 8usize];
    ["Alignment of ncclConfigExt__bindgen_ty_1"]
        [::core::mem::align_of::<ncclConfigExt__bindgen_ty_1>() - 4usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_1::vendorId"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, vendorId) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_1::optionId"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_1, optionId) - 4usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union ncclConfigExt__bindgen_ty_2 {
    pub i: ::core::ffi::c_int,
    pub s: *const ::core::ffi::c_char,
    pub raw: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt__bindgen_ty_2"][::core::mem::size_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    ["Alignment of ncclConfigExt__bindgen_ty_2"]
        [::core::mem::align_of::<ncclConfigExt__bindgen_ty_2>() - 8usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::i"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, i) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::s"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, s) - 0usize];
    ["Offset of field: ncclConfigExt__bindgen_ty_2::raw"]
        [::core::mem::offset_of!(ncclConfigExt__bindgen_ty_2, raw) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclConfigExt"][::core::mem::size_of::<ncclConfigExt>() - 24usize];
    ["Alignment of ncclConfigExt"][::core::mem::align_of::<ncclConfigExt>() - 8usize];
    ["Offset of field: ncclConfigExt::next"][::core::mem::offset_of!(ncclConfigExt, next) - 0usize];
    ["Offset of field: ncclConfigExt::key"][::core::mem::offset_of!(ncclConfigExt, key) - 8usize];
    ["Offset of field: ncclConfigExt::val"][::core::mem::offset_of!(ncclConfigExt, val) - 16usize];
};
pub type ncclConfigExt_t = ncclConfigExt;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclCollConfig_v23200 {
    pub size: usize,
    pub magic: ::core::ffi::c_uint,
    pub version: ::core::ffi::c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: ::core::ffi::c_int,
    pub maxCTAs: ::core::ffi::c_int,
    pub nvlsCTAs: ::core::ffi::c_int,
    pub cgaClusterSize: ::core::ffi::c_int,
    pub algSelection: *const ::core::ffi::c_char,
    pub forceAlgSelection: ::core::ffi::c_int,
    pub CTAPolicy: ::core::ffi::c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: cudaEvent_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclCollConfig_v23200"][::core::mem::size_of::<ncclCollConfig_v23200>() - 72usize];
    ["Alignment of ncclCollConfig_v23200"][::core::mem::align_of::<ncclCollConfig_v23200>() - 8usize];
    ["Offset of field: ncclCollConfig_v23200::size"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, size) - 0usize];
    ["Offset of field: ncclCollConfig_v23200::magic"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, magic) - 8usize];
    ["Offset of field: ncclCollConfig_v23200::version"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, version) - 12usize];
    ["Offset of field: ncclCollConfig_v23200::ext"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, ext) - 16usize];
    ["Offset of field: ncclCollConfig_v23200::minCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, minCTAs) - 24usize];
    ["Offset of field: ncclCollConfig_v23200::maxCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, maxCTAs) - 28usize];
    ["Offset of field: ncclCollConfig_v23200::nvlsCTAs"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, nvlsCTAs) - 32usize];
    ["Offset of field: ncclCollConfig_v23200::cgaClusterSize"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, cgaClusterSize) - 36usize];
    ["Offset of field: ncclCollConfig_v23200::algSelection"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, algSelection) - 40usize];
    ["Offset of field: ncclCollConfig_v23200::forceAlgSelection"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, forceAlgSelection) - 48usize];
    ["Offset of field: ncclCollConfig_v23200::CTAPolicy"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, CTAPolicy) - 52usize];
    ["Offset of field: ncclCollConfig_v23200::userProfilerTag"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, userProfilerTag) - 56usize];
    ["Offset of field: ncclCollConfig_v23200::launchCompletionEvent"]
        [::core::mem::offset_of!(ncclCollConfig_v23200, launchCompletionEvent) - 64usize];
};
pub type ncclCollConfig_t = ncclCollConfig_v23200;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclSimInfo_v22200 {
    pub size: usize,
    pub magic: ::core::ffi::c_uint,
    pub version: ::core::ffi::c_uint,
    pub estimatedTime: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclSimInfo_v22200"][::core::mem::size_of::<ncclSimInfo_v22200>() - 24usize];
    ["Alignment of ncclSimInfo_v22200"][::core::mem::align_of::<ncclSimInfo_v22200>() - 8usize];
    ["Offset of field: ncclSimInfo_v22200::size"][::core::mem::offset_of!(ncclSimInfo_v22200, size) - 0usize];
    ["Offset of field: ncclSimInfo_v22200::magic"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, magic) - 8usize];
    ["Offset of field: ncclSimInfo_v22200::version"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, version) - 12usize];
    ["Offset of field: ncclSimInfo_v22200::estimatedTime"]
        [::core::mem::offset_of!(ncclSimInfo_v22200, estimatedTime) - 16usize];
};
pub type ncclSimInfo_t = ncclSimInfo_v22200;
impl ncclCommMemStat_t {
    pub const ncclStatGpuMemSuspend: ncclCommMemStat_t = ncclCommMemStat_t(0);
    pub const ncclStatGpuMemSuspended: ncclCommMemStat_t = ncclCommMemStat_t(1);
    pub const ncclStatGpuMemPersist: ncclCommMemStat_t = ncclCommMemStat_t(2);
    pub const ncclStatGpuMemTotal: ncclCommMemStat_t = ncclCommMemStat_t(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclCommMemStat_t(pub ::core::ffi::c_uint);
impl ncclRedOp_dummy_t {
    pub const ncclNumOps_dummy: ncclRedOp_dummy_t = ncclRedOp_dummy_t(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_dummy_t(pub ::core::ffi::c_uint);
impl ncclRedOp_t {
    pub const ncclSum: ncclRedOp_t = ncclRedOp_t(0);
    pub const ncclProd: ncclRedOp_t = ncclRedOp_t(1);
    pub const ncclMax: ncclRedOp_t = ncclRedOp_t(2);
    pub const ncclMin: ncclRedOp_t = ncclRedOp_t(3);
    pub const ncclAvg: ncclRedOp_t = ncclRedOp_t(4);
    pub const ncclNumOps: ncclRedOp_t = ncclRedOp_t(5);
    pub const ncclMaxRedOp: ncclRedOp_t = ncclRedOp_t(2147483647);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclRedOp_t(pub ::core::ffi::c_uint);
impl ncclDataType_t {
    pub const ncclInt8: ncclDataType_t = ncclDataType_t(0);
    pub const ncclChar: ncclDataType_t = ncclDataType_t(0);
    pub const ncclUint8: ncclDataType_t = ncclDataType_t(1);
    pub const ncclInt32: ncclDataType_t = ncclDataType_t(2);
    pub const ncclInt: ncclDataType_t = ncclDataType_t(2);
    pub const ncclUint32: ncclDataType_t = ncclDataType_t(3);
    pub const ncclInt64: ncclDataType_t = ncclDataType_t(4);
    pub const ncclUint64: ncclDataType_t = ncclDataType_t(5);
    pub const ncclFloat16: ncclDataType_t = ncclDataType_t(6);
    pub const ncclHalf: ncclDataType_t = ncclDataType_t(6);
    pub const ncclFloat32: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat: ncclDataType_t = ncclDataType_t(7);
    pub const ncclFloat64: ncclDataType_t = ncclDataType_t(8);
    pub const ncclDouble: ncclDataType_t = ncclDataType_t(8);
    pub const ncclBfloat16: ncclDataType_t = ncclDataType_t(9);
    pub const ncclFloat8e4m3: ncclDataType_t = ncclDataType_t(10);
    pub const ncclFloat8e5m2: ncclDataType_t = ncclDataType_t(11);
    pub const ncclNumTypes: ncclDataType_t = ncclDataType_t(12);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclDataType_t(pub ::core::ffi::c_uint);
impl ncclScalarResidence_t {
    pub const ncclScalarDevice: ncclScalarResidence_t = ncclScalarResidence_t(0);
    pub const ncclScalarHostImmediate: ncclScalarResidence_t = ncclScalarResidence_t(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclScalarResidence_t(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclWaitSignalDesc_t {
    pub opCnt: ::core::ffi::c_int,
    pub peer: ::core::ffi::c_int,
    pub sigIdx: ::core::ffi::c_int,
    pub ctx: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclWaitSignalDesc_t"][::core::mem::size_of::<ncclWaitSignalDesc_t>() - 16usize];
    ["Alignment of ncclWaitSignalDesc_t"][::core::mem::align_of::<ncclWaitSignalDesc_t>() - 4usize];
    ["Offset of field: ncclWaitSignalDesc_t::opCnt"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, opCnt) - 0usize];
    ["Offset of field: ncclWaitSignalDesc_t::peer"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, peer) - 4usize];
    ["Offset of field: ncclWaitSignalDesc_t::sigIdx"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, sigIdx) - 8usize];
    ["Offset of field: ncclWaitSignalDesc_t::ctx"]
        [::core::mem::offset_of!(ncclWaitSignalDesc_t, ctx) - 12usize];
};
impl ncclEncryptionMode_t {
    pub const NCCL_ENCRYPTION_MODE_NONE: ncclEncryptionMode_t = ncclEncryptionMode_t(0);
    pub const NCCL_ENCRYPTION_MODE_PSK: ncclEncryptionMode_t = ncclEncryptionMode_t(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct ncclEncryptionMode_t(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclEncryptionConfig_v23200 {
    pub size: usize,
    pub magic: ::core::ffi::c_uint,
    pub version: ::core::ffi::c_uint,
    pub mode: ::core::ffi::c_int,
    pub psk: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of ncclEncryptionConfig_v23200"][::core::mem::size_of::<ncclEncryptionConfig_v23200>() - 32usize];
    ["Alignment of ncclEncryptionConfig_v23200"]
        [::core::mem::align_of::<ncclEncryptionConfig_v23200>() - 8usize];
    ["Offset of field: ncclEncryptionConfig_v23200::size"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, size) - 0usize];
    ["Offset of field: ncclEncryptionConfig_v23200::magic"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, magic) - 8usize];
    ["Offset of field: ncclEncryptionConfig_v23200::version"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, version) - 12usize];
    ["Offset of field: ncclEncryptionConfig_v23200::mode"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, mode) - 16usize];
    ["Offset of field: ncclEncryptionConfig_v23200::psk"]
        [::core::mem::offset_of!(ncclEncryptionConfig_v23200, psk) - 24usize];
};
pub type ncclEncryptionConfig_t = ncclEncryptionConfig_v23200;
/// The addresses of the calls in a loaded library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbols {
    pub(crate) ncclMemAlloc:
        Option<unsafe extern "C" fn(ptr: *mut *mut ::core::ffi::c_void, size: usize) -> ncclResult_t>,
    pub(crate) ncclMemFree: Option<unsafe extern "C" fn(ptr: *mut ::core::ffi::c_void) -> ncclResult_t>,
    pub(crate) ncclGetVersion: Option<unsafe extern "C" fn(version: *mut ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclGetUniqueId: Option<unsafe extern "C" fn(uniqueId: *mut ncclUniqueId) -> ncclResult_t>,
    pub(crate) ncclCommInitRankConfig: Option<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            commId: ncclUniqueId,
            rank: ::core::ffi::c_int,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommInitRank: Option<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            commId: ncclUniqueId,
            rank: ::core::ffi::c_int,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommInitAll: Option<
        unsafe extern "C" fn(
            comm: *mut ncclComm_t,
            ndev: ::core::ffi::c_int,
            devlist: *const ::core::ffi::c_int,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommFinalize: Option<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t>,
    pub(crate) ncclCommDestroy: Option<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t>,
    pub(crate) ncclCommAbort: Option<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t>,
    pub(crate) ncclCommRevoke:
        Option<unsafe extern "C" fn(comm: ncclComm_t, revokeFlags: ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclCommSplit: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            color: ::core::ffi::c_int,
            key: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommShrink: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            excludeRanksList: *mut ::core::ffi::c_int,
            excludeRanksCount: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
            shrinkFlags: ::core::ffi::c_int,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommGetUniqueId:
        Option<unsafe extern "C" fn(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t>,
    pub(crate) ncclCommGrow: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            nRanks: ::core::ffi::c_int,
            uniqueId: *const ncclUniqueId,
            rank: ::core::ffi::c_int,
            newcomm: *mut ncclComm_t,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommInitRankScalable: Option<
        unsafe extern "C" fn(
            newcomm: *mut ncclComm_t,
            nranks: ::core::ffi::c_int,
            myrank: ::core::ffi::c_int,
            nId: ::core::ffi::c_int,
            commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclGetErrorString:
        Option<unsafe extern "C" fn(result: ncclResult_t) -> *const ::core::ffi::c_char>,
    pub(crate) ncclGetLastError: Option<unsafe extern "C" fn(comm: ncclComm_t) -> *const ::core::ffi::c_char>,
    pub(crate) ncclCommGetAsyncError:
        Option<unsafe extern "C" fn(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t>,
    pub(crate) ncclCommCount:
        Option<unsafe extern "C" fn(comm: ncclComm_t, count: *mut ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclCommCuDevice:
        Option<unsafe extern "C" fn(comm: ncclComm_t, device: *mut ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclCommUserRank:
        Option<unsafe extern "C" fn(comm: ncclComm_t, rank: *mut ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclCommRegister: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::core::ffi::c_void,
            size: usize,
            handle: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommDeregister:
        Option<unsafe extern "C" fn(comm: ncclComm_t, handle: *mut ::core::ffi::c_void) -> ncclResult_t>,
    pub(crate) ncclCommSuspend:
        Option<unsafe extern "C" fn(comm: ncclComm_t, flags: ::core::ffi::c_int) -> ncclResult_t>,
    pub(crate) ncclCommResume: Option<unsafe extern "C" fn(comm: ncclComm_t) -> ncclResult_t>,
    pub(crate) ncclCommMemStats: Option<
        unsafe extern "C" fn(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t,
    >,
    pub(crate) ncclCommWindowRegister: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            buff: *mut ::core::ffi::c_void,
            size: usize,
            win: *mut ncclWindow_t,
            winFlags: ::core::ffi::c_int,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclCommWindowDeregister:
        Option<unsafe extern "C" fn(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t>,
    pub(crate) ncclWinGetUserPtr: Option<
        unsafe extern "C" fn(
            comm: ncclComm_t,
            win: ncclWindow_t,
            outUserPtr: *mut *mut ::core::ffi::c_void,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclRedOpCreatePreMulSum: Option<
        unsafe extern "C" fn(
            op: *mut ncclRedOp_t,
            scalar: *mut ::core::ffi::c_void,
            datatype: ncclDataType_t,
            residence: ncclScalarResidence_t,
            comm: ncclComm_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclRedOpDestroy:
        Option<unsafe extern "C" fn(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t>,
    pub(crate) ncclReduce: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclBcast: Option<
        unsafe extern "C" fn(
            buff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclBroadcast: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAllReduce: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclReduceScatter: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAllGather: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAlltoAll: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclGather: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclScatter: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAllReduceConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclBroadcastConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclReduceConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAllGatherConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            sendcount: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclReduceScatterConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            recvcount: usize,
            datatype: ncclDataType_t,
            op: ncclRedOp_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclAlltoAllConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclGatherConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclScatterConfig: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            root: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
            config: *const ncclCollConfig_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclSend: Option<
        unsafe extern "C" fn(
            sendbuff: *const ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclRecv: Option<
        unsafe extern "C" fn(
            recvbuff: *mut ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::core::ffi::c_int,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclPutSignal: Option<
        unsafe extern "C" fn(
            localbuff: *const ::core::ffi::c_void,
            count: usize,
            datatype: ncclDataType_t,
            peer: ::core::ffi::c_int,
            peerWin: ncclWindow_t,
            peerWinOffset: usize,
            sigIdx: ::core::ffi::c_int,
            ctx: ::core::ffi::c_int,
            flags: ::core::ffi::c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclSignal: Option<
        unsafe extern "C" fn(
            peer: ::core::ffi::c_int,
            sigIdx: ::core::ffi::c_int,
            ctx: ::core::ffi::c_int,
            flags: ::core::ffi::c_uint,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclWaitSignal: Option<
        unsafe extern "C" fn(
            nDesc: ::core::ffi::c_int,
            signalDescs: *mut ncclWaitSignalDesc_t,
            comm: ncclComm_t,
            stream: cudaStream_t,
        ) -> ncclResult_t,
    >,
    pub(crate) ncclGroupStart: Option<unsafe extern "C" fn() -> ncclResult_t>,
    pub(crate) ncclGroupEnd: Option<unsafe extern "C" fn() -> ncclResult_t>,
    pub(crate) ncclGroupSimulateEnd:
        Option<unsafe extern "C" fn(simInfo: *mut ncclSimInfo_t) -> ncclResult_t>,
    pub(crate) ncclSetEncryption:
        Option<unsafe extern "C" fn(config: *const ncclEncryptionConfig_t) -> ncclResult_t>,
}
impl Symbols {
    /// Looks up all calls.
    ///
    /// # Safety
    ///
    /// Symbols of `library` with these names have NCCL's signatures, and no call runs after
    /// the library is unloaded.
    pub(crate) unsafe fn of(library: &::libloading::Library) -> Self {
        Self {
            ncclMemAlloc: unsafe { crate::symbol::address(library, "ncclMemAlloc") },
            ncclMemFree: unsafe { crate::symbol::address(library, "ncclMemFree") },
            ncclGetVersion: unsafe { crate::symbol::address(library, "ncclGetVersion") },
            ncclGetUniqueId: unsafe { crate::symbol::address(library, "ncclGetUniqueId") },
            ncclCommInitRankConfig: unsafe { crate::symbol::address(library, "ncclCommInitRankConfig") },
            ncclCommInitRank: unsafe { crate::symbol::address(library, "ncclCommInitRank") },
            ncclCommInitAll: unsafe { crate::symbol::address(library, "ncclCommInitAll") },
            ncclCommFinalize: unsafe { crate::symbol::address(library, "ncclCommFinalize") },
            ncclCommDestroy: unsafe { crate::symbol::address(library, "ncclCommDestroy") },
            ncclCommAbort: unsafe { crate::symbol::address(library, "ncclCommAbort") },
            ncclCommRevoke: unsafe { crate::symbol::address(library, "ncclCommRevoke") },
            ncclCommSplit: unsafe { crate::symbol::address(library, "ncclCommSplit") },
            ncclCommShrink: unsafe { crate::symbol::address(library, "ncclCommShrink") },
            ncclCommGetUniqueId: unsafe { crate::symbol::address(library, "ncclCommGetUniqueId") },
            ncclCommGrow: unsafe { crate::symbol::address(library, "ncclCommGrow") },
            ncclCommInitRankScalable: unsafe { crate::symbol::address(library, "ncclCommInitRankScalable") },
            ncclGetErrorString: unsafe { crate::symbol::address(library, "ncclGetErrorString") },
            ncclGetLastError: unsafe { crate::symbol::address(library, "ncclGetLastError") },
            ncclCommGetAsyncError: unsafe { crate::symbol::address(library, "ncclCommGetAsyncError") },
            ncclCommCount: unsafe { crate::symbol::address(library, "ncclCommCount") },
            ncclCommCuDevice: unsafe { crate::symbol::address(library, "ncclCommCuDevice") },
            ncclCommUserRank: unsafe { crate::symbol::address(library, "ncclCommUserRank") },
            ncclCommRegister: unsafe { crate::symbol::address(library, "ncclCommRegister") },
            ncclCommDeregister: unsafe { crate::symbol::address(library, "ncclCommDeregister") },
            ncclCommSuspend: unsafe { crate::symbol::address(library, "ncclCommSuspend") },
            ncclCommResume: unsafe { crate::symbol::address(library, "ncclCommResume") },
            ncclCommMemStats: unsafe { crate::symbol::address(library, "ncclCommMemStats") },
            ncclCommWindowRegister: unsafe { crate::symbol::address(library, "ncclCommWindowRegister") },
            ncclCommWindowDeregister: unsafe { crate::symbol::address(library, "ncclCommWindowDeregister") },
            ncclWinGetUserPtr: unsafe { crate::symbol::address(library, "ncclWinGetUserPtr") },
            ncclRedOpCreatePreMulSum: unsafe { crate::symbol::address(library, "ncclRedOpCreatePreMulSum") },
            ncclRedOpDestroy: unsafe { crate::symbol::address(library, "ncclRedOpDestroy") },
            ncclReduce: unsafe { crate::symbol::address(library, "ncclReduce") },
            ncclBcast: unsafe { crate::symbol::address(library, "ncclBcast") },
            ncclBroadcast: unsafe { crate::symbol::address(library, "ncclBroadcast") },
            ncclAllReduce: unsafe { crate::symbol::address(library, "ncclAllReduce") },
            ncclReduceScatter: unsafe { crate::symbol::address(library, "ncclReduceScatter") },
            ncclAllGather: unsafe { crate::symbol::address(library, "ncclAllGather") },
            ncclAlltoAll: unsafe { crate::symbol::address(library, "ncclAlltoAll") },
            ncclGather: unsafe { crate::symbol::address(library, "ncclGather") },
            ncclScatter: unsafe { crate::symbol::address(library, "ncclScatter") },
            ncclAllReduceConfig: unsafe { crate::symbol::address(library, "ncclAllReduceConfig") },
            ncclBroadcastConfig: unsafe { crate::symbol::address(library, "ncclBroadcastConfig") },
            ncclReduceConfig: unsafe { crate::symbol::address(library, "ncclReduceConfig") },
            ncclAllGatherConfig: unsafe { crate::symbol::address(library, "ncclAllGatherConfig") },
            ncclReduceScatterConfig: unsafe { crate::symbol::address(library, "ncclReduceScatterConfig") },
            ncclAlltoAllConfig: unsafe { crate::symbol::address(library, "ncclAlltoAllConfig") },
            ncclGatherConfig: unsafe { crate::symbol::address(library, "ncclGatherConfig") },
            ncclScatterConfig: unsafe { crate::symbol::address(library, "ncclScatterConfig") },
            ncclSend: unsafe { crate::symbol::address(library, "ncclSend") },
            ncclRecv: unsafe { crate::symbol::address(library, "ncclRecv") },
            ncclPutSignal: unsafe { crate::symbol::address(library, "ncclPutSignal") },
            ncclSignal: unsafe { crate::symbol::address(library, "ncclSignal") },
            ncclWaitSignal: unsafe { crate::symbol::address(library, "ncclWaitSignal") },
            ncclGroupStart: unsafe { crate::symbol::address(library, "ncclGroupStart") },
            ncclGroupEnd: unsafe { crate::symbol::address(library, "ncclGroupEnd") },
            ncclGroupSimulateEnd: unsafe { crate::symbol::address(library, "ncclGroupSimulateEnd") },
            ncclSetEncryption: unsafe { crate::symbol::address(library, "ncclSetEncryption") },
        }
    }
    /// Every call of these bindings, and whether the library has it.
    pub(crate) fn present(&self) -> [(&'static str, bool); 58usize] {
        [
            ("ncclMemAlloc", self.ncclMemAlloc.is_some()),
            ("ncclMemFree", self.ncclMemFree.is_some()),
            ("ncclGetVersion", self.ncclGetVersion.is_some()),
            ("ncclGetUniqueId", self.ncclGetUniqueId.is_some()),
            ("ncclCommInitRankConfig", self.ncclCommInitRankConfig.is_some()),
            ("ncclCommInitRank", self.ncclCommInitRank.is_some()),
            ("ncclCommInitAll", self.ncclCommInitAll.is_some()),
            ("ncclCommFinalize", self.ncclCommFinalize.is_some()),
            ("ncclCommDestroy", self.ncclCommDestroy.is_some()),
            ("ncclCommAbort", self.ncclCommAbort.is_some()),
            ("ncclCommRevoke", self.ncclCommRevoke.is_some()),
            ("ncclCommSplit", self.ncclCommSplit.is_some()),
            ("ncclCommShrink", self.ncclCommShrink.is_some()),
            ("ncclCommGetUniqueId", self.ncclCommGetUniqueId.is_some()),
            ("ncclCommGrow", self.ncclCommGrow.is_some()),
            ("ncclCommInitRankScalable", self.ncclCommInitRankScalable.is_some()),
            ("ncclGetErrorString", self.ncclGetErrorString.is_some()),
            ("ncclGetLastError", self.ncclGetLastError.is_some()),
            ("ncclCommGetAsyncError", self.ncclCommGetAsyncError.is_some()),
            ("ncclCommCount", self.ncclCommCount.is_some()),
            ("ncclCommCuDevice", self.ncclCommCuDevice.is_some()),
            ("ncclCommUserRank", self.ncclCommUserRank.is_some()),
            ("ncclCommRegister", self.ncclCommRegister.is_some()),
            ("ncclCommDeregister", self.ncclCommDeregister.is_some()),
            ("ncclCommSuspend", self.ncclCommSuspend.is_some()),
            ("ncclCommResume", self.ncclCommResume.is_some()),
            ("ncclCommMemStats", self.ncclCommMemStats.is_some()),
            ("ncclCommWindowRegister", self.ncclCommWindowRegister.is_some()),
            ("ncclCommWindowDeregister", self.ncclCommWindowDeregister.is_some()),
            ("ncclWinGetUserPtr", self.ncclWinGetUserPtr.is_some()),
            ("ncclRedOpCreatePreMulSum", self.ncclRedOpCreatePreMulSum.is_some()),
            ("ncclRedOpDestroy", self.ncclRedOpDestroy.is_some()),
            ("ncclReduce", self.ncclReduce.is_some()),
            ("ncclBcast", self.ncclBcast.is_some()),
            ("ncclBroadcast", self.ncclBroadcast.is_some()),
            ("ncclAllReduce", self.ncclAllReduce.is_some()),
            ("ncclReduceScatter", self.ncclReduceScatter.is_some()),
            ("ncclAllGather", self.ncclAllGather.is_some()),
            ("ncclAlltoAll", self.ncclAlltoAll.is_some()),
            ("ncclGather", self.ncclGather.is_some()),
            ("ncclScatter", self.ncclScatter.is_some()),
            ("ncclAllReduceConfig", self.ncclAllReduceConfig.is_some()),
            ("ncclBroadcastConfig", self.ncclBroadcastConfig.is_some()),
            ("ncclReduceConfig", self.ncclReduceConfig.is_some()),
            ("ncclAllGatherConfig", self.ncclAllGatherConfig.is_some()),
            ("ncclReduceScatterConfig", self.ncclReduceScatterConfig.is_some()),
            ("ncclAlltoAllConfig", self.ncclAlltoAllConfig.is_some()),
            ("ncclGatherConfig", self.ncclGatherConfig.is_some()),
            ("ncclScatterConfig", self.ncclScatterConfig.is_some()),
            ("ncclSend", self.ncclSend.is_some()),
            ("ncclRecv", self.ncclRecv.is_some()),
            ("ncclPutSignal", self.ncclPutSignal.is_some()),
            ("ncclSignal", self.ncclSignal.is_some()),
            ("ncclWaitSignal", self.ncclWaitSignal.is_some()),
            ("ncclGroupStart", self.ncclGroupStart.is_some()),
            ("ncclGroupEnd", self.ncclGroupEnd.is_some()),
            ("ncclGroupSimulateEnd", self.ncclGroupSimulateEnd.is_some()),
            ("ncclSetEncryption", self.ncclSetEncryption.is_some()),
        ]
    }
}
impl crate::Nccl {
    /// Calls `ncclMemAlloc`, if the library has it.
    pub unsafe fn ncclMemAlloc(
        &self,
        ptr: *mut *mut ::core::ffi::c_void,
        size: usize,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclMemAlloc {
            Some(call) => Ok(unsafe { call(ptr, size) }),
            None => Err(self.missing("ncclMemAlloc")),
        }
    }
    /// Calls `ncclMemFree`, if the library has it.
    pub unsafe fn ncclMemFree(
        &self,
        ptr: *mut ::core::ffi::c_void,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclMemFree {
            Some(call) => Ok(unsafe { call(ptr) }),
            None => Err(self.missing("ncclMemFree")),
        }
    }
    /// Calls `ncclGetVersion`, if the library has it.
    pub unsafe fn ncclGetVersion(
        &self,
        version: *mut ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGetVersion {
            Some(call) => Ok(unsafe { call(version) }),
            None => Err(self.missing("ncclGetVersion")),
        }
    }
    /// Calls `ncclGetUniqueId`, if the library has it.
    pub unsafe fn ncclGetUniqueId(
        &self,
        uniqueId: *mut ncclUniqueId,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGetUniqueId {
            Some(call) => Ok(unsafe { call(uniqueId) }),
            None => Err(self.missing("ncclGetUniqueId")),
        }
    }
    /// Calls `ncclCommInitRankConfig`, if the library has it.
    pub unsafe fn ncclCommInitRankConfig(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
        config: *mut ncclConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommInitRankConfig {
            Some(call) => Ok(unsafe { call(comm, nranks, commId, rank, config) }),
            None => Err(self.missing("ncclCommInitRankConfig")),
        }
    }
    /// Calls `ncclCommInitRank`, if the library has it.
    pub unsafe fn ncclCommInitRank(
        &self,
        comm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        commId: ncclUniqueId,
        rank: ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommInitRank {
            Some(call) => Ok(unsafe { call(comm, nranks, commId, rank) }),
            None => Err(self.missing("ncclCommInitRank")),
        }
    }
    /// Calls `ncclCommInitAll`, if the library has it.
    pub unsafe fn ncclCommInitAll(
        &self,
        comm: *mut ncclComm_t,
        ndev: ::core::ffi::c_int,
        devlist: *const ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommInitAll {
            Some(call) => Ok(unsafe { call(comm, ndev, devlist) }),
            None => Err(self.missing("ncclCommInitAll")),
        }
    }
    /// Calls `ncclCommFinalize`, if the library has it.
    pub unsafe fn ncclCommFinalize(&self, comm: ncclComm_t) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommFinalize {
            Some(call) => Ok(unsafe { call(comm) }),
            None => Err(self.missing("ncclCommFinalize")),
        }
    }
    /// Calls `ncclCommDestroy`, if the library has it.
    pub unsafe fn ncclCommDestroy(&self, comm: ncclComm_t) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommDestroy {
            Some(call) => Ok(unsafe { call(comm) }),
            None => Err(self.missing("ncclCommDestroy")),
        }
    }
    /// Calls `ncclCommAbort`, if the library has it.
    pub unsafe fn ncclCommAbort(&self, comm: ncclComm_t) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommAbort {
            Some(call) => Ok(unsafe { call(comm) }),
            None => Err(self.missing("ncclCommAbort")),
        }
    }
    /// Calls `ncclCommRevoke`, if the library has it.
    pub unsafe fn ncclCommRevoke(
        &self,
        comm: ncclComm_t,
        revokeFlags: ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommRevoke {
            Some(call) => Ok(unsafe { call(comm, revokeFlags) }),
            None => Err(self.missing("ncclCommRevoke")),
        }
    }
    /// Calls `ncclCommSplit`, if the library has it.
    pub unsafe fn ncclCommSplit(
        &self,
        comm: ncclComm_t,
        color: ::core::ffi::c_int,
        key: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommSplit {
            Some(call) => Ok(unsafe { call(comm, color, key, newcomm, config) }),
            None => Err(self.missing("ncclCommSplit")),
        }
    }
    /// Calls `ncclCommShrink`, if the library has it.
    pub unsafe fn ncclCommShrink(
        &self,
        comm: ncclComm_t,
        excludeRanksList: *mut ::core::ffi::c_int,
        excludeRanksCount: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
        shrinkFlags: ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommShrink {
            Some(call) => {
                Ok(unsafe { call(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags) })
            }
            None => Err(self.missing("ncclCommShrink")),
        }
    }
    /// Calls `ncclCommGetUniqueId`, if the library has it.
    pub unsafe fn ncclCommGetUniqueId(
        &self,
        comm: ncclComm_t,
        uniqueId: *mut ncclUniqueId,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommGetUniqueId {
            Some(call) => Ok(unsafe { call(comm, uniqueId) }),
            None => Err(self.missing("ncclCommGetUniqueId")),
        }
    }
    /// Calls `ncclCommGrow`, if the library has it.
    pub unsafe fn ncclCommGrow(
        &self,
        comm: ncclComm_t,
        nRanks: ::core::ffi::c_int,
        uniqueId: *const ncclUniqueId,
        rank: ::core::ffi::c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommGrow {
            Some(call) => Ok(unsafe { call(comm, nRanks, uniqueId, rank, newcomm, config) }),
            None => Err(self.missing("ncclCommGrow")),
        }
    }
    /// Calls `ncclCommInitRankScalable`, if the library has it.
    pub unsafe fn ncclCommInitRankScalable(
        &self,
        newcomm: *mut ncclComm_t,
        nranks: ::core::ffi::c_int,
        myrank: ::core::ffi::c_int,
        nId: ::core::ffi::c_int,
        commIds: *mut ncclUniqueId,
        config: *mut ncclConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommInitRankScalable {
            Some(call) => Ok(unsafe { call(newcomm, nranks, myrank, nId, commIds, config) }),
            None => Err(self.missing("ncclCommInitRankScalable")),
        }
    }
    /// Calls `ncclGetErrorString`, if the library has it.
    pub unsafe fn ncclGetErrorString(
        &self,
        result: ncclResult_t,
    ) -> Result<*const ::core::ffi::c_char, crate::MissingSymbol> {
        match self.symbols().ncclGetErrorString {
            Some(call) => Ok(unsafe { call(result) }),
            None => Err(self.missing("ncclGetErrorString")),
        }
    }
    /// Calls `ncclGetLastError`, if the library has it.
    pub unsafe fn ncclGetLastError(
        &self,
        comm: ncclComm_t,
    ) -> Result<*const ::core::ffi::c_char, crate::MissingSymbol> {
        match self.symbols().ncclGetLastError {
            Some(call) => Ok(unsafe { call(comm) }),
            None => Err(self.missing("ncclGetLastError")),
        }
    }
    /// Calls `ncclCommGetAsyncError`, if the library has it.
    pub unsafe fn ncclCommGetAsyncError(
        &self,
        comm: ncclComm_t,
        asyncError: *mut ncclResult_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommGetAsyncError {
            Some(call) => Ok(unsafe { call(comm, asyncError) }),
            None => Err(self.missing("ncclCommGetAsyncError")),
        }
    }
    /// Calls `ncclCommCount`, if the library has it.
    pub unsafe fn ncclCommCount(
        &self,
        comm: ncclComm_t,
        count: *mut ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommCount {
            Some(call) => Ok(unsafe { call(comm, count) }),
            None => Err(self.missing("ncclCommCount")),
        }
    }
    /// Calls `ncclCommCuDevice`, if the library has it.
    pub unsafe fn ncclCommCuDevice(
        &self,
        comm: ncclComm_t,
        device: *mut ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommCuDevice {
            Some(call) => Ok(unsafe { call(comm, device) }),
            None => Err(self.missing("ncclCommCuDevice")),
        }
    }
    /// Calls `ncclCommUserRank`, if the library has it.
    pub unsafe fn ncclCommUserRank(
        &self,
        comm: ncclComm_t,
        rank: *mut ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommUserRank {
            Some(call) => Ok(unsafe { call(comm, rank) }),
            None => Err(self.missing("ncclCommUserRank")),
        }
    }
    /// Calls `ncclCommRegister`, if the library has it.
    pub unsafe fn ncclCommRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        handle: *mut *mut ::core::ffi::c_void,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommRegister {
            Some(call) => Ok(unsafe { call(comm, buff, size, handle) }),
            None => Err(self.missing("ncclCommRegister")),
        }
    }
    /// Calls `ncclCommDeregister`, if the library has it.
    pub unsafe fn ncclCommDeregister(
        &self,
        comm: ncclComm_t,
        handle: *mut ::core::ffi::c_void,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommDeregister {
            Some(call) => Ok(unsafe { call(comm, handle) }),
            None => Err(self.missing("ncclCommDeregister")),
        }
    }
    /// Calls `ncclCommSuspend`, if the library has it.
    pub unsafe fn ncclCommSuspend(
        &self,
        comm: ncclComm_t,
        flags: ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommSuspend {
            Some(call) => Ok(unsafe { call(comm, flags) }),
            None => Err(self.missing("ncclCommSuspend")),
        }
    }
    /// Calls `ncclCommResume`, if the library has it.
    pub unsafe fn ncclCommResume(&self, comm: ncclComm_t) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommResume {
            Some(call) => Ok(unsafe { call(comm) }),
            None => Err(self.missing("ncclCommResume")),
        }
    }
    /// Calls `ncclCommMemStats`, if the library has it.
    pub unsafe fn ncclCommMemStats(
        &self,
        comm: ncclComm_t,
        stat: ncclCommMemStat_t,
        value: *mut u64,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommMemStats {
            Some(call) => Ok(unsafe { call(comm, stat, value) }),
            None => Err(self.missing("ncclCommMemStats")),
        }
    }
    /// Calls `ncclCommWindowRegister`, if the library has it.
    pub unsafe fn ncclCommWindowRegister(
        &self,
        comm: ncclComm_t,
        buff: *mut ::core::ffi::c_void,
        size: usize,
        win: *mut ncclWindow_t,
        winFlags: ::core::ffi::c_int,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommWindowRegister {
            Some(call) => Ok(unsafe { call(comm, buff, size, win, winFlags) }),
            None => Err(self.missing("ncclCommWindowRegister")),
        }
    }
    /// Calls `ncclCommWindowDeregister`, if the library has it.
    pub unsafe fn ncclCommWindowDeregister(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclCommWindowDeregister {
            Some(call) => Ok(unsafe { call(comm, win) }),
            None => Err(self.missing("ncclCommWindowDeregister")),
        }
    }
    /// Calls `ncclWinGetUserPtr`, if the library has it.
    pub unsafe fn ncclWinGetUserPtr(
        &self,
        comm: ncclComm_t,
        win: ncclWindow_t,
        outUserPtr: *mut *mut ::core::ffi::c_void,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclWinGetUserPtr {
            Some(call) => Ok(unsafe { call(comm, win, outUserPtr) }),
            None => Err(self.missing("ncclWinGetUserPtr")),
        }
    }
    /// Calls `ncclRedOpCreatePreMulSum`, if the library has it.
    pub unsafe fn ncclRedOpCreatePreMulSum(
        &self,
        op: *mut ncclRedOp_t,
        scalar: *mut ::core::ffi::c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclRedOpCreatePreMulSum {
            Some(call) => Ok(unsafe { call(op, scalar, datatype, residence, comm) }),
            None => Err(self.missing("ncclRedOpCreatePreMulSum")),
        }
    }
    /// Calls `ncclRedOpDestroy`, if the library has it.
    pub unsafe fn ncclRedOpDestroy(
        &self,
        op: ncclRedOp_t,
        comm: ncclComm_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclRedOpDestroy {
            Some(call) => Ok(unsafe { call(op, comm) }),
            None => Err(self.missing("ncclRedOpDestroy")),
        }
    }
    /// Calls `ncclReduce`, if the library has it.
    pub unsafe fn ncclReduce(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclReduce {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, op, root, comm, stream) }),
            None => Err(self.missing("ncclReduce")),
        }
    }
    /// Calls `ncclBcast`, if the library has it.
    pub unsafe fn ncclBcast(
        &self,
        buff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclBcast {
            Some(call) => Ok(unsafe { call(buff, count, datatype, root, comm, stream) }),
            None => Err(self.missing("ncclBcast")),
        }
    }
    /// Calls `ncclBroadcast`, if the library has it.
    pub unsafe fn ncclBroadcast(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclBroadcast {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream) }),
            None => Err(self.missing("ncclBroadcast")),
        }
    }
    /// Calls `ncclAllReduce`, if the library has it.
    pub unsafe fn ncclAllReduce(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAllReduce {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, op, comm, stream) }),
            None => Err(self.missing("ncclAllReduce")),
        }
    }
    /// Calls `ncclReduceScatter`, if the library has it.
    pub unsafe fn ncclReduceScatter(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclReduceScatter {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, recvcount, datatype, op, comm, stream) }),
            None => Err(self.missing("ncclReduceScatter")),
        }
    }
    /// Calls `ncclAllGather`, if the library has it.
    pub unsafe fn ncclAllGather(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAllGather {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, sendcount, datatype, comm, stream) }),
            None => Err(self.missing("ncclAllGather")),
        }
    }
    /// Calls `ncclAlltoAll`, if the library has it.
    pub unsafe fn ncclAlltoAll(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAlltoAll {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, comm, stream) }),
            None => Err(self.missing("ncclAlltoAll")),
        }
    }
    /// Calls `ncclGather`, if the library has it.
    pub unsafe fn ncclGather(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGather {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream) }),
            None => Err(self.missing("ncclGather")),
        }
    }
    /// Calls `ncclScatter`, if the library has it.
    pub unsafe fn ncclScatter(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclScatter {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream) }),
            None => Err(self.missing("ncclScatter")),
        }
    }
    /// Calls `ncclAllReduceConfig`, if the library has it.
    pub unsafe fn ncclAllReduceConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAllReduceConfig {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, op, comm, stream, config) }),
            None => Err(self.missing("ncclAllReduceConfig")),
        }
    }
    /// Calls `ncclBroadcastConfig`, if the library has it.
    pub unsafe fn ncclBroadcastConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclBroadcastConfig {
            Some(call) => {
                Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream, config) })
            }
            None => Err(self.missing("ncclBroadcastConfig")),
        }
    }
    /// Calls `ncclReduceConfig`, if the library has it.
    pub unsafe fn ncclReduceConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclReduceConfig {
            Some(call) => {
                Ok(unsafe { call(sendbuff, recvbuff, count, datatype, op, root, comm, stream, config) })
            }
            None => Err(self.missing("ncclReduceConfig")),
        }
    }
    /// Calls `ncclAllGatherConfig`, if the library has it.
    pub unsafe fn ncclAllGatherConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAllGatherConfig {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, sendcount, datatype, comm, stream, config) }),
            None => Err(self.missing("ncclAllGatherConfig")),
        }
    }
    /// Calls `ncclReduceScatterConfig`, if the library has it.
    pub unsafe fn ncclReduceScatterConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclReduceScatterConfig {
            Some(call) => {
                Ok(unsafe { call(sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config) })
            }
            None => Err(self.missing("ncclReduceScatterConfig")),
        }
    }
    /// Calls `ncclAlltoAllConfig`, if the library has it.
    pub unsafe fn ncclAlltoAllConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclAlltoAllConfig {
            Some(call) => Ok(unsafe { call(sendbuff, recvbuff, count, datatype, comm, stream, config) }),
            None => Err(self.missing("ncclAlltoAllConfig")),
        }
    }
    /// Calls `ncclGatherConfig`, if the library has it.
    pub unsafe fn ncclGatherConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGatherConfig {
            Some(call) => {
                Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream, config) })
            }
            None => Err(self.missing("ncclGatherConfig")),
        }
    }
    /// Calls `ncclScatterConfig`, if the library has it.
    pub unsafe fn ncclScatterConfig(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
        config: *const ncclCollConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclScatterConfig {
            Some(call) => {
                Ok(unsafe { call(sendbuff, recvbuff, count, datatype, root, comm, stream, config) })
            }
            None => Err(self.missing("ncclScatterConfig")),
        }
    }
    /// Calls `ncclSend`, if the library has it.
    pub unsafe fn ncclSend(
        &self,
        sendbuff: *const ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclSend {
            Some(call) => Ok(unsafe { call(sendbuff, count, datatype, peer, comm, stream) }),
            None => Err(self.missing("ncclSend")),
        }
    }
    /// Calls `ncclRecv`, if the library has it.
    pub unsafe fn ncclRecv(
        &self,
        recvbuff: *mut ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclRecv {
            Some(call) => Ok(unsafe { call(recvbuff, count, datatype, peer, comm, stream) }),
            None => Err(self.missing("ncclRecv")),
        }
    }
    /// Calls `ncclPutSignal`, if the library has it.
    pub unsafe fn ncclPutSignal(
        &self,
        localbuff: *const ::core::ffi::c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: ::core::ffi::c_int,
        peerWin: ncclWindow_t,
        peerWinOffset: usize,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclPutSignal {
            Some(call) => Ok(unsafe {
                call(
                    localbuff,
                    count,
                    datatype,
                    peer,
                    peerWin,
                    peerWinOffset,
                    sigIdx,
                    ctx,
                    flags,
                    comm,
                    stream,
                )
            }),
            None => Err(self.missing("ncclPutSignal")),
        }
    }
    /// Calls `ncclSignal`, if the library has it.
    pub unsafe fn ncclSignal(
        &self,
        peer: ::core::ffi::c_int,
        sigIdx: ::core::ffi::c_int,
        ctx: ::core::ffi::c_int,
        flags: ::core::ffi::c_uint,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclSignal {
            Some(call) => Ok(unsafe { call(peer, sigIdx, ctx, flags, comm, stream) }),
            None => Err(self.missing("ncclSignal")),
        }
    }
    /// Calls `ncclWaitSignal`, if the library has it.
    pub unsafe fn ncclWaitSignal(
        &self,
        nDesc: ::core::ffi::c_int,
        signalDescs: *mut ncclWaitSignalDesc_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclWaitSignal {
            Some(call) => Ok(unsafe { call(nDesc, signalDescs, comm, stream) }),
            None => Err(self.missing("ncclWaitSignal")),
        }
    }
    /// Calls `ncclGroupStart`, if the library has it.
    pub unsafe fn ncclGroupStart(&self) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGroupStart {
            Some(call) => Ok(unsafe { call() }),
            None => Err(self.missing("ncclGroupStart")),
        }
    }
    /// Calls `ncclGroupEnd`, if the library has it.
    pub unsafe fn ncclGroupEnd(&self) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGroupEnd {
            Some(call) => Ok(unsafe { call() }),
            None => Err(self.missing("ncclGroupEnd")),
        }
    }
    /// Calls `ncclGroupSimulateEnd`, if the library has it.
    pub unsafe fn ncclGroupSimulateEnd(
        &self,
        simInfo: *mut ncclSimInfo_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclGroupSimulateEnd {
            Some(call) => Ok(unsafe { call(simInfo) }),
            None => Err(self.missing("ncclGroupSimulateEnd")),
        }
    }
    /// Calls `ncclSetEncryption`, if the library has it.
    pub unsafe fn ncclSetEncryption(
        &self,
        config: *const ncclEncryptionConfig_t,
    ) -> Result<ncclResult_t, crate::MissingSymbol> {
        match self.symbols().ncclSetEncryption {
            Some(call) => Ok(unsafe { call(config) }),
            None => Err(self.missing("ncclSetEncryption")),
        }
    }
}
pub const NCCL_CONFIG_INITIALIZER: ncclConfig_t = ncclConfig_t {
    size: size_of::<ncclConfig_t>(),
    magic: NCCL_API_MAGIC as _,
    version: NCCL_VERSION_CODE as _,
    blocking: NCCL_CONFIG_UNDEF_INT as _,
    cgaClusterSize: NCCL_CONFIG_UNDEF_INT as _,
    minCTAs: NCCL_CONFIG_UNDEF_INT as _,
    maxCTAs: NCCL_CONFIG_UNDEF_INT as _,
    netName: ::core::ptr::null_mut(),
    splitShare: NCCL_CONFIG_UNDEF_INT as _,
    trafficClass: NCCL_CONFIG_UNDEF_INT as _,
    commName: ::core::ptr::null_mut(),
    collnetEnable: NCCL_CONFIG_UNDEF_INT as _,
    CTAPolicy: NCCL_CONFIG_UNDEF_INT as _,
    shrinkShare: NCCL_CONFIG_UNDEF_INT as _,
    nvlsCTAs: NCCL_CONFIG_UNDEF_INT as _,
    nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT as _,
    nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT as _,
    graphUsageMode: NCCL_CONFIG_UNDEF_INT as _,
    numRmaCtx: NCCL_CONFIG_UNDEF_INT as _,
    maxP2pPeers: NCCL_CONFIG_UNDEF_INT as _,
    graphStreamOrdering: NCCL_CONFIG_UNDEF_INT as _,
    launchOrderImplicit: NCCL_CONFIG_UNDEF_INT as _,
    numRmaSig: NCCL_CONFIG_UNDEF_INT as _,
    rmaEagerInit: NCCL_CONFIG_UNDEF_INT as _,
    hostCftMode: NCCL_CONFIG_UNDEF_INT as _,
    nvlsHostMode: NCCL_CONFIG_UNDEF_INT as _,
};
pub const NCCL_COLLCONFIG_INITIALIZER: ncclCollConfig_t = ncclCollConfig_t {
    size: size_of::<ncclCollConfig_t>(),
    magic: NCCL_API_MAGIC as _,
    version: NCCL_VERSION_CODE as _,
    ext: ::core::ptr::null_mut(),
    minCTAs: NCCL_CONFIG_UNDEF_INT as _,
    maxCTAs: NCCL_CONFIG_UNDEF_INT as _,
    nvlsCTAs: NCCL_CONFIG_UNDEF_INT as _,
    cgaClusterSize: NCCL_CONFIG_UNDEF_INT as _,
    algSelection: ::core::ptr::null_mut(),
    forceAlgSelection: 1 as _,
    CTAPolicy: NCCL_CONFIG_UNDEF_INT as _,
    userProfilerTag: 0 as _,
    launchCompletionEvent: ::core::ptr::null_mut(),
};
pub const NCCL_SIM_INFO_INITIALIZER: ncclSimInfo_t = ncclSimInfo_t {
    size: size_of::<ncclSimInfo_t>(),
    magic: 0x74685283 as _,
    version: NCCL_VERSION_CODE as _,
    estimatedTime: NCCL_UNDEF_FLOAT as _,
};
pub const NCCL_ENCRYPTION_CONFIG_INITIALIZER: ncclEncryptionConfig_t = ncclEncryptionConfig_t {
    size: size_of::<ncclEncryptionConfig_t>(),
    magic: NCCL_API_MAGIC as _,
    version: NCCL_VERSION_CODE as _,
    mode: ncclEncryptionMode_t::NCCL_ENCRYPTION_MODE_NONE.0 as _,
    psk: ::core::ptr::null_mut(),
};
