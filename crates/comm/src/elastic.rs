//! Groups that shrink when ranks are lost and grow when processes join.

use std::sync::Arc;
use std::time::Duration;

use comm_core::{Comm, During, Error, Loss, Result, ShrinkOptions, Shrunk, Store};
use comm_tcp::{Admission, Admitted, Rendezvous, WaitList, WaitingProcess};

use crate::Config;
use crate::init::{Begun, Check, RendezvousStore};

/// The shortest time between two attempts to join after one has failed.
const RETRY: Duration = Duration::from_millis(100);

/// Options of [`ElasticGroup::grow`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrowOptions {
    /// The time to connect to the processes that are admitted. If one of them is stopped, all ranks
    /// wait that long; if it exits, they go on at once.
    pub timeout: Duration,
    /// The largest group. Further processes keep waiting.
    pub size_max: usize,
}

impl Default for GrowOptions {
    /// Returns a timeout of ten seconds, and any number of ranks.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), size_max: usize::MAX }
    }
}

/// Setters, as in `GrowOptions::default().size_max(8)`.
impl GrowOptions {
    comm_core::setters!(timeout: Duration, size_max: usize);
}

/// A group that goes on without the ranks that it loses, and admits processes that join it.
///
/// Its communicator is replaced by [`shrink`](Self::shrink) and [`grow`](Self::grow). A process
/// joins through the store, so that must outlive the ranks: `commctl run` serves one; otherwise
/// rank 0 does, and if it is lost, the next rank 0 serves a new store at the same address, if that
/// is an address of its host.
///
/// ```no_run
/// use comm::{Config, ElasticGroup, GrowOptions, ReduceOp, ShrinkOptions};
///
/// # fn main() -> comm::Result<()> {
/// let mut group = ElasticGroup::join(&Config::from_env()?)?;
/// let mut step = 0_u64;
/// let mut is_complete = !group.is_newcomer();
/// while step < 1000 {
///     // Newcomers get the state of rank 0, and so do ranks that differ in the last complete step.
///     if !is_complete || step % 10 == 0 && group.grow(&GrowOptions::default())? > 0 {
///         let mut state = [step];
///         group.comm().broadcast(0, &mut state)?;
///         (step, is_complete) = (state[0], true);
///     }
///     match group.comm().all_reduce_scalar(1_u64, ReduceOp::Sum) {
///         Ok(ranks) => step += 1,
///         Err(error) if error.is_fatal() => {
///             group.shrink(&ShrinkOptions::default())?;
///             is_complete = false;
///         }
///         Err(error) => return Err(error),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ElasticGroup {
    /// The configuration with which this process has joined the present group.
    config: Config,
    /// The round of the first group.
    first_round: u64,
    comm: Comm,
    is_newcomer: bool,
    /// The store, on rank 0 once it has used it or serves it.
    store: Option<RendezvousStore>,
}

impl ElasticGroup {
    /// Creates the first group with the other ranks, as [`init_with`](crate::init_with) does, or
    /// joins the running group if [`Config::join`] is set.
    ///
    /// A process that joins waits until the group calls [`grow`](Self::grow), for at most
    /// [`Config::rendezvous_timeout`].
    ///
    /// # Errors
    /// As [`init_with`](crate::init_with); [`Error::Timeout`] if no group has admitted this
    /// process, and [`Error::Handshake`] with [`Refusal::GroupEnded`](crate::Refusal::GroupEnded)
    /// if the group has ended.
    pub fn join(config: &Config) -> Result<Self> {
        if config.join {
            return Self::join_running(config);
        }
        let (comm, store) = crate::init::init_with_store(config)?;
        let first_round = config.round;
        Ok(Self { config: config.clone(), first_round, comm, is_newcomer: false, store })
    }

