//! Finds the problems of a host, and their remedies.

use std::time::Duration;

use comm::shm::SharedMemoryConfig;
use serde::{Deserialize, Serialize};

use super::facts::{Facts, Interface};
use super::{JobSize, folders, gpu};

/// The number of connections between two ranks of a group; each takes a descriptor of both.
const CONNECTIONS: u64 = 3;
/// The descriptors that a program has otherwise.
const DESCRIPTORS_SPARE: u64 = 64;
/// The rings of a pair of ranks of one host: one per direction for collectives and for messages.
const RINGS_PER_PAIR: usize = 4;
/// The time of a lookup that delays the start of a job noticeably.
const SLOW_LOOKUP: Duration = Duration::from_secs(1);
/// A share of periods that does not matter.
const THROTTLED_MAX: f64 = 0.01;
/// The memory in `/dev/shm` that NCCL uses per rank, at least. Containers of Docker have 64 MiB.
const DEV_SHM_PER_RANK: u64 = 8 << 20;
/// The send buffer for 10 Gbit/s and a round trip of a millisecond.
const SEND_BUFFER_MIN: usize = 1 << 20;

/// The weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::doctor) enum Severity {
    /// A job fails.
    Error,
    /// A job is slow, or fails in some settings.
    Warning,
}

/// A problem and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::doctor) struct Problem {
    pub(in crate::doctor) severity: Severity,
    pub(in crate::doctor) text: String,
    pub(in crate::doctor) remedy: String,
}

impl Problem {
    pub(in crate::doctor) fn error(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Error, text: text.into(), remedy: remedy.into() }
    }

    pub(in crate::doctor) fn warning(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, text: text.into(), remedy: remedy.into() }
    }
}

/// Returns the problems of this host for a job, the worst first.
pub(super) fn of(facts: &Facts, job: &JobSize) -> Vec<Problem> {
    // Of equal weight, those that are certain come before those that depend on the moment.
    let checks = [
        environment,
        descriptors,
        memory,
        folders::problem,
        name,
        network,
        cores,
        quota,
        dev_shm,
        gpu::driver,
        gpu::nccl,
        attach,
        send_buffer,
        load,
    ];
    let mut problems: Vec<Problem> = checks.iter().filter_map(|check| check(facts, job)).collect();
    problems.sort_by_key(|problem| problem.severity);
    problems
}

fn environment(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let reason = facts.environment.as_ref()?;
    let text = format!("{}: the environment is not accepted: {reason}", facts.host);
    Some(Problem::error(text, "correct or unset this variable"))
}

fn descriptors(facts: &Facts, job: &JobSize) -> Option<Problem> {
    let (most, peers) = (facts.open_files?, job.ranks.saturating_sub(1) as u64);
    let needed = CONNECTIONS * peers + DESCRIPTORS_SPARE;
    (needed > most).then(|| {
        let text = format!(
            "{}: a rank of {} opens {needed} files, and {most} are allowed (ulimit -n)",
            facts.host, job.ranks
        );
        Problem::error(text, format!("raise the limit before the job starts: ulimit -n {needed}"))
    })
}

fn memory(facts: &Facts, job: &JobSize) -> Option<Problem> {
    let (available, local) = (facts.memory?, job.local_ranks);
    let ring = SharedMemoryConfig::default().data_ring_bytes(job.ranks, usize::MAX);
    let pairs = local * local.saturating_sub(1) / 2;
    let needed = pairs * RINGS_PER_PAIR * (ring + SharedMemoryConfig::FAST_BOX_BYTES);
    (needed > available).then(|| {
        let mebibytes = |bytes: usize| bytes >> 20;
        let text = format!(
            "{}: {local} ranks need up to {} MiB for shared memory, and {} MiB are available",
            facts.host,
            mebibytes(needed),
            mebibytes(available)
        );
        Problem::error(text, "start fewer ranks, or raise the limit of the control group")
    })
}

