//! Launchers, and the variables that each of them sets.

use comm_core::{Error, Result, VariableFault};
use comm_pmi::pmix;

use super::environment::{Environment, fault};
use super::variables::{JOB_ID, MASTER_ADDR, MASTER_PORT, RENDEZVOUS, STORE, Variable};
use super::{port, slurm};
use crate::StoreHost;

/// The advice if no variable holds the rank.
const START: &str = "start the program with `commctl run -n N -- PROGRAM`, torchrun, mpirun or srun";

/// A program that starts ranks.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) kind: Kind,
    pub(super) rank: Variable,
    pub(super) size: Variable,
    pub(super) local_rank: Variable,
    /// `None` if it is derived from several variables.
    pub(super) local_size: Option<Variable>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// torchrun, `commctl run`, or a person.
    Torch,
    OpenMpi,
    /// The launcher of MPICH and Intel MPI.
    Hydra,
    Slurm,
    /// An indexed Job of Kubernetes, each of whose pods runs one rank.
    Kubernetes,
}

/// The launchers that set the size and the ranks of each host, in the order in which they are
/// tried.
pub(super) const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        kind: Kind::Torch,
        rank: Variable::rank("RANK"),
        size: Variable::size("WORLD_SIZE"),
        local_rank: Variable::rank("LOCAL_RANK"),
        local_size: Some(Variable::size("LOCAL_WORLD_SIZE")),
    },
    Launcher {
        kind: Kind::OpenMpi,
        rank: Variable::rank("OMPI_COMM_WORLD_RANK"),
        size: Variable::size("OMPI_COMM_WORLD_SIZE"),
        local_rank: Variable::rank("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size: Some(Variable::size("OMPI_COMM_WORLD_LOCAL_SIZE")),
    },
    Launcher {
        kind: Kind::Hydra,
        rank: Variable::rank("PMI_RANK"),
        size: Variable::size("PMI_SIZE"),
        local_rank: Variable::rank("MPI_LOCALRANKID"),
        local_size: Some(Variable::size("MPI_LOCALNRANKS")),
    },
    Launcher {
        kind: Kind::Slurm,
        rank: slurm::RANK,
        size: slurm::SIZE,
        local_rank: slurm::LOCAL_RANK,
        local_size: None,
    },
];

/// Kubernetes sets the index of each pod of an indexed Job, and users the rest. It is tried last.
static KUBERNETES: Launcher = Launcher {
    kind: Kind::Kubernetes,
    rank: Variable::rank("JOB_COMPLETION_INDEX"),
    size: Variable::size("WORLD_SIZE"),
    local_rank: Variable::rank("LOCAL_RANK"),
    local_size: None,
};

/// The job id of torchrun.
const RUN_ID: Variable = Variable::text("TORCHELASTIC_RUN_ID");
/// The job id of Open MPI: equal on all ranks of a job, and unique among the jobs of these hosts.
const NAMESPACE: Variable = Variable::text("PMIX_NAMESPACE");

/// Set by Open MPI and others whose process manager is PMIx.
const PMIX_RANK: &str = "PMIX_RANK";
/// The socket to the process manager of MPICH and Intel MPI.
pub(super) const PMI_FD: Variable = Variable::number("PMI_FD");

/// Variables that have no meaning without a rank, each with the launcher that sets it.
const DEPENDENT: [(&str, Kind); 11] = [
    ("WORLD_SIZE", Kind::Torch),
    ("LOCAL_RANK", Kind::Torch),
    ("LOCAL_WORLD_SIZE", Kind::Torch),
    (MASTER_ADDR.name, Kind::Torch),
    (MASTER_PORT.name, Kind::Torch),
    (RENDEZVOUS.name, Kind::Torch),
    (STORE.name, Kind::Torch),
    (JOB_ID.name, Kind::Torch),
    (RUN_ID.name, Kind::Torch),
    ("OMPI_COMM_WORLD_SIZE", Kind::OpenMpi),
    ("PMI_SIZE", Kind::Hydra),
];

/// A launcher that has started this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch {
    pub(super) launcher: &'static Launcher,
    /// The Slurm job step, if the ranks are one.
    step: Option<u64>,
}

/// The rank and size of the world, and of the ranks on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RankInfo {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: usize,
    pub(super) local_world_size: usize,
}