    /// Waits until a running group has admitted this process and is connected to it.
    fn join_running(config: &Config) -> Result<Self> {
        let begun = Begun::now(config, None);
        loop {
            match Self::try_to_join(config, &begun) {
                Ok(Some(group)) => return Ok(group),
                Ok(None) => tracing::debug!("passed over by the group: waiting again"),
                Err(error @ (Error::Invalid(_) | Error::Handshake { .. })) => return Err(error),
                Err(error) if begun.left().is_zero() => return Err(error),
                Err(error) => {
                    tracing::info!(%error, "could not join the group: waiting again");
                    std::thread::sleep(RETRY.min(begun.left()));
                }
            }
        }
    }

    /// Waits for an admission, and takes part in its rendezvous. Returns `None` if the group has
    /// passed over this process.
    fn try_to_join(config: &Config, begun: &Begun<'_>) -> Result<Option<Self>> {
        let waiting = Config { rendezvous_timeout: begun.left(), ..config.clone() };
        let store = RendezvousStore::open(&Begun::now(&waiting, None))?;
        let place = WaitList::new(&*store.store, config.job, config.round).enter(begun.left())?;
        let Some(Admission { round, membership, timeout, .. }) = place.wait(begun.left())? else {
            return Ok(None);
        };
        let joined = Config {
            rank: membership.rank,
            world_size: membership.size,
            rendezvous_timeout: timeout.min(begun.left()),
            round,
            join: false,
            ..waiting
        };
        let comm = Begun::now(&joined, None).meet(&store)?;
        finish(place);
        let first_round = config.round;
        let config = Config { rendezvous_timeout: config.rendezvous_timeout, ..joined };
        Ok(Some(Self { first_round, comm, config, is_newcomer: true, store: None }))
    }

    /// Returns the communicator of the present group. Calls on a clone fail after
    /// [`grow`](Self::grow) and [`shrink`](Self::shrink) have replaced it.
    #[must_use]
    pub const fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Returns whether this process has joined a running group, so that it has no state yet.
    #[must_use]
    pub const fn is_newcomer(&self) -> bool {
        self.is_newcomer
    }

    /// Creates a communicator of the present group for host and device buffers, as
    /// [`Config::devices`] specifies. Every rank calls this, after each change of the group.
    ///
    /// A failure of either side is a failure of both: then drop it, and
    /// [shrink](Self::shrink) the group.
    ///
    /// # Errors
    /// As [`HybridCommunicator::connect`](crate::HybridCommunicator::connect).
    #[cfg(feature = "nccl")]
    pub fn connect_devices(&self) -> Result<crate::HybridCommunicator> {
        let timeout = self.config.rendezvous_timeout;
        crate::init::connect_devices(self.comm.shared_communicator(), &self.config, timeout)
    }

    /// Admits processes that wait to join, and returns their number. Collective: every rank calls
    /// this at the same position in its sequence of calls. If no process waits, this costs one
    /// broadcast and one request of rank 0 to the store.
    ///
    /// The ranks keep their numbers, and the new ones follow. The new communicator has the options
    /// of the old one; the latter must not be used any more.
    ///
    /// If a process that was to be admitted exits in the meantime, nothing has changed, and the
    /// result is 0. The same applies if rank 0 cannot reach the store, which is logged.
    ///
    /// # Errors
    /// As any call on the present communicator. After the failure of a rank, the group can be
    /// [shrunk](Self::shrink).
    pub fn grow(&mut self, options: &GrowOptions) -> Result<usize> {
        let admitted = if self.comm.rank() == 0 { self.admit(options) } else { None };
        let mut plan =
            admitted.as_ref().map_or([0; 2], |admitted| [admitted.round, admitted.numbers.len() as u64]);
        self.comm.broadcast(0, &mut plan)?;
        let [round, newcomers] = plan;
        let newcomers = newcomers as usize;
        if newcomers == 0 {
            return Ok(0);
        }
        match self.meet(round, newcomers, admitted, options) {
            Ok(comm) => {
                self.comm = comm;
                Ok(newcomers)
            }
            Err(error) => {
                self.comm.check()?;
                tracing::warn!(%error, "could not admit {newcomers} processes: going on without them");
                Ok(0)
            }
        }
    }

