//! The programs that start ranks, and what each tells them.

use comm_core::{Error, Result, VariableFault};

use super::environment::{Environment, fault};
use super::slurm;
use super::variables::{JOB_ID, MASTER_ADDR, MASTER_PORT, STORE, Variable};

/// What to do where nothing has told a rank.
const START: &str = "start the program with `commctl run -n N -- PROGRAM`, torchrun, mpirun or srun";

/// A program that starts ranks.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) kind: Kind,
    pub(super) rank: Variable,
    pub(super) size: Variable,
    pub(super) local_rank: Variable,
    /// `None` where several variables tell it.
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
}

/// In the order in which they are asked.
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

/// The name that torchrun gives a job.
const RUN_ID: Variable = Variable::text("TORCHELASTIC_RUN_ID");
/// The name that Open MPI gives a job: equal on its ranks, and on no others of these hosts.
const NAMESPACE: Variable = Variable::text("PMIX_NAMESPACE");

/// Variables that mean nothing without a rank, and the launcher whose rank is then missing.
const HALVES: [(&str, Kind); 10] = [
    ("WORLD_SIZE", Kind::Torch),
    ("LOCAL_RANK", Kind::Torch),
    ("LOCAL_WORLD_SIZE", Kind::Torch),
    (MASTER_ADDR.name, Kind::Torch),
    (MASTER_PORT.name, Kind::Torch),
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
    /// The step of Slurm that these ranks are, if they are one.
    step: Option<u64>,
}

/// Where a rank stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) local_rank: usize,
    pub(super) local_world_size: usize,
}

impl Launch {
    /// The launcher that has started this process, `None` if none has.
    ///
    /// # Errors
    /// Some variables of a launcher are set, and others that always come with them are not.
    pub(super) fn find(environment: &Environment) -> Result<Option<Self>> {
        let [torch, open_mpi, hydra, slurm] = &LAUNCHERS;
        let told = |launcher: &&Launcher| environment.is_set(launcher.rank.name);
        if let Some(launcher) = [torch, open_mpi].into_iter().find(told) {
            return Ok(Some(Self { launcher, step: None }));
        }
        let step = slurm::step(environment)?;
        // srun with `--mpi=pmi2` sets MPICH's variables too, to the same values.
        let is_same = |ours: &Variable, theirs: &Variable| -> Result<bool> {
            Ok(environment.number(ours)? == environment.number(theirs)?)
        };
        if told(&hydra)
            && !(step.is_some() && is_same(&hydra.rank, &slurm.rank)? && is_same(&hydra.size, &slurm.size)?)
        {
            return Ok(Some(Self { launcher: hydra, step: None }));
        }
        if step.is_some() {
            return Ok(Some(Self { launcher: slurm, step }));
        }
        check_halves(environment).map(|()| None)
    }

    /// Rank and size, in the world and on this host.
    pub(super) fn standing(&self, environment: &Environment) -> Result<Standing> {
        let Launcher { rank, size, local_rank, local_size, .. } = self.launcher;
        let needed = |variable: &Variable| {
            let value = environment.size(variable)?;
            value.ok_or_else(|| fault(variable.name, VariableFault::NotSet, START))
        };
        let (at, world_size) = (needed(rank)?, needed(size)?);
        below(rank, at, size.name, world_size)?;
        let told = match local_size {
            Some(variable) => environment.size(variable)?,
            None => slurm::tasks_on_node(environment)?,
        };
        let local_world_size = told.unwrap_or(world_size);
        let local_name = local_size.as_ref().filter(|_| told.is_some()).map_or(size.name, |local| local.name);
        if local_world_size > world_size {
            let reason = format!("no host has more ranks than {} = {world_size}", size.name);
            return Err(Error::setting(local_name, local_world_size.to_string(), reason));
        }
        let local = match environment.size(local_rank)? {
            Some(local) => below(local_rank, local, local_name, local_world_size)?,
            None if told.is_some_and(|local_world_size| local_world_size < world_size) => {
                let advice = format!("it tells the ranks of a host apart, as {local_name} is set");
                return Err(fault(local_rank.name, VariableFault::NotSet, advice));
            }
            None => at,
        };
        Ok(Standing { rank: at, world_size, local_rank: local, local_world_size })
    }