impl Launch {
    /// Returns the launcher that has started this process, if any.
    ///
    /// # Errors
    /// Some variables of a launcher are set, and others that always come with them are not.
    pub(super) fn find(environment: &Environment) -> Result<Option<Self>> {
        let [torch, open_mpi, hydra, slurm] = &LAUNCHERS;
        let is_set = |launcher: &&Launcher| environment.is_set(launcher.rank.name);
        if let Some(launcher) = [torch, open_mpi].into_iter().find(is_set) {
            return Ok(Some(Self { launcher, step: None }));
        }
        let step = slurm::step(environment)?;
        // srun with `--mpi=pmi2` sets MPICH's variables too, to the same values.
        let is_same = |ours: &Variable, theirs: &Variable| -> Result<bool> {
            Ok(environment.number(ours)? == environment.number(theirs)?)
        };
        if is_set(&hydra)
            && !(step.is_some() && is_same(&hydra.rank, &slurm.rank)? && is_same(&hydra.size, &slurm.size)?)
        {
            return Ok(Some(Self { launcher: hydra, step: None }));
        }
        if step.is_some() {
            return Ok(Some(Self { launcher: slurm, step }));
        }
        if is_indexed_job(environment) {
            return Ok(Some(Self { launcher: &KUBERNETES, step: None }));
        }
        check_dependent(environment).map(|()| None)
    }

    /// Returns the rank and size in the world and on this host.
    pub(super) fn rank_info(&self, environment: &Environment) -> Result<RankInfo> {
        let Launcher { rank, size, local_rank, local_size, .. } = self.launcher;
        let needed = |variable: &Variable| {
            let value = environment.size(variable)?;
            value.ok_or_else(|| fault(variable.name, VariableFault::NotSet, START))
        };
        let (at, world_size) = (needed(rank)?, needed(size)?);
        below(rank, at, size.name, world_size)?;
        if self.launcher.kind == Kind::Kubernetes {
            return Ok(RankInfo { rank: at, world_size, local_rank: 0, local_world_size: 1 });
        }
        let local_set = match local_size {
            Some(variable) => environment.size(variable)?,
            None => slurm::tasks_on_node(environment)?,
        };
        let local_world_size = local_set.unwrap_or(world_size);
        let local_name =
            local_size.as_ref().filter(|_| local_set.is_some()).map_or(size.name, |local| local.name);
        if local_world_size > world_size {
            let reason = format!("no host has more ranks than {} = {world_size}", size.name);
            return Err(Error::setting(local_name, local_world_size.to_string(), reason));
        }
        let local = match environment.size(local_rank)? {
            Some(local) => below(local_rank, local, local_name, local_world_size)?,
            None if local_set.is_some_and(|local_world_size| local_world_size < world_size) => {
                let advice = format!("it distinguishes the ranks of a host, as {local_name} is set");
                return Err(fault(local_rank.name, VariableFault::NotSet, advice));
            }
            None => at,
        };
        Ok(RankInfo { rank: at, world_size, local_rank: local, local_world_size })
    }

    /// Returns a unique name of the job, if the launcher sets one.
    pub(super) fn job(&self, environment: &Environment) -> Result<Option<String>> {
        let text = |variable| Ok(environment.text(variable)?.map(str::to_owned));
        match (self.launcher.kind, self.step) {
            (_, Some(step)) => slurm::job(environment, step),
            (Kind::Torch, _) => text(&RUN_ID),
            (Kind::OpenMpi, _) => text(&NAMESPACE),
            (Kind::Hydra | Kind::Slurm | Kind::Kubernetes, _) => Ok(None),
        }
    }

    /// Returns the store whose address the ranks exchange through the process manager of MPI, if
    /// there is one and the address of the store is not set.
    pub(super) fn process_manager(
        &self,
        environment: &Environment,
        rank_info: &RankInfo,
    ) -> Result<Option<StoreHost>> {
        if environment.is_set(MASTER_ADDR.name) || environment.is_set(MASTER_PORT.name) {
            return Ok(None);
        }
        match self.launcher.kind {
            Kind::Hydra => {
                let descriptor =
                    environment.number(&PMI_FD)?.and_then(|descriptor| i32::try_from(descriptor).ok());
                Ok(descriptor.map(|descriptor| StoreHost::ProcessManager { descriptor }))
            }
            Kind::OpenMpi => {
                let has_pmix = [NAMESPACE.name, PMIX_RANK].iter().all(|name| environment.is_set(name));
                let has_hosts = rank_info.local_world_size < rank_info.world_size;
                Ok((has_pmix && has_hosts && pmix::is_available()).then_some(StoreHost::Pmix))
            }
            Kind::Torch | Kind::Slurm | Kind::Kubernetes => Ok(None),
        }
    }