    /// Admits waiting processes on rank 0.
    fn admit(&mut self, options: &GrowOptions) -> Option<Admitted> {
        let most = options.size_max.saturating_sub(self.comm.size());
        if most == 0 {
            return None;
        }
        let admitted = self.take_store(options.timeout).and_then(|store| {
            let list = WaitList::new(&*store.store, self.config.job, self.first_round);
            let admitted = list.admit(self.comm.size(), most, options.timeout);
            // Without it, a new connection is made, which may succeed.
            if admitted.is_ok() || store.is_served_here() {
                self.keep_store(store);
            }
            admitted
        });
        admitted.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for processes that want to join");
            None
        })
    }

    /// Takes the store, or connects to it. Rank 0 serves it if it is to and does not yet.
    fn take_store(&mut self, timeout: Duration) -> Result<RendezvousStore> {
        if let Some(store) = self.store.take() {
            return Ok(store);
        }
        let config = Config { rank: self.comm.rank(), rendezvous_timeout: timeout, ..self.config.clone() };
        RendezvousStore::open(&Begun::now(&config, None))
    }

    /// Keeps the store on rank 0. The other ranks connect again for each rendezvous, because
    /// another rank may serve it by then.
    fn keep_store(&mut self, store: RendezvousStore) {
        if self.comm.rank() == 0 {
            self.store = Some(store);
        }
    }

    /// Connects to the ranks of the next group.
    fn meet(
        &mut self,
        round: u64,
        newcomers: usize,
        admitted: Option<Admitted>,
        options: &GrowOptions,
    ) -> Result<Comm> {
        let store = self.take_store(options.timeout)?;
        let check = self.check(Arc::clone(&store.store), admitted);
        let config = Config {
            rank: self.comm.rank(),
            world_size: self.comm.size() + newcomers,
            round,
            rendezvous_timeout: options.timeout,
            ..self.config.clone()
        };
        let met = Begun::now(&config, Some(check)).meet(&store);
        if met.is_ok() && self.comm.rank() == 0 {
            let Config { job, round, world_size, .. } = self.config;
            if let Err(error) = Rendezvous::remove(&*store.store, job, round, world_size) {
                tracing::debug!(%error, "cannot remove the keys of the last round");
            }
        }
        self.keep_store(store);
        let comm = met?.with_call_options(self.comm.options().clone());
        self.config = Config { rendezvous_timeout: self.config.rendezvous_timeout, ..config };
        Ok(comm)
    }

    /// Returns a check that fails if a member of the present group has failed, or one of the
    /// processes that were `admitted` has exited.
    fn check(&self, store: Arc<dyn Store>, admitted: Option<Admitted>) -> Check {
        let (comm, job, first_round) = (self.comm.clone(), self.config.job, self.first_round);
        Arc::new(move || {
            comm.check()?;
            let list = WaitList::new(&*store, job, first_round);
            let numbers = admitted.as_ref().map_or(&[][..], |admitted| &admitted.numbers);
            for (peer, number) in (comm.size()..).zip(numbers) {
                if list.has_left(*number)? {
                    return Err(Error::PeerLost { peer, during: During::Rendezvous, loss: Loss::Closed });
                }
            }
            Ok(())
        })
    }

    /// Goes on with the ranks that remain after a failure, as [`Comm::shrink`] does. Returns its
    /// result, whose communicator is also that of this group from now on.
    ///
    /// # Errors
    /// As [`Comm::shrink`].
    pub fn shrink(&mut self, options: &ShrinkOptions) -> Result<Shrunk<Comm>> {
        let shrunk = self.comm.shrink(options)?;
        self.comm = shrunk.comm.clone();
        Ok(shrunk)
    }
}

/// Leaves the list of waiting processes. The group no longer looks at it, so errors do not matter.
fn finish(place: WaitingProcess<'_>) {
    if let Err(error) = place.finish() {
        tracing::debug!(%error, "the store broke after this process had joined the group");
    }
}