/// A name that resolves to loopback is the default of Debian. Ranks of other hosts get a usable
/// address of this library, but not of others.
fn name(facts: &Facts, job: &JobSize) -> Option<Problem> {
    let Facts { host, resolves_to, lookup, .. } = facts;
    if resolves_to.is_empty() {
        let text = format!("{host}: its name does not resolve here ({:.1} s)", lookup.as_secs_f64());
        return Some(Problem::warning(text, "add it to /etc/hosts or DNS, or pass MASTER_ADDR=IP"));
    }
    if job.has_other_hosts() && resolves_to.iter().all(|address| address.is_loopback()) {
        let text =
            format!("{host}: its name resolves to {} there, which no other host reaches", resolves_to[0]);
        let remedy = "give it its network address in /etc/hosts, or pass MASTER_ADDR=IP";
        return Some(Problem::warning(text, remedy));
    }
    (*lookup > SLOW_LOOKUP).then(|| {
        let text = format!("{host}: looking up its name took {:.1} s", lookup.as_secs_f64());
        Problem::warning(text, "add it to /etc/hosts, or check the DNS servers in /etc/resolv.conf")
    })
}

fn network(facts: &Facts, job: &JobSize) -> Option<Problem> {
    if !job.has_other_hosts() || facts.outward.is_some() {
        return None;
    }
    let text = format!("{}: no interface is up, so no other host reaches it", facts.host);
    let remedy = match facts.interfaces.iter().find(|interface| !interface.is_up) {
        Some(Interface { name, .. }) => format!("bring one up: ip link set {name} up"),
        None => "connect it to a network".to_owned(),
    };
    Some(Problem::error(text, remedy))
}

fn cores(facts: &Facts, job: &JobSize) -> Option<Problem> {
    (job.local_ranks > facts.cores).then(|| {
        let text = format!("{}: {} ranks share {} cores", facts.host, job.local_ranks, facts.cores);
        Problem::warning(text, "start at most one rank per core; check taskset and the job's allocation")
    })
}

fn quota(facts: &Facts, job: &JobSize) -> Option<Problem> {
    if let Some(quota) = facts.quota.filter(|quota| *quota < job.local_ranks.min(facts.cores) as f64) {
        let text = format!(
            "{}: its control group allows {quota:.1} cores for {}, though {} are visible",
            facts.host,
            ranks(job.local_ranks),
            facts.cores
        );
        return Some(Problem::warning(
            text,
            "raise cpu.max (the limit of the container), or start fewer ranks",
        ));
    }
    let share = facts.throttled.filter(|share| *share > THROTTLED_MAX)?;
    let text =
        format!("{}: its control group was throttled in {:.0} % of periods", facts.host, 100.0 * share);
    Some(Problem::warning(text, "raise cpu.max (the limit of the container)"))
}

fn ranks(count: usize) -> String {
    if count == 1 { "1 rank".to_owned() } else { format!("{count} ranks") }
}

fn load(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let load = facts.load.filter(|load| *load > facts.cores as f64)?;
    let text = format!("{}: {load:.1} processes ran on {} cores in the last minute", facts.host, facts.cores);
    Some(Problem::warning(text, "end other programs, which ranks wait for in every call"))
}

/// Ranks copy large buffers from each other's memory if the kernel lets them.
fn attach(facts: &Facts, _: &JobSize) -> Option<Problem> {
    let scope = facts.ptrace_scope.filter(|scope| *scope >= 2)?;
    let text = format!("{}: ranks may not read each other's memory (ptrace_scope is {scope})", facts.host);
    Some(Problem::warning(text, "sysctl kernel.yama.ptrace_scope=1 makes large buffers faster"))
}

/// Ranks of this library share memory without names, but NCCL and PyTorch's data loaders use this.
fn dev_shm(facts: &Facts, job: &JobSize) -> Option<Problem> {
    let needed = DEV_SHM_PER_RANK * job.local_ranks as u64;
    let free = facts.dev_shm.filter(|free| *free < needed)?;
    let text = format!(
        "{}: /dev/shm has {} MiB left, where NCCL and PyTorch's data loaders keep shared memory",
        facts.host,
        free >> 20
    );
    let remedy =
        format!("docker run --shm-size, or mount -o remount,size=1g /dev/shm; at least {} MiB", needed >> 20);
    Some(Problem::warning(text, remedy))
}