    /// A name that the job has and no other, if the launcher gives one.
    pub(super) fn job(&self, environment: &Environment) -> Result<Option<String>> {
        let text = |variable| Ok(environment.text(variable)?.map(str::to_owned));
        match (self.launcher.kind, self.step) {
            (_, Some(step)) => slurm::job(environment, step),
            (Kind::Torch, _) => text(&RUN_ID),
            (Kind::OpenMpi, _) => text(&NAMESPACE),
            (Kind::Hydra | Kind::Slurm, _) => Ok(None),
        }
    }

    /// Where the ranks meet: what is set, or what the launcher's variables tell.
    pub(super) fn master(&self, environment: &Environment, standing: &Standing) -> Result<(String, u16)> {
        let is_one_host = standing.local_world_size == standing.world_size && self.tells_hosts(environment);
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
        let missing = |variable: &Variable| fault(variable.name, VariableFault::NotSet, self.how_to_meet());
        Ok((addr.ok_or_else(|| missing(&MASTER_ADDR))?, port.ok_or_else(|| missing(&MASTER_PORT))?))
    }

    /// Whether the launcher says which ranks are on one host. Who sets torchrun's variables by hand may leave it out.
    fn tells_hosts(&self, environment: &Environment) -> bool {
        match &self.launcher.local_size {
            Some(local) => self.launcher.kind != Kind::Torch && environment.is_set(local.name),
            None => slurm::tasks_on_node(environment).is_ok_and(|tasks| tasks.is_some()),
        }
    }

    const fn how_to_meet(&self) -> &'static str {
        match self.launcher.kind {
            Kind::Torch => {
                "set MASTER_ADDR to the host of rank 0, as all ranks reach it, and MASTER_PORT to a free port there"
            }
            Kind::OpenMpi => {
                "give mpirun the host of rank 0 and a free port there: \
                 `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ...`"
            }
            Kind::Hydra => {
                "give mpiexec the host of rank 0 and a free port there: \
                 `mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 ...`"
            }
            Kind::Slurm => {
                "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there before you call srun"
            }
        }
    }
}

/// Whether a launcher has told this process its rank, rightly or not.
pub(super) fn has_started(environment: &Environment) -> bool {
    let [others @ .., _] = &LAUNCHERS;
    let told = others.iter().any(|launcher| environment.is_set(launcher.rank.name));
    told || !matches!(slurm::step(environment), Ok(None))
}

/// Refuses a rank that is not below the size.
fn below(rank: &Variable, value: usize, size_name: &str, size: usize) -> Result<usize> {
    if value < size {
        return Ok(value);
    }
    let reason = format!("ranks of {size_name} = {size} count from 0 to {size} - 1");
    Err(Error::setting(rank.name, value.to_string(), reason))
}

/// Refuses variables that mean nothing without a rank.
fn check_halves(environment: &Environment) -> Result<()> {
    let Some((half, kind)) = HALVES.iter().find(|(name, _)| environment.is_set(name)) else { return Ok(()) };
    let launcher = LAUNCHERS.iter().find(|launcher| launcher.kind == *kind);
    let rank = launcher.map_or("RANK", |launcher| launcher.rank.name);
    Err(fault(rank, VariableFault::NotSet, format!("{half} is set without it: {START}, or unset {half}")))
}

/// A port that ranks of one job agree on without talking, below those that the system gives out by itself.
fn port_of(job: String) -> u16 {
    const FIRST: u16 = 16_384;
    const COUNT: u64 = 16_384;
    FIRST + (super::fnv_1a(job.as_bytes()) % COUNT) as u16
}
