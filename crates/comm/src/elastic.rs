//! Groups that shrink when ranks are lost and grow when processes join.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Comm, Error, Result, ShrinkOptions, Shrunk, Store};
use comm_tcp::{GroupConnector, GrowOptions, ListId, Member};

use crate::Config;
use crate::init::{Begun, RendezvousStore};

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
pub struct ElasticGroup(comm_tcp::ElasticGroup<Connector>);

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
        let (config, list) = (config.clone(), ListId::new(config.job, config.round));
        if config.join {
            let timeout = config.rendezvous_timeout;
            let connector = Connector { config, store: None };
            return comm_tcp::ElasticGroup::join(connector, list, timeout).map(Self);
        }
        let (comm, store) = crate::init::init_with_store(&config)?;
        Ok(Self(comm_tcp::ElasticGroup::new(Connector { config, store }, list, comm)))
    }

    /// Returns the communicator of the present group. Calls on a clone fail after
    /// [`grow`](Self::grow) and [`shrink`](Self::shrink) have replaced it.
    #[must_use]
    pub const fn comm(&self) -> &Comm {
        self.0.comm()
    }

    /// Returns whether this process has joined a running group, so that it has no state yet.
    #[must_use]
    pub const fn is_newcomer(&self) -> bool {
        self.0.is_newcomer()
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
        let config = &self.0.connector().config;
        crate::init::connect_devices(self.comm().shared_communicator(), config, config.rendezvous_timeout)
    }

    /// Admits processes that wait to join, and returns their number. Collective: every rank calls
    /// this at the same position in its sequence of calls. If no process waits, this costs one
    /// broadcast and one request of rank 0 to the store.
    ///
    /// The ranks keep their numbers, and the new ones follow. The new communicator has the options
    /// of the old one; the latter must not be used any more.
    ///
    /// If a process that was to be admitted exits or stops in the meantime, or the store fails,
    /// nothing has changed, and the result is 0. The same applies if rank 0 cannot reach the store,
    /// which is logged; it spends at most a tenth of its time on that.
    ///
    /// # Errors
    /// As any call on the present communicator. After the failure of a rank, the group can be
    /// [shrunk](Self::shrink); it is the new group or the present one, the same on all members that
    /// can still reach each other.
    pub fn grow(&mut self, options: &GrowOptions) -> Result<usize> {
        self.0.grow(options)
    }

    /// Goes on with the ranks that remain after a failure, as [`Comm::shrink`] does. Returns its
    /// result, whose communicator is also that of this group from now on.
    ///
    /// If a [growth](Self::grow) has failed, the ranks may have agreed during it already. Then this
    /// returns at once, and only [`ShrinkOptions::size_min`] applies.
    ///
    /// # Errors
    /// As [`Comm::shrink`].
    pub fn shrink(&mut self, options: &ShrinkOptions) -> Result<Shrunk<Comm>> {
        self.0.shrink(options)
    }
}

/// Connects the ranks of a group as configured.
#[derive(Debug)]
struct Connector {
    /// The configuration with which this process has joined the present group.
    config: Config,
    /// The store, while it is open.
    store: Option<RendezvousStore>,
}

impl GroupConnector for Connector {
    fn open_store(&mut self, rank: Option<usize>, timeout: Duration) -> Result<Arc<dyn Store>> {
        if self.store.is_none() {
            let rank = rank.unwrap_or(self.config.rank);
            let config = Config { rank, rendezvous_timeout: timeout, ..self.config.clone() };
            self.store = Some(RendezvousStore::open(&Begun::now(&config, None))?);
        }
        self.store.as_ref().map(|open| Arc::clone(&open.store)).ok_or_else(not_open)
    }

    fn launcher_id(&self) -> Option<u64> {
        self.config.join_id
    }

    fn close_store(&mut self) {
        self.store.take_if(|store| !store.is_served_here());
    }

    fn connect(&mut self, member: Member) -> Result<Comm> {
        let Member { rank, world_size, round, timeout, check, .. } = member;
        let joined = Config {
            rank,
            world_size,
            round,
            rendezvous_timeout: timeout,
            join: false,
            ..self.config.clone()
        };
        let store = self.store.as_ref().ok_or_else(not_open)?;
        let comm = Begun::now(&joined, check).meet(store)?;
        self.config = Config { rendezvous_timeout: self.config.rendezvous_timeout, ..joined };
        Ok(comm)
    }

    fn clock(&self) -> fn() -> Instant {
        Instant::now
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

#[cold]
fn not_open() -> Error {
    Error::Internal("the store is not open".into())
}