    /// Returns the address of the store: as set, or derived from the launcher's variables.
    pub(super) fn master(&self, environment: &Environment, rank_info: &RankInfo) -> Result<(String, u16)> {
        let is_one_host =
            rank_info.local_world_size == rank_info.world_size && self.sets_local_size(environment);
        let addr = match environment.text(&MASTER_ADDR)? {
            Some(addr) => Some(addr.to_owned()),
            None if is_one_host => Some("127.0.0.1".to_owned()),
            None if self.step.is_some() => slurm::first_host(environment)?,
            None => None,
        };
        let port = match environment.number(&MASTER_PORT)? {
            Some(port) => Some(port as u16),
            None => self.job(environment)?.filter(|_| self.launcher.kind != Kind::Torch).map(port_of),
        };
        let missing = |variable: &Variable| fault(variable.name, VariableFault::NotSet, self.advice());
        Ok((addr.ok_or_else(|| missing(&MASTER_ADDR))?, port.ok_or_else(|| missing(&MASTER_PORT))?))
    }

    /// Returns whether the launcher sets the number of ranks per host. Users who set torchrun's
    /// variables by hand may omit it.
    fn sets_local_size(&self, environment: &Environment) -> bool {
        match &self.launcher.local_size {
            Some(local) => self.launcher.kind != Kind::Torch && environment.is_set(local.name),
            None => {
                self.step.is_some() && slurm::tasks_on_node(environment).is_ok_and(|tasks| tasks.is_some())
            }
        }
    }

    const fn advice(&self) -> &'static str {
        match self.launcher.kind {
            Kind::Torch => {
                "set MASTER_ADDR to an address of rank 0's host that all ranks can reach, and MASTER_PORT to a free port there"
            }
            Kind::OpenMpi => {
                "install libpmix.so.2 where programs find it, or pass the host of rank 0 and a free port there to \
                 mpirun: `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...`"
            }
            Kind::Hydra => {
                "pass the host of rank 0 and a free port there to mpiexec: \
                 `mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 ...`"
            }
            Kind::Slurm => {
                "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there before you call srun"
            }
            Kind::Kubernetes => {
                "set MASTER_ADDR to the host name of the pod with index 0 and MASTER_PORT to a port of it in the template \
                 of the pods"
            }
        }
    }
}

/// Returns whether a launcher has set the rank of this process, even if the value is unusable.
pub(super) fn has_started(environment: &Environment) -> bool {
    let [others @ .., _] = &LAUNCHERS;
    let is_set = others.iter().any(|launcher| environment.is_set(launcher.rank.name));
    is_set
        || port::is_set(environment)
        || is_indexed_job(environment)
        || !matches!(slurm::step(environment), Ok(None))
}

/// Returns whether users have set the size of an indexed Job. Without it, the pods are independent
/// of each other.
fn is_indexed_job(environment: &Environment) -> bool {
    [&KUBERNETES.rank, &KUBERNETES.size].iter().all(|variable| environment.is_set(variable.name))
}

/// Returns an error if a rank is not less than the size.
fn below(rank: &Variable, value: usize, size_name: &str, size: usize) -> Result<usize> {
    if value < size {
        return Ok(value);
    }
    let reason = format!("it must be less than {size_name} = {size}");
    Err(Error::setting(rank.name, value.to_string(), reason))
}

/// Returns an error if a variable of a launcher is set but its rank is not.
fn check_dependent(environment: &Environment) -> Result<()> {
    let Some((dependent, kind)) = DEPENDENT.iter().find(|(name, _)| environment.is_set(name)) else {
        return Ok(());
    };
    let launcher = LAUNCHERS.iter().find(|launcher| launcher.kind == *kind);
    let rank = launcher.map_or("RANK", |launcher| launcher.rank.name);
    Err(fault(
        rank,
        VariableFault::NotSet,
        format!("{dependent} is set without it: {START}, or unset {dependent}"),
    ))
}

/// Returns a port derived from the name of the job, below the range of ephemeral ports.
fn port_of(job: String) -> u16 {
    const FIRST: u16 = 16_384;
    const COUNT: u64 = 16_384;
    FIRST + (super::fnv_1a(job.as_bytes()) % COUNT) as u16
}
