//! The choice of one path on all ranks: from the same reports, by the same rules.

use comm_core::{Buffers, Call, CallOptions, Counts, Error, HostCommunicator, HostView, HostViewMut, Result};
use comm_nccl::Capabilities;

use super::config::DevicePath;
use super::local_device::{REPORT_BYTES, Report, message};

/// The path on which the ranks agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// Not [`DevicePath::Auto`].
    pub(super) path: DevicePath,
    /// The reason why it is not NCCL, if NCCL was allowed.
    pub(super) obstacle: Option<String>,
}

/// Exchanges the reports of all ranks, and decides.
pub(super) fn agree(host: &dyn HostCommunicator, own: &Report, options: &CallOptions) -> Result<Decision> {
    let own = own.encode();
    let mut all = vec![0; REPORT_BYTES * host.group().size()];
    let buffers: Buffers<'_> =
        Buffers::Separate { send: HostView::new(&own), recv: HostViewMut::new(&mut all) };
    host.run(Call::AllGather { buffers, counts: Counts::Equal }, options)?;
    let malformed = |error| Error::malformed("the report of another rank's device", error);
    let (all, _) = all.as_chunks();
    let reports: Vec<Report> = all.iter().map(Report::decode).collect::<Result<_, _>>().map_err(malformed)?;
    decide(&reports)
}

/// The decision, which is the same on every rank because all have the same reports.
fn decide(reports: &[Report]) -> Result<Decision> {
    let Some(first) = reports.first() else { return Err(Error::Internal("a group has no ranks".into())) };
    if let Some((rank, other)) = reports.iter().enumerate().find(|(_, other)| other.path != first.path) {
        let reason = format!("rank {rank} says {}, and all ranks must say the same", other.path);
        return Err(Error::setting("device path", first.path.name(), format!("rank 0 says that; {reason}")));
    }
    let without_device = obstacles(reports, |report| !report.has_device);
    if !without_device.is_empty() {
        return Err(Error::BackendUnavailable { backend: "cuda", detail: without_device });
    }
    let by = |path, obstacle| Ok(Decision { path, obstacle });
    match (first.path, check_nccl(reports)) {
        (DevicePath::Staged, _) => by(DevicePath::Staged, None),
        (_, Ok(())) => by(DevicePath::Nccl, None),
        (DevicePath::Nccl, Err(error)) => Err(error),
        (_, Err(error)) => by(DevicePath::Staged, Some(message(&error))),
    }
}

/// Returns an error if the ranks cannot use NCCL together.
fn check_nccl(reports: &[Report]) -> Result<()> {
    let detail = obstacles(reports, |report| report.nccl.is_none());
    if !detail.is_empty() {
        return Err(Error::BackendUnavailable { backend: "nccl", detail });
    }
    let ranks = reports.iter().enumerate().filter_map(|(rank, report)| Some((rank, report.nccl?)));
    Capabilities::check(&ranks.collect::<Vec<_>>())
}

/// The obstacles of ranks that lack something, each with its rank.
fn obstacles(reports: &[Report], lacks: impl Fn(&Report) -> bool) -> String {
    let lacking = reports.iter().enumerate().filter(|(_, report)| lacks(report));
    let lacking = lacking.map(|(rank, report)| format!("rank {rank}: {}", report.obstacle));
    lacking.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use comm_core::wire;

    use super::*;

    /// Ranks that each have a device and NCCL, which they do not allow to share a device.
    fn reports(path: DevicePath, ranks: u8) -> Vec<Report> {
        let report = |rank| {
            let bytes = [0, 2, 0, 0, 0, 30, 0, 0, 0, 7, 0, 0, 0].into_iter().chain([rank; 16]);
            let nccl = wire::decode(&bytes.collect::<Vec<u8>>(), Capabilities::decode).ok();
            Report { path, has_device: true, nccl, obstacle: String::new() }
        };
        (0..ranks).map(report).collect()
    }

    fn capabilities(report: &mut Report) -> &mut Capabilities {
        report.nccl.as_mut().unwrap()
    }

    #[track_caller]
    fn assert_staged(reports: &[Report], words: &str) {
        let decision = decide(reports);
        let is_staged = |decision: &Decision| {
            decision.path == DevicePath::Staged
                && decision.obstacle.as_deref().is_some_and(|obstacle| obstacle.starts_with(words))
        };
        assert!(decision.as_ref().is_ok_and(is_staged), "{decision:?}");
        // The same reports are an error if only NCCL is allowed.
        let strict: Vec<Report> =
            reports.iter().map(|report| Report { path: DevicePath::Nccl, ..report.clone() }).collect();
        let error = decide(&strict).unwrap_err();
        let is_typed =
            matches!(&error, Error::BackendUnavailable { backend: "nccl", .. } | Error::Invalid(_));
        assert!(is_typed && message(&error).starts_with(words), "{error:?}");
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
        let mut reports = reports(DevicePath::Auto, 3);
        reports[1].nccl = None;
        reports[1].obstacle = "cannot load NCCL".into();
        assert_staged(&reports, "rank 1: cannot load NCCL");
    }

    #[test]
    fn two_ranks_on_one_device_are_both_named() {
        let mut reports = reports(DevicePath::Auto, 4);
        capabilities(&mut reports[3]).device = [1; 16];
        let words = "ranks 1 and 3 are both on device GPU-01010101-0101-0101-0101-010101010101: ";
        assert_staged(&reports, words);
        reports.iter_mut().skip(1).for_each(|report| capabilities(report).may_share = true);
        assert_staged(&reports, words);
        capabilities(&mut reports[0]).may_share = true;
        let shared = Decision { path: DevicePath::Nccl, obstacle: None };
        assert_eq!(decide(&reports).ok(), Some(shared), "every rank allows NCCL to share devices");
    }

    #[test]
    fn different_versions_are_named() {
        let mut reports = reports(DevicePath::Auto, 3);
        capabilities(&mut reports[2]).version.minor = 18;
        let words = "ranks have different versions of NCCL: rank 0 has 2.30.7, rank 2 has 2.18.7";
        assert_staged(&reports, words);
    }

    #[test]
    fn a_rank_without_a_device_is_an_error_on_every_path() {
        for path in DevicePath::ALL {
            let mut reports = reports(path, 2);
            reports[1] = Report { has_device: false, nccl: None, obstacle: "no driver".into(), path };
            let error = decide(&reports).unwrap_err().to_string();
            assert_eq!(error, "cuda is not available: rank 1: no driver");
        }
    }

    #[test]
    fn ranks_that_ask_for_different_paths_are_told() {
        let mut reports = reports(DevicePath::Auto, 3);
        reports[2].path = DevicePath::Nccl;
        let error = decide(&reports).unwrap_err().to_string();
        assert!(error.contains("auto") && error.contains("rank 2 says nccl"), "{error}");
    }
}
