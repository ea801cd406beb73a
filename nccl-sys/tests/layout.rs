//! Structs have the layout and the defaults that NCCL expects.

use nccl_sys::{
    NCCL_API_MAGIC, NCCL_COLLCONFIG_INITIALIZER, NCCL_CONFIG_INITIALIZER, NCCL_ENCRYPTION_CONFIG_INITIALIZER,
    NCCL_SIM_INFO_INITIALIZER, NCCL_VERSION_CODE, ncclUniqueId,
};

/// NCCL's value of an unset setting.
const UNDEFINED: i32 = i32::MIN;

#[test]
fn a_fresh_configuration_sets_nothing() {
    let config = NCCL_CONFIG_INITIALIZER;
    assert_eq!(config.size, size_of_val(&config));
    assert_eq!((config.magic, config.version), (0xcafe_beef, NCCL_VERSION_CODE as u32));
    assert!(config.netName.is_null() && config.commName.is_null());
    let numbers = [
        config.blocking,
        config.cgaClusterSize,
        config.minCTAs,
        config.maxCTAs,
        config.splitShare,
        config.trafficClass,
        config.collnetEnable,
        config.CTAPolicy,
        config.shrinkShare,
        config.nvlsCTAs,
        config.nChannelsPerNetPeer,
        config.nvlinkCentricSched,
        config.graphUsageMode,
        config.numRmaCtx,
        config.maxP2pPeers,
        config.graphStreamOrdering,
        config.launchOrderImplicit,
        config.numRmaSig,
        config.rmaEagerInit,
        config.hostCftMode,
        config.nvlsHostMode,
    ];
    assert_eq!(numbers, [UNDEFINED; 21]);
}

#[test]
fn other_structs_carry_their_size_and_version() {
    let (calls, encryption, simulation) =
        (NCCL_COLLCONFIG_INITIALIZER, NCCL_ENCRYPTION_CONFIG_INITIALIZER, NCCL_SIM_INFO_INITIALIZER);
    assert_eq!(calls.size, size_of_val(&calls));
    assert_eq!((i64::from(calls.magic), calls.version), (NCCL_API_MAGIC, NCCL_VERSION_CODE as u32));
    assert_eq!((calls.minCTAs, calls.forceAlgSelection, calls.userProfilerTag), (UNDEFINED, 1, 0));
    assert_eq!((encryption.size, encryption.mode), (size_of_val(&encryption), 0));
    assert_eq!((simulation.size, simulation.magic), (size_of_val(&simulation), 0x7468_5283));
    assert_eq!(simulation.estimatedTime, -1.0);
}

#[test]
fn an_id_is_128_bytes() {
    assert_eq!(size_of::<ncclUniqueId>(), 128);
}
