//! A group that shrinks when ranks are lost and grows when processes join.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Comm, During, Error, Loss, Membership, ReduceOp, Refusal, Result, ShrinkOptions, Shrunk, Store,
};

use crate::backoff::Backoff;
use crate::leftovers::{Announcement, Leftovers};
use crate::member::{Check, Member};
use crate::wait_list::{Admission, Admitted, WaitList};

/// The shortest time between two attempts to join after one has failed.
const RETRY: Duration = Duration::from_millis(100);

/// The time to wait for the cause for which a member has left the new group.
const CAUSE_TIMEOUT: Duration = Duration::from_millis(100);
/// The time between two looks for that cause.
const CAUSE_POLL: Duration = Duration::from_millis(1);

/// Options of [`ElasticGroup::grow`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrowOptions {
    /// The time to connect to the processes that are admitted. If one of them is stopped, all ranks
    /// wait that long; if it exits, they go on at once.
    pub timeout: Duration,
    /// The largest group. Further processes keep waiting.
    pub size_max: usize,
    /// The smallest part of the present group that may go on in the new one if ranks are lost
    /// during the growth; see [`ShrinkOptions::size_min`], which should be the same: more than half
    /// of the present group, so that at most one side of a split network goes on.
    pub size_min: usize,
}

impl Default for GrowOptions {
    /// Returns a timeout of ten seconds, and any number of ranks.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), size_max: usize::MAX, size_min: 1 }
    }
}

/// Setters, as in `GrowOptions::default().size_max(8)`.
impl GrowOptions {
    comm_core::setters!(timeout: Duration, size_max: usize, size_min: usize);
}

/// Opens the store of a job, and connects the ranks that meet in it.
pub trait GroupConnector {
    /// Returns the store, and opens it if it is not open. `rank` is that of this process in its
    /// group; `None` if the process has yet to join one. Rank 0 may be the one that serves it.
    ///
    /// # Errors
    /// The errors of the store.
    fn open_store(&mut self, rank: Option<usize>, timeout: Duration) -> Result<Arc<dyn Store>>;

    /// Returns the number by which the launcher of this process knows it, if there is one
    /// ([`WaitList::with_id`](crate::WaitList::with_id)). The default is `None`.
    fn launcher_id(&self) -> Option<u64> {
        None
    }

    /// Closes the store, unless this process serves it.
    fn close_store(&mut self);

    /// Meets the other ranks in the store, which is open, and connects to them. The connector adds
    /// to the member what it knows itself: the job, the settings and the rank that serves the
    /// store.
    ///
    /// # Errors
    /// As [`connect`](crate::connect) and [`Rendezvous::finish`](crate::Rendezvous::finish).
    fn connect(&mut self, member: Member) -> Result<Comm>;

    /// Returns the clock of time limits.
    fn clock(&self) -> fn() -> Instant;

    /// Stops the calling thread for some time.
    fn sleep(&self, duration: Duration);
}

/// The list in which the processes of a job wait to join its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListId {
    /// The number of the job.
    pub job: u64,
    /// The round in which the first group of the job met.
    pub round: u64,
}

impl ListId {
    /// Creates the id of the list of a job whose first group met in this round.
    #[must_use]
    pub const fn new(job: u64, round: u64) -> Self {
        Self { job, round }
    }

    /// Returns the round of the rendezvous of the processes that the leader admits with this
    /// number; 0 is that of the founders.
    pub(crate) const fn round_of(self, admission: u64) -> u64 {
        self.round.wrapping_add(admission << 32)
    }

    const fn admission_of(self, round: u64) -> u64 {
        round.wrapping_sub(self.round) >> 32
    }
}

/// A rank of a group that goes on without the ranks that it loses, and admits processes that join
/// it.
///
/// Its communicator is replaced by [`shrink`](Self::shrink) and [`grow`](Self::grow). The leader
/// has no state of its own that the group needs, so any rank can succeed it.
#[derive(Debug)]
pub struct ElasticGroup<C> {
    connector: C,
    list: ListId,
    comm: Comm,
    is_newcomer: bool,
    growths: u64,
    leftovers: Leftovers,
    /// The pause of a leader that could not reach the store.
    backoff: Backoff,
    /// The result of a shrink during a growth that failed, which the next shrink returns.
    remaining: Option<Result<Shrunk<Comm>>>,
}

/// The group in which a member goes on after the agreement on a growth.
enum Next {
    /// The new group, and the result of the second barrier in it.
    New(Comm, Result<()>),
    /// The present one, and the result of the growth.
    Present(Result<usize>),
}

