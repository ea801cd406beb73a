//! Selects one path for all ranks. Every rank applies the same rules to the same reports.

use comm_core::{Buffers, Call, CallOptions, Counts, Error, HostCommunicator, HostView, HostViewMut, Result};

use super::config::DevicePath;
use super::local_device::{LocalDevice, REPORT_BYTES, Report, message};

/// The path on which the ranks agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// Not [`DevicePath::Auto`].
    pub(super) path: DevicePath,
    /// The reason why it is not NCCL, if NCCL was allowed.
    pub(super) obstacle: Option<String>,
}

/// Exchanges the reports of all ranks and selects a path. NCCL is selected only if it can connect
/// the ranks.
pub(super) fn agree(
    host: &dyn HostCommunicator,
    local: &LocalDevice,
    path: DevicePath,
    options: &CallOptions,
) -> Result<Decision> {
    let decision = decide(&exchange(host, &local.report(path), options)?)?;
    let (DevicePath::Nccl, Some(Ok((_, capabilities)))) = (decision.path, &local.nccl) else {
        return Ok(decision);
    };
    capabilities.exchange(host, options).map_or_else(|error| without_nccl(path, error), |()| Ok(decision))
}

/// Returns the decision if NCCL cannot connect the ranks. The reason is the same on all of them.
fn without_nccl(path: DevicePath, error: Error) -> Result<Decision> {
    match error {
        Error::Invalid(_) | Error::BackendUnavailable { .. } if path == DevicePath::Auto => {
            Ok(Decision { path: DevicePath::Staged, obstacle: Some(message(&error)) })
        }
        error => Err(error),
    }
}

fn exchange(host: &dyn HostCommunicator, own: &Report, options: &CallOptions) -> Result<Vec<Report>> {
    let own = own.encode();
    let mut all = vec![0; REPORT_BYTES * host.group().size()];
    let buffers: Buffers<'_> =
        Buffers::Separate { send: HostView::new(&own), recv: HostViewMut::new(&mut all) };
    host.run(Call::AllGather { buffers, counts: Counts::Equal }, options)?;
    let malformed = |error| Error::malformed("the report of another rank's device", error);
    let (all, _) = all.as_chunks();
    all.iter().map(Report::decode).collect::<Result<_, _>>().map_err(malformed)
}

/// Returns the decision, which is the same on every rank because all have the same reports.
fn decide(reports: &[Report]) -> Result<Decision> {
    let Some(first) = reports.first() else { return Err(Error::Internal("a group has no ranks".into())) };
    if let Some((rank, other)) = reports.iter().enumerate().find(|(_, other)| other.path != first.path) {
        let reason = format!("rank {rank} requests {}, and all ranks must request the same", other.path);
        return Err(Error::setting(
            "device path",
            first.path.name(),
            format!("rank 0 requests that; {reason}"),
        ));
    }
    let without_device = obstacles(reports, |report| !report.has_device);
    if !without_device.is_empty() {
        return Err(Error::BackendUnavailable { backend: "cuda", detail: without_device });
    }
    if first.path == DevicePath::Staged {
        return Ok(Decision { path: DevicePath::Staged, obstacle: None });
    }
    let detail = obstacles(reports, |report| !report.has_nccl);
    match detail.is_empty() {
        true => Ok(Decision { path: DevicePath::Nccl, obstacle: None }),
        false => without_nccl(first.path, Error::BackendUnavailable { backend: "nccl", detail }),
    }
}

/// Returns the obstacles of the ranks for which `lacks` is true, each with its rank.
fn obstacles(reports: &[Report], lacks: impl Fn(&Report) -> bool) -> String {
    let lacking = reports.iter().enumerate().filter(|(_, report)| lacks(report));
    let lacking = lacking.map(|(rank, report)| format!("rank {rank}: {}", report.obstacle));
    lacking.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use comm_core::{During, Invalid, Loss};

    use super::*;

    /// Ranks that each have a device and NCCL.
    fn reports(path: DevicePath, ranks: usize) -> Vec<Report> {
        vec![Report { path, has_device: true, has_nccl: true, obstacle: String::new() }; ranks]
    }

    #[test]
    fn nccl_is_chosen_if_every_rank_has_it() {
        for path in [DevicePath::Nccl, DevicePath::Auto] {
            let decision = decide(&reports(path, 3)).ok();
            assert_eq!(decision, Some(Decision { path: DevicePath::Nccl, obstacle: None }));
        }
        let staged = Decision { path: DevicePath::Staged, obstacle: None };
        assert_eq!(decide(&reports(DevicePath::Staged, 3)).ok(), Some(staged));
    }

    #[test]
    fn a_rank_without_nccl_is_named() {
        let decide = |path| {
            let mut reports = reports(path, 3);
            reports[1] =
                Report { has_nccl: false, obstacle: "cannot load NCCL".into(), ..reports[1].clone() };
            decide(&reports)
        };
        let obstacle = Some("rank 1: cannot load NCCL".into());
        assert_eq!(decide(DevicePath::Auto).ok(), Some(Decision { path: DevicePath::Staged, obstacle }));
        let error = decide(DevicePath::Nccl).unwrap_err().to_string();
        assert_eq!(error, "nccl is not available: rank 1: cannot load NCCL");
    }

    #[test]
    fn buffers_are_staged_only_for_reasons_that_all_ranks_know() {
        let versions = Error::BackendUnavailable { backend: "nccl", detail: "ranks have different".into() };
        let advice = "share it".into();
        let shared = Invalid::SharedDevice { ranks: (0, 2), device: "GPU-7".into(), advice }.into();
        for (error, words) in [(versions, "ranks have different"), (shared, "ranks 0 and 2")] {
            assert!(without_nccl(DevicePath::Nccl, error.clone()).is_err());
            let Decision { path, obstacle } = without_nccl(DevicePath::Auto, error).unwrap();
            assert!(
                path == DevicePath::Staged && obstacle.is_some_and(|obstacle| obstacle.starts_with(words))
            );
        }
        let lost = Error::PeerLost { peer: 1, during: During::Idle, loss: Loss::Finished };
        assert!(without_nccl(DevicePath::Auto, lost).is_err());
    }

    #[test]
    fn a_rank_without_a_device_is_an_error_on_every_path() {
        for path in DevicePath::ALL {
            let mut reports = reports(path, 2);
            reports[1] = Report { has_device: false, has_nccl: false, obstacle: "no driver".into(), path };
            let error = decide(&reports).unwrap_err().to_string();
            assert_eq!(error, "cuda is not available: rank 1: no driver");
        }
    }

    #[test]
    fn requests_for_different_paths_are_errors_on_every_rank() {
        let mut reports = reports(DevicePath::Auto, 3);
        reports[2].path = DevicePath::Nccl;
        let error = decide(&reports).unwrap_err().to_string();
        assert!(error.contains("auto") && error.contains("rank 2 requests nccl"), "{error}");
    }
}
