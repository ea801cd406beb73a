//! The decision of all ranks for one path: each applies the same rules to the same capabilities.

use std::collections::BTreeMap;

use comm_core::{Buffers, Call, CallOptions, Counts, Error, HostCommunicator, HostView, HostViewMut, Result};
use comm_nccl::{Device, Version};

use super::capabilities::{CAPABILITIES_BYTES, Capabilities};
use super::config::DevicePath;

/// The decision of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// Not [`DevicePath::Auto`].
    pub(super) path: DevicePath,
    /// The reason why it is not NCCL, if it could have been.
    pub(super) obstacle: Option<String>,
}

/// Exchanges the capabilities of all ranks, and decides.
pub(super) fn agree(
    host: &dyn HostCommunicator,
    own: &Capabilities,
    options: &CallOptions,
) -> Result<Decision> {
    let said = own.encode();
    let mut all = vec![0; CAPABILITIES_BYTES * host.group().size()];
    let buffers: Buffers<'_> =
        Buffers::Separate { send: HostView::new(&said), recv: HostViewMut::new(&mut all) };
    host.run(Call::AllGather { buffers, counts: Counts::Equal }, options)?;
    let malformed = |error| Error::malformed("the description of another rank's device", error);
    let (all, _) = all.as_chunks();
    let capabilities: Vec<Capabilities> =
        all.iter().map(Capabilities::decode).collect::<Result<_, _>>().map_err(malformed)?;
    decide(&capabilities)
}

/// Decides on a path; equal on every rank, because the capabilities are.
fn decide(capabilities: &[Capabilities]) -> Result<Decision> {
    let Some(first) = capabilities.first() else {
        return Err(Error::Internal("a group has no ranks".into()));
    };
    if let Some((rank, other)) = capabilities.iter().enumerate().find(|(_, other)| other.path != first.path) {
        let reason = format!("rank {rank} says {}, and all ranks must say the same", other.path);
        return Err(Error::setting("device path", first.path.name(), format!("rank 0 says that; {reason}")));
    }
    let without = obstacles(capabilities, |capabilities| capabilities.uuid.is_none());
    if !without.is_empty() {
        return Err(Error::BackendUnavailable { backend: "cuda", detail: without.join("; ") });
    }
    if first.path == DevicePath::Staged {
        return Ok(Decision { path: DevicePath::Staged, obstacle: None });
    }
    let detail = without_nccl(capabilities).join("; ");
    match first.path {
        _ if detail.is_empty() => Ok(Decision { path: DevicePath::Nccl, obstacle: None }),
        DevicePath::Nccl => Err(Error::BackendUnavailable { backend: "nccl", detail }),
        _ => Ok(Decision { path: DevicePath::Staged, obstacle: Some(detail) }),
    }
}

/// Returns the reasons why the ranks cannot use NCCL together.
fn without_nccl(capabilities: &[Capabilities]) -> Vec<String> {
    let mut all = obstacles(capabilities, |capabilities| capabilities.version.is_none());
    if !capabilities.iter().all(|capabilities| capabilities.may_share) {
        all.extend(shared_devices(capabilities));
    }
    all.extend(unlike_versions(capabilities));
    all
}

/// Returns the obstacles of the ranks that lack something.
fn obstacles(capabilities: &[Capabilities], lacks: impl Fn(&Capabilities) -> bool) -> Vec<String> {
    let lacking = capabilities.iter().enumerate().filter(|(_, capabilities)| lacks(capabilities));
    lacking.map(|(rank, capabilities)| format!("rank {rank}: {}", capabilities.obstacle)).collect()
}

/// Returns a message for each device that several ranks use.
fn shared_devices(capabilities: &[Capabilities]) -> Vec<String> {
    let mut ranks: BTreeMap<[u8; 16], Vec<usize>> = BTreeMap::new();
    for (rank, capabilities) in capabilities.iter().enumerate() {
        if let Some(uuid) = capabilities.uuid {
            ranks.entry(uuid).or_default().push(rank);
        }
    }
    let shared = ranks.into_iter().filter(|(_, ranks)| ranks.len() > 1);
    shared
        .map(|(uuid, ranks)| format!("ranks {} are on one device, {}", list(&ranks), Device::name_of(&uuid)))
        .collect()
}