impl<C: GroupConnector> ElasticGroup<C> {
    /// Creates the first group of a job, whose ranks have met in the round of the list.
    #[must_use]
    pub fn new(connector: C, list: ListId, comm: Comm) -> Self {
        let leftovers = Leftovers::new(0, comm.size());
        let backoff = Backoff::default();
        Self { connector, list, comm, is_newcomer: false, growths: 0, leftovers, backoff, remaining: None }
    }

    /// Waits until a running group has admitted this process and is connected to it. Once they are
    /// connected, waits for the decision of the group also after the time is over.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no group has admitted this process, and [`Error::Handshake`] with
    /// [`Refusal::GroupEnded`](comm_core::Refusal::GroupEnded) if the group has ended; the errors
    /// of the rendezvous and of the store if they last until the deadline.
    pub fn join(mut connector: C, list: ListId, timeout: Duration) -> Result<Self> {
        let clock = connector.clock();
        let began = clock();
        let left = || timeout.saturating_sub(clock().saturating_duration_since(began));
        loop {
            let joined = try_to_join(&mut connector, list, &left);
            connector.close_store();
            match joined {
                Ok(Some((Admission { round, membership, .. }, comm))) => {
                    let leftovers = Leftovers::new(list.admission_of(round), membership.size);
                    return Ok(Self { is_newcomer: true, leftovers, ..Self::new(connector, list, comm) });
                }
                Ok(None) => tracing::debug!("passed over by the group: waiting again"),
                Err(error) if is_final(&error) => return Err(error),
                // The store of a former group says nothing about the present one.
                Err(Error::Handshake { refusal: Refusal::StoreClosing, .. }) if left().is_zero() => {
                    let (waiting_for, during) = (Vec::new(), During::Rendezvous);
                    return Err(Error::Timeout { waiting_for, after: timeout, during });
                }
                Err(error) if left().is_zero() => return Err(error),
                Err(error) => {
                    tracing::info!(%error, "could not join the group: waiting again");
                    connector.sleep(RETRY.min(left()));
                }
            }
        }
    }

    /// Returns the communicator of the present group. Calls on a clone fail after
    /// [`grow`](Self::grow) and [`shrink`](Self::shrink) have replaced it.
    #[must_use]
    pub const fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Returns the connector.
    #[must_use]
    pub const fn connector(&self) -> &C {
        &self.connector
    }

    /// Returns the number of times that the group has grown since this process is in it.
    #[must_use]
    pub const fn growths(&self) -> u64 {
        self.growths
    }

