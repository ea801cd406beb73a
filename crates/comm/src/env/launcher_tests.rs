//! Tests of the variables of each launcher, and of errors if some are missing.

use comm_core::VariableFault;

use super::table_tests::{TORCH, fault_of, from};
use super::*;

const SLURM: [(&str, &str); 8] = [
    ("SLURM_PROCID", "5"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "4(x2)"),
    ("SLURM_JOB_ID", "4711"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_STEP_NODELIST", "node[07-08]"),
];

fn replaced(
    base: &[(&'static str, &'static str)],
    more: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'static str)> {
    let kept = base.iter().filter(|(name, _)| more.iter().all(|(other, _)| name != other));
    kept.chain(more).copied().collect()
}

#[test]
fn the_store_of_a_slurm_step_is_at_its_first_host() {
    let config = from(&SLURM).unwrap();
    assert_eq!((config.rank, config.world_size), (5, 8));
    assert_eq!((config.local_rank, config.local_world_size), (1, 4));
    assert_eq!(config.master_addr, "node07");
    assert!((16_384..32_768).contains(&config.master_port), "{}", config.master_port);
    let other = from(&replaced(&SLURM, &[("SLURM_STEP_ID", "3")])).unwrap();
    assert_ne!((config.job, config.master_port), (other.job, other.master_port));
    let same = from(&replaced(&SLURM, &[("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")])).unwrap();
    assert_eq!((config.job, config.master_port), (same.job, same.master_port));
    let one = replaced(&SLURM, &[("SLURM_STEP_TASKS_PER_NODE", "8"), ("SLURM_NODEID", "0")]);
    assert_eq!(from(&one).unwrap().master_addr, "127.0.0.1");
    let given = replaced(&SLURM, &[("MASTER_ADDR", "10.0.0.9"), ("MASTER_PORT", "1234")]);
    let given = from(&given).unwrap();
    assert_eq!((given.master_addr.as_str(), given.master_port), ("10.0.0.9", 1234));
    // srun with `--mpi=pmi2` sets these too.
    let pmi = from(&replaced(&SLURM, &[("PMI_RANK", "5"), ("PMI_SIZE", "8")])).unwrap();
    assert_eq!((pmi.master_addr.as_str(), pmi.master_port), ("node07", config.master_port));
}

#[test]
fn a_slurm_step_without_its_hosts_names_the_variable_to_set() {
    let few: Vec<_> = SLURM.into_iter().filter(|(name, _)| *name != "SLURM_STEP_NODELIST").collect();
    let message = from(&few).unwrap_err().to_string();
    assert!(message.contains("MASTER_ADDR is not set") && message.contains("srun"), "{message}");
}

#[test]
fn a_batch_script_of_slurm_is_no_launch() {
    // 4294967291 is the step of batch scripts, 4294967290 that of interactive shells.
    for step in [None, Some("4294967291"), Some("4294967290")] {
        let mut script = vec![("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
        script.extend(step.map(|step| ("SLURM_STEP_ID", step)));
        assert_eq!(from(&script).unwrap().world_size, 1, "{step:?}");
        assert!(!is_launched(&script.iter().copied().collect()), "{step:?}");
        let own = [&script[..], &TORCH].concat();
        assert_eq!(from(&own).unwrap().rank, 1, "{step:?}");
    }
    let task = from(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")]);
    assert_eq!(fault_of(task), ("SLURM_STEP_ID".into(), VariableFault::NotSet));
}

#[test]
fn the_older_name_of_the_step_is_read() {
    let mut variables = replaced(&SLURM, &[("SLURM_STEPID", "2")]);
    variables.retain(|(name, _)| *name != "SLURM_STEP_ID");
    assert_eq!(from(&variables).unwrap().master_port, from(&SLURM).unwrap().master_port);
}

const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "2"),
    ("OMPI_COMM_WORLD_SIZE", "3"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
    ("PMIX_NAMESPACE", "prterun-host-4711@1"),
    ("PMI_RANK", "0"),
];

#[test]
fn the_store_of_open_mpi_on_one_host_is_on_loopback() {
    let config = from(&OPEN_MPI).unwrap();
    assert_eq!((config.rank, config.world_size), (2, 3));
    assert_eq!(config.master_addr, "127.0.0.1");
    assert!((16_384..32_768).contains(&config.master_port), "{}", config.master_port);
    let other = from(&replaced(&OPEN_MPI, &[("PMIX_NAMESPACE", "prterun-host-4712@1")])).unwrap();
    assert_ne!((config.job, config.master_port), (other.job, other.master_port));
}

#[test]
fn ranks_of_mpi_on_several_hosts_are_advised_to_set_the_address() {
    let hosts = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")];
    let message = from(&replaced(&OPEN_MPI, &hosts)).unwrap_err().to_string();
    assert!(message.contains("MASTER_ADDR is not set") && message.contains("-x MASTER_ADDR"), "{message}");
    let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")];
    let message = from(&hydra).unwrap_err().to_string();
    assert!(message.contains("-genv MASTER_ADDR"), "{message}");
    let given = from(&replaced(&hydra, &[("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "5")])).unwrap();
    assert_eq!((given.rank, given.local_world_size, given.master_port), (1, 1, 5));
}

#[test]
fn ranks_of_hydra_find_the_store_through_the_process_manager() {
    let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "9")];
    let config = from(&hydra).unwrap();
    assert_eq!((config.rank, config.world_size), (1, 2));
    assert_eq!(config.store, StoreHost::ProcessManager { descriptor: 9 });
    // An address that is set is used.
    for set in
        [&[("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "5")][..], &[("COMM_RENDEZVOUS", "tcp://10.0.0.1:5")]]
    {
        let config = from(&replaced(&hydra, set)).unwrap();
        assert_eq!((config.store, config.master_port), (StoreHost::RankZero, 5));
    }
    // srun has a process manager of another kind.
    let slurm = replaced(&SLURM, &[("PMI_RANK", "5"), ("PMI_SIZE", "8"), ("PMI_FD", "9")]);
    assert_eq!(from(&slurm).unwrap().store, StoreHost::RankZero);
}

#[test]
fn a_port_of_a_process_manager_is_a_launch() {
    let is = |variables: &[(&str, &str)]| is_launched(&variables.iter().copied().collect());
    assert!(is(&[("PMI_PORT", "host:5"), ("PMI_ID", "0")]));
    assert!(!is(&[("PMI_PORT", "host:5")]));
    // Another launcher has started this process since.
    let inner = [&TORCH[..], &[("PMI_PORT", "no.such.host.invalid:5"), ("PMI_ID", "0")]].concat();
    assert_eq!(config(&introduced(inner.into_iter().collect()).unwrap()).unwrap().rank, 1);
}

const INDEXED_JOB: [(&str, &str); 4] = [
    ("JOB_COMPLETION_INDEX", "2"),
    ("WORLD_SIZE", "4"),
    ("MASTER_ADDR", "train-0.train"),
    ("MASTER_PORT", "29500"),
];

#[test]
fn each_pod_of_an_indexed_job_is_a_rank() {
    let config = from(&INDEXED_JOB).unwrap();
    assert_eq!((config.rank, config.world_size, config.local_rank, config.local_world_size), (2, 4, 0, 1));
    assert_eq!((config.master_addr.as_str(), config.master_port), ("train-0.train", 29_500));
    assert!(is_launched(&INDEXED_JOB.iter().copied().collect()));
    // A launcher in the pod sets the rank.
    let inner: Vec<_> = TORCH.into_iter().chain([("JOB_COMPLETION_INDEX", "0")]).collect();
    assert_eq!(from(&inner).unwrap().rank, 1);
    let outside = from(&replaced(&INDEXED_JOB, &[("JOB_COMPLETION_INDEX", "4")])).unwrap_err().to_string();
    assert!(outside.contains("JOB_COMPLETION_INDEX") && outside.contains("WORLD_SIZE = 4"), "{outside}");
    let without = from(&INDEXED_JOB[..2]).unwrap_err().to_string();
    assert!(without.contains("MASTER_ADDR is not set") && without.contains("pod with index 0"), "{without}");
}

#[test]
fn pods_without_a_world_size_are_worlds_of_one() {
    let pod = [("JOB_COMPLETION_INDEX", "2")];
    assert_eq!(from(&pod).unwrap().world_size, 1);
    assert!(!is_launched(&pod.into_iter().collect()));
}