fn send_buffer(facts: &Facts, job: &JobSize) -> Option<Problem> {
    let most = facts.send_buffer_max.filter(|most| job.has_other_hosts() && *most < SEND_BUFFER_MIN)?;
    let text = format!("{}: a TCP connection sends at most {most} bytes ahead", facts.host);
    Some(Problem::warning(text, "sysctl net.ipv4.tcp_wmem='4096 16384 4194304'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Facts {
        Facts {
            host: "node1".into(),
            resolves_to: vec!["10.0.0.1".parse().unwrap()],
            outward: Some("10.0.0.1".parse().unwrap()),
            addresses: vec!["10.0.0.1".parse().unwrap()],
            interfaces: vec![Interface { name: "eth0".into(), is_up: true, mtu: Some(1500) }],
            cores: 4,
            open_files: Some(1024),
            memory: Some(8 << 30),
            ptrace_scope: Some(1),
            send_buffer_max: Some(4 << 20),
            dev_shm: Some(64 << 20),
            load: Some(0.3),
            ..Facts::default()
        }
    }

    const JOB: JobSize = JobSize { ranks: 8, local_ranks: 4 };

    #[test]
    fn a_healthy_host_has_no_problem() {
        assert_eq!(of(&healthy(), &JOB), []);
    }

    #[track_caller]
    fn has(change: impl FnOnce(&mut Facts), severity: Severity, text: &str) {
        let mut facts = healthy();
        change(&mut facts);
        let problems = of(&facts, &JOB);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].severity, severity);
        assert!(problems[0].text.contains(text), "{}", problems[0].text);
        assert!(problems[0].text.contains("node1"), "{}", problems[0].text);
    }

    #[test]
    fn each_problem_names_the_host_and_the_cause() {
        use Severity::{Error, Warning};
        has(|it| it.open_files = Some(64), Error, "opens 85 files, and 64 are allowed");
        has(|it| it.memory = Some(16 << 20), Error, "need up to 24 MiB for shared memory, and 16 MiB");
        has(|it| it.environment = Some("COMM_TIMEOUT_S".into()), Error, "COMM_TIMEOUT_S");
        has(|it| it.resolves_to = vec!["127.0.1.1".parse().unwrap()], Warning, "127.0.1.1");
        has(|it| it.resolves_to.clear(), Warning, "does not resolve");
        has(|it| it.lookup = Duration::from_secs(5), Warning, "took 5.0 s");
        has(|it| it.outward = None, Error, "no interface is up");
        has(|it| it.cores = 2, Warning, "4 ranks share 2 cores");
        has(|it| it.quota = Some(1.5), Warning, "allows 1.5 cores for 4 ranks");
        has(|it| it.throttled = Some(0.2), Warning, "throttled in 20 %");
        has(|it| it.dev_shm = Some(1 << 20), Warning, "/dev/shm has 1 MiB left");
        let write = |write| vec![folders::CheckedFolder { path: "/out".into(), write }];
        has(|it| it.folders = write(None), Error, "writing to /out has not ended after 5 s");
        has(|it| it.folders = write(Some(Err("full".into()))), Error, "writing to /out fails: full");
        let slow = Duration::from_secs(3);
        has(|it| it.folders = write(Some(Ok(slow))), Warning, "writing to /out took 3.0 s for 1 MiB");
        has(|it| it.load = Some(9.0), Warning, "9.0 processes ran on 4 cores");
        has(|it| it.ptrace_scope = Some(3), Warning, "ptrace_scope is 3");
        has(|it| it.send_buffer_max = Some(65536), Warning, "65536 bytes ahead");
    }

    #[test]
    fn errors_come_before_warnings() {
        let mut facts = healthy();
        (facts.cores, facts.open_files) = (2, Some(64));
        let severities: Vec<_> = of(&facts, &JOB).iter().map(|problem| problem.severity).collect();
        assert_eq!(severities, [Severity::Error, Severity::Warning]);
    }

    #[test]
    fn a_job_on_one_host_needs_no_network() {
        let mut facts = healthy();
        (facts.outward, facts.resolves_to) = (None, vec!["127.0.1.1".parse().unwrap()]);
        assert_eq!(of(&facts, &JobSize { ranks: 4, local_ranks: 4 }), []);
    }
}