    /// Returns whether this process has joined a running group, so that it has no state yet.
    #[must_use]
    pub const fn is_newcomer(&self) -> bool {
        self.is_newcomer
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
    /// which is logged; it waits for an answer for at most a quarter of the timeout of a call, and
    /// tries again after nine times that time.
    ///
    /// # Errors
    /// As any call on the present communicator. After the failure of a rank, the group can be
    /// [shrunk](Self::shrink); it is the new group or the present one, the same on all members that
    /// can still reach each other.
    pub fn grow(&mut self, options: &GrowOptions) -> Result<usize> {
        let admitted = if self.comm.rank() == 0 { self.admit(options) } else { None };
        let mut plan = admitted.as_ref().map_or([0; 4], plan_of);
        self.comm.broadcast(0, &mut plan)?;
        let [round, newcomers, first, last] = plan;
        let newcomers = newcomers as usize;
        if newcomers == 0 {
            return Ok(0);
        }
        let world_size = self.comm.size() + newcomers;
        let announced =
            Announcement { admission: self.list.admission_of(round), world_size, processes: [first, last] };
        self.leftovers.announce(&announced);
        match self.try_to_grow(round, world_size, admitted.as_ref(), options) {
            Next::New(comm, confirmed) => {
                self.leftovers.succeed(&announced);
                std::mem::replace(&mut self.comm, comm).leave();
                self.growths += 1;
                confirmed?;
                self.remove_leftovers();
                Ok(newcomers)
            }
            Next::Present(grown) => {
                self.leftovers.fail(&announced);
                grown
            }
        }
    }

    /// Connects to the new group, and decides with the other members whether to go on in it.
    fn try_to_grow(
        &mut self,
        round: u64,
        world_size: usize,
        admitted: Option<&Admitted>,
        options: &GrowOptions,
    ) -> Next {
        let met = self.meet(round, world_size, admitted, options);
        // A process that joins does not use the store after this barrier. Before, it may give up.
        let passed =
            met.as_ref().map_err(Error::clone).and_then(|comm| comm.with_timeout(options.timeout).barrier());
        match (self.agree(passed.is_ok(), options), met) {
            (Ok(true), Ok(comm)) => self.confirm(comm, options),
            (Ok(_), _) => {
                let failure = passed.err().map(|error| error.to_string()).unwrap_or_default();
                tracing::warn!(failure, "could not admit the waiting processes: going on without them");
                Next::Present(Ok(0))
            }
            // The new communicator is dropped, so that those who know the result do not wait for
            // this rank there.
            (Err(error), _) => Next::Present(Err(error)),
        }
    }

    /// Passes the second barrier, in the new group, in which all members are known to be connected.
    /// The new processes learn from it that the members go on with them.
    ///
    /// If it fails, another member may have lost a rank before it knew the result of the agreement,
    /// and remained in the present group. Then nobody has passed the barrier. So the remaining
    /// members shrink the present group: it tells them whether all of them know the result. If they
    /// do, others may have passed the barrier, and they go on in the new group.
    ///
    /// A member that goes on in the new group leaves the present one. If too few others remain
    /// there for that reason, its leaving tells them the result.
    fn confirm(&mut self, comm: Comm, options: &GrowOptions) -> Next {
        // A member that does not learn the result in time names the rank at fault before this ends.
        let decision = decision_timeout(&comm, options.timeout);
        let Err(error) = comm.with_timeout(decision).barrier() else { return Next::New(comm, Ok(())) };
        let cause = self.cause_in_present_group(&error);
        // The agreement was the last call. Every communicator that can shrink records its calls.
        let calls = self.comm.flight_record().map_or(Vec::new(), |record| record.calls);
        let agreement = calls.last().map_or(0, |call| call.sequence);
        let shrink = ShrinkOptions::default()
            .timeout(self.agreement_timeout(options))
            .patience(options.timeout)
            .size_min(options.size_min);
        let remaining = self.comm.shrink(&shrink);
        let all_know = match &remaining {
            Ok(remaining) => remaining.completed >= agreement,
            Err(_) => !self.comm.departed().is_empty(),
        };
        if all_know {
            return Next::New(comm, Err(error));
        }
        self.remaining = Some(remaining);
        Next::Present(Err(cause.unwrap_or(error)))
    }

    /// Returns the cause of an error in the new group, if the present group reports one.
    ///
    /// A member that fails reports the cause in the present group before it leaves the new one,
    /// but the two messages come on different streams.
    fn cause_in_present_group(&self, error: &Error) -> Option<Error> {
        let clock = self.connector.clock();
        let began = clock();
        let is_member = |peer: &usize| *peer < self.comm.size();
        let has_left = matches!(error.root_cause(), Error::PeerLost { peer, .. } if is_member(peer));
        loop {
            let cause = self.comm.check().err();
            let is_over = !has_left || clock().saturating_duration_since(began) >= CAUSE_TIMEOUT;
            if cause.is_some() || is_over {
                return cause;
            }
            self.connector.sleep(CAUSE_POLL);
        }
    }

    /// Returns whether all members of the present group have passed the barrier in the new one. A
    /// member whose store fails at the end of the rendezvous does not know whether the others are
    /// connected, and a process that joins may die while they pass the barrier.
    fn agree(&self, has_passed: bool, options: &GrowOptions) -> Result<bool> {
        let comm = self.comm.with_timeout(self.agreement_timeout(options));
        Ok(comm.all_reduce_scalar(u64::from(has_passed), ReduceOp::Min)? == 1)
    }

    /// Returns the time to agree. Some may find only at the deadline of the rendezvous or of the
    /// barrier that they have not passed it.
    fn agreement_timeout(&self, options: &GrowOptions) -> Duration {
        self.comm.options().timeout.max(options.timeout.saturating_mul(2))
    }

    /// Admits waiting processes on rank 0.
    fn admit(&mut self, options: &GrowOptions) -> Option<Admitted> {
        let size = self.comm.size();
        let most = options.size_max.saturating_sub(size);
        let (clock, began) = (self.connector.clock(), (self.connector.clock())());
        if most == 0 || !self.backoff.is_over(began) {
            return None;
        }
        // The others wait for this rank in a call: a store that does not answer must not delay it.
        let patience = options.timeout.min(self.comm.options().timeout / 4);
        let store = self.connector.open_store(Some(0), patience);
        let admitted = store.and_then(|store| {
            wait_list(&*store, self.list, clock).admit(size, most, [patience, options.timeout])
        });
        admitted.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot look for processes that want to join");
            // The next time, a new connection is made, which may succeed.
            self.connector.close_store();
            self.backoff.begin(began, clock());
            None
        })
    }

    /// Connects to the ranks of the next group.
    fn meet(
        &mut self,
        round: u64,
        world_size: usize,
        admitted: Option<&Admitted>,
        options: &GrowOptions,
    ) -> Result<Comm> {
        let (rank, clock) = (self.comm.rank(), self.connector.clock());
        let began = clock();
        let store = self.connector.open_store(Some(rank), options.timeout)?;
        let mut member = Member::new(Membership { rank, size: world_size });
        (member.job, member.round, member.clock) = (self.list.job, round, clock);
        member.timeout = options.timeout.saturating_sub(clock().saturating_duration_since(began));
        member.check = Some(self.check(Arc::clone(&store), admitted));
        let met = self.connector.connect(member);
        if rank != 0 {
            // Another rank may serve it by the next time.
            self.connector.close_store();
        }
        Ok(met?.with_call_options(self.comm.options().clone()))
    }

    /// Removes the keys that no process needs any more, on the leader.
    fn remove_leftovers(&mut self) {
        if self.comm.rank() != 0 {
            return self.leftovers.forget_removed();
        }
        let (list, clock) = (self.list, self.connector.clock());
        let opened = self.connector.open_store(Some(0), Duration::ZERO);
        let removed =
            opened.and_then(|store| self.leftovers.remove(&*store, list, &wait_list(&*store, list, clock)));
        if let Err(error) = removed {
            tracing::debug!(%error, "cannot remove keys that are not needed any more");
        }
    }

    /// Returns a check that fails if a member of the present group has failed, or one of the
    /// processes that were `admitted` has exited.
    fn check(&self, store: Arc<dyn Store>, admitted: Option<&Admitted>) -> Check {
        let (comm, list, clock) = (self.comm.clone(), self.list, self.connector.clock());
        let numbers = admitted.map_or(Vec::new(), |admitted| admitted.numbers.clone());
        Arc::new(move || {
            comm.check()?;
            let list = wait_list(&*store, list, clock);
            for (peer, number) in (comm.size()..).zip(&numbers) {
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
    /// If a [growth](Self::grow) has failed, the ranks may have agreed during it already. Then this
    /// returns at once, and only [`ShrinkOptions::size_min`] applies.
    ///
    /// # Errors
    /// As [`Comm::shrink`].
    pub fn shrink(&mut self, options: &ShrinkOptions) -> Result<Shrunk<Comm>> {
        let shrunk = match self.remaining.take() {
            Some(shrunk) => shrunk.and_then(|shrunk| options.check_size(shrunk.ranks.len()).map(|()| shrunk)),
            None => self.comm.shrink(options),
        }?;
        self.comm = shrunk.comm.clone();
        Ok(shrunk)
    }
}

/// Returns whether another attempt to join would fail in the same way.
const fn is_final(error: &Error) -> bool {
    match error {
        // The rank that served the store has left, and another one may serve it.
        Error::Handshake { refusal: Refusal::StoreClosing, .. } => false,
        Error::Invalid(_) | Error::Handshake { .. } | Error::Internal(_) => true,
        _ => false,
    }
}

/// Returns the time to learn the decision of the members: longer than
/// [`ElasticGroup::agreement_timeout`], unless that is unlimited.
fn decision_timeout(comm: &Comm, growth: Duration) -> Duration {
    comm.options().timeout.saturating_add(growth.saturating_mul(2))
}

/// Returns the leader's message to the other members about an admission.
fn plan_of(admitted: &Admitted) -> [u64; 4] {
    let Admitted { round, numbers, .. } = admitted;
    let number = |number: Option<&u64>| number.copied().unwrap_or_default();
    [*round, numbers.len() as u64, number(numbers.first()), number(numbers.last())]
}

fn wait_list(store: &dyn Store, list: ListId, clock: fn() -> Instant) -> WaitList<'_> {
    WaitList::new(store, list.job, list.round).with_clock(clock)
}

/// Waits for an admission, and takes part in its rendezvous. Returns `None` if the group has passed
/// over this process.
fn try_to_join(
    connector: &mut impl GroupConnector,
    list: ListId,
    left: &dyn Fn() -> Duration,
) -> Result<Option<(Admission, Comm)>> {
    let (store, clock) = (connector.open_store(None, left())?, connector.clock());
    let place = wait_list(&*store, list, clock).with_id(connector.launcher_id()).enter(left())?;
    let Some(admission) = place.wait(left())? else {
        place.withdraw()?;
        return Ok(None);
    };
    let mut member = Member::new(admission.membership);
    (member.job, member.round, member.clock) = (list.job, admission.round, clock);
    member.timeout = admission.timeout.min(left());
    let comm = connector.connect(member)?;
    comm.with_timeout(left()).barrier()?;
    // The members agree now, in at most this time, and may go on without this process.
    comm.with_timeout(decision_timeout(&comm, admission.timeout)).barrier()?;
    place.finish();
    Ok(Some((admission, comm)))
}
