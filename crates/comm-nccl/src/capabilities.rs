//! The device and the NCCL version of each rank. The ranks compare them before NCCL connects them.

use comm_core::wire::{self, Reader, Writer};
use comm_core::{
    Buffers, Call, CallOptions, Counts, Error, HostCommunicator, HostView, HostViewMut, Invalid, Result,
};
use nccl_sys::Version;

use crate::environment::{self, SHARE_DEVICES};
use crate::error::{NCCL, unavailable};
use crate::library::SHARING_SINCE;
use crate::{Device, Library};

/// The device and the NCCL version of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The version of NCCL.
    pub version: Version,
    /// The UUID of the device.
    pub device: [u8; 16],
    /// Whether the environment of the rank allows NCCL to place several ranks on one device.
    pub may_share: bool,
}

impl Capabilities {
    /// The size of the encoded capabilities in bytes.
    const BYTES: usize = 1 + 3 * 4 + 16;

    /// Returns the capabilities of this rank.
    ///
    /// # Errors
    /// [`Error::Backend`] if the driver does not return the UUID of the device.
    pub fn of(library: &Library, device: &Device) -> Result<Self> {
        let may_share = environment::devices_may_be_shared();
        Ok(Self { version: library.version(), device: device.uuid()?, may_share })
    }

    /// Appends the encoded capabilities.
    pub(crate) fn encode(&self, to: &mut Writer) {
        let Version { major, minor, patch, .. } = self.version;
        to.put(u8::from(self.may_share)).put(major).put(minor).put(patch).put(self.device);
    }

    /// Reads encoded capabilities.
    pub(crate) fn decode(r: &mut Reader<'_>) -> wire::Result<Self> {
        let may_share = r.flag("flag of sharing")?;
        let version = Version::new(r.get()?, r.get()?, r.get()?);
        Ok(Self { version, device: r.get()?, may_share })
    }

    /// Returns an error if NCCL cannot connect these ranks. Every rank that passes the same list
    /// gets the same result.
    pub(crate) fn check(ranks: &[(usize, Self)]) -> Result<()> {
        let Some((leader, Self { version, .. })) = ranks.first() else { return Ok(()) };
        let others = ranks.iter().filter(|(_, other)| other.version != *version);
        let others: Vec<String> =
            others.map(|(rank, other)| format!("rank {rank} has {}", other.version)).collect();
        if !others.is_empty() {
            let others = others.join(", ");
            let words =
                format!("ranks have different versions of NCCL: rank {leader} has {version}, {others}");
            return Err(unavailable(NCCL, words));
        }
        let Some((ranks_on_it, device)) = shared_device(ranks) else { return Ok(()) };
        let unset = ranks.iter().filter(|(_, rank)| !rank.may_share);
        let unset: Vec<String> = unset.map(|(rank, _)| format!("rank {rank}")).collect();
        let advice = if *version < SHARING_SINCE {
            format!(
                "NCCL {version} needs a device of its own for each rank; from {SHARING_SINCE} on, ranks can share \
                 one with {SHARE_DEVICES}=1"
            )
        } else if unset.is_empty() {
            return Ok(());
        } else {
            format!(
                "NCCL needs a device of its own for each rank, unless {SHARE_DEVICES}=1 is set for all of \
                 them, and it is not for {}",
                unset.join(", ")
            )
        };
        Err(Invalid::SharedDevice { ranks: ranks_on_it, device: Device::name_of(&device), advice }.into())
    }

    /// Exchanges the capabilities of all ranks in one all-gather, and checks that NCCL can connect
    /// them.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] on all ranks, with ranks and versions, if the versions differ;
    /// [`Invalid::SharedDevice`] on all ranks, naming two of them, if they are on one device that
    /// cannot be shared; and the errors of the call.
    pub fn exchange(&self, host: &dyn HostCommunicator, options: &CallOptions) -> Result<()> {
        let own = wire::encode(|to| self.encode(to));
        let mut all = vec![0; Self::BYTES * host.group().size()];
        let buffers: Buffers<'_> =
            Buffers::Separate { send: HostView::new(&own), recv: HostViewMut::new(&mut all) };
        host.run(Call::AllGather { buffers, counts: Counts::Equal }, options)?;
        let ranks = all.chunks_exact(Self::BYTES).map(|bytes| wire::decode(bytes, Self::decode));
        let malformed = |error| Error::malformed("the capabilities of another rank", error);
        let ranks = ranks.collect::<wire::Result<Vec<_>>>().map_err(malformed)?;
        Self::check(&ranks.into_iter().enumerate().collect::<Vec<_>>())
    }
}

/// The first two ranks on one device, and the device; `None` if each rank has its own.
fn shared_device(ranks: &[(usize, Capabilities)]) -> Option<((usize, usize), [u8; 16])> {
    ranks.iter().enumerate().find_map(|(at, (second, rank))| {
        let (first, _) = ranks[..at].iter().find(|(_, earlier)| earlier.device == rank.device)?;
        Some(((*first, *second), rank.device))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(ranks: impl IntoIterator<Item = (Version, u8, bool)>) -> Result<()> {
        let rank = |(version, device, may_share)| Capabilities { version, device: [device; 16], may_share };
        Capabilities::check(&ranks.into_iter().map(rank).enumerate().collect::<Vec<_>>())
    }

    #[test]
    fn two_ranks_on_one_device_are_named_with_the_device() {
        let version = Version::new(2, 28, 9);
        let error = checked([1, 2, 3, 2].map(|device| (version, device, true))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid: ranks 1 and 3 are both on device GPU-02020202-0202-0202-0202-020202020202: NCCL 2.28.9 needs a \
             device of its own for each rank; from 2.30.3 on, ranks can share one with NCCL_MULTI_RANK_GPU_ENABLE=1"
        );
    }

    #[test]
    fn a_device_may_be_shared_if_nccl_supports_it_and_all_ranks_allow_it() {
        let (new, old) = (Version::new(2, 30, 3), Version::new(2, 30, 2));
        assert!(checked([1, 2, 3].map(|device| (old, device, false))).is_ok());
        assert!(checked([1, 2, 1].map(|device| (new, device, true))).is_ok());
        assert!(checked([1, 2, 1].map(|device| (old, device, true))).is_err());
        let refused = checked([(new, 1, true), (new, 2, false), (new, 1, true)]).unwrap_err().to_string();
        assert!(refused.contains("ranks 0 and 2") && refused.ends_with("not for rank 1"), "{refused}");
    }

    #[test]
    fn different_versions_are_refused_first() {
        let refused = checked([(Version::new(2, 30, 7), 1, true), (Version::new(2, 18, 3), 1, true)]);
        assert!(refused.unwrap_err().to_string().contains("rank 0 has 2.30.7, rank 1 has 2.18.3"));
    }

    comm_sim::hostile_bytes!(capabilities_are_read_as_they_were_written:
        [true, false].map(|may_share| Capabilities {
            version: Version::new(2, 30, 7), device: [0xD5; 16], may_share,
        }),
        |of| wire::encode(|to| of.encode(to)),
        |bytes| wire::decode(bytes, Capabilities::decode).ok());
}