/// Returns a message for each rank whose NCCL differs from that of the first rank that has one.
fn unlike_versions(capabilities: &[Capabilities]) -> Vec<String> {
    let versions: Vec<(usize, Version)> = capabilities
        .iter()
        .enumerate()
        .filter_map(|(rank, capabilities)| Some((rank, capabilities.version?)))
        .collect();
    let Some((rank, version)) = versions.first() else { return Vec::new() };
    let unlike = versions.iter().filter(|(_, other)| other != version);
    unlike.map(|(other, theirs)| format!("rank {rank} has {version}, rank {other} has {theirs}")).collect()
}

/// Formats a list as in "0, 2 and 3".
fn list(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.join(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: Version = Version::new(2, 30, 7);

    /// Returns the capabilities of ranks that each have a device and NCCL.
    fn capabilities(path: DevicePath, ranks: u8) -> Vec<Capabilities> {
        let fact = |rank| Capabilities {
            path,
            uuid: Some([rank; 16]),
            version: Some(VERSION),
            may_share: false,
            obstacle: String::new(),
        };
        (0..ranks).map(fact).collect()
    }

    fn lacks_nccl(capabilities: &mut Capabilities) {
        capabilities.version = None;
        capabilities.obstacle = "cannot load NCCL".into();
    }

    #[track_caller]
    fn assert_staged(capabilities: &[Capabilities], words: &str) {
        let decision = decide(capabilities);
        let is_staged = |decision: &Decision| {
            decision.path == DevicePath::Staged && decision.obstacle.as_deref() == Some(words)
        };
        assert!(decision.as_ref().is_ok_and(is_staged), "{decision:?}");
        // The same capabilities are an error if another path is not allowed.
        let strict: Vec<Capabilities> = capabilities
            .iter()
            .map(|capabilities| Capabilities { path: DevicePath::Nccl, ..capabilities.clone() })
            .collect();
        let error = decide(&strict).err();
        let is_unavailable = |error: &Error| matches!(error, Error::BackendUnavailable { backend: "nccl", detail } if detail == words);
        assert!(error.as_ref().is_some_and(is_unavailable), "{error:?}");
    }

    #[test]
    fn nccl_is_taken_where_every_rank_can() {
        for path in [DevicePath::Nccl, DevicePath::Auto] {
            let decision = decide(&capabilities(path, 3)).ok();
            assert_eq!(decision, Some(Decision { path: DevicePath::Nccl, obstacle: None }));
        }
        let staged = Decision { path: DevicePath::Staged, obstacle: None };
        assert_eq!(decide(&capabilities(DevicePath::Staged, 3)).ok(), Some(staged));
    }

    #[test]
    fn a_rank_without_nccl_is_named() {
        let mut capabilities = capabilities(DevicePath::Auto, 3);
        lacks_nccl(&mut capabilities[1]);
        assert_staged(&capabilities, "rank 1: cannot load NCCL");
    }

    #[test]
    fn ranks_on_one_device_are_named_both() {
        let mut capabilities = capabilities(DevicePath::Auto, 4);
        capabilities[3].uuid = capabilities[1].uuid;
        let uuid = "GPU-01010101-0101-0101-0101-010101010101";
        let words = format!("ranks 1 and 3 are on one device, {uuid}");
        assert_staged(&capabilities, &words);
        capabilities.iter_mut().skip(1).for_each(|capabilities| capabilities.may_share = true);
        assert_staged(&capabilities, &words);
        capabilities[0].may_share = true;
        let shared = Decision { path: DevicePath::Nccl, obstacle: None };
        assert_eq!(
            decide(&capabilities).ok(),
            Some(shared),
            "NCCL is told on every rank that devices are shared"
        );
    }

    #[test]
    fn unlike_versions_are_named() {
        let mut capabilities = capabilities(DevicePath::Auto, 3);
        capabilities[2].version = Some(Version::new(2, 18, 3));
        assert_staged(&capabilities, "rank 0 has 2.30.7, rank 2 has 2.18.3");
    }

    #[test]
    fn a_rank_without_a_device_stops_all_whatever_the_way() {
        for path in DevicePath::ALL {
            let mut capabilities = capabilities(path, 2);
            capabilities[1] = Capabilities {
                uuid: None,
                version: None,
                may_share: false,
                obstacle: "no driver".into(),
                path,
            };
            let error = decide(&capabilities).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error, "cuda is not available: rank 1: no driver");
        }
    }

    #[test]
    fn ranks_that_ask_for_unlike_ways_are_told() {
        let mut capabilities = capabilities(DevicePath::Auto, 3);
        capabilities[2].path = DevicePath::Nccl;
        let error = decide(&capabilities).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("auto") && error.contains("rank 2 says nccl"), "{error}");
    }
}
