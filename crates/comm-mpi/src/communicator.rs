//! A communicator over MPI.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use comm_core::{
    Allocate, Call, CallOptions, Collective, Communicator, During, Error, Group, GroupId, Invalid,
    ReduceOrder, Result, Signature, is_unwinding,
};
use mpi::traits::Communicator as MpiComm;

use crate::collectives::{CheckedCall, Staging};
use crate::config::MpiConfig;
use crate::messages::Messages;
use crate::notice::{Notice, Scope};
use crate::pause::{Deadline, Pause};
use crate::raw::{BACKEND, CommHandle, Duplicate, NewComm, initialize};
use crate::session::{CallContext, Session};

/// Runs collectives with the nonblocking collectives of MPI, and messages with its messages.
///
/// The rules of [`Communicator`] apply, and those of [`PointToPoint`](comm_core::PointToPoint) and
/// [`Groups`](comm_core::Groups). Over MPI:
///
/// - The ranks compare their calls, unless [`MpiConfig::compare_calls`] is off. Counts that not
///   every rank knows are not compared: in a `gather_v`, `scatter_v` or `all_to_all_v` of
///   contradictory counts MPI returns an error, or leaves a part of a block unwritten.
/// - MPI cannot cancel a collective. A call that passes its deadline returns [`Error::Timeout`],
///   which names all other ranks, because MPI does not tell which are missing; the communicator is
///   unusable from then on, here and on the others. What happens to the memory is described at
///   [`CallMemoryMode`](crate::CallMemoryMode). [`Comm::monitored_barrier`] names the missing
///   ranks.
/// - A rank that dies ends the whole job, because `mpirun` kills the others. A rank that drops the
///   communicator, also in a panic, is named by [`Error::PeerLost`] or [`Error::Aborted`] on the
///   others. [`Comm::shrink`] is not supported.
/// - The operators of MPI are used where their results are those of comm-core: for integers, and
///   for sums and products of `f32` and `f64`. For all others MPI calls the kernels of comm-core.
///   [`Accumulate::F32`](comm_core::Accumulate::F32) is supported.
/// - MPI chooses the algorithm: [`CallOptions::algorithm`] may only be `mpi`. It guarantees no
///   order: [`ReduceOrder::Deterministic`] is an error. The order of an average of 16-bit floats is
///   MPI's, too.
/// - A buffer with blocks may have at most 2^31 - 1 elements ([`Invalid::TooLong`]); others, and
///   messages, may have any length.
/// - Calls are not recorded or counted.
/// - Only [`Comm::finalize`] gives a communicator back to MPI, because all ranks must have received
///   all messages before. Others use up one of those that MPI can have at a time, of which MPICH
///   has about 2000: a program that creates groups in a loop must finalize them.
///
/// Threads poll MPI while they wait, and yield the processor in between. Every thread that waits
/// makes progress on all operations of the process.
///
/// [`Comm::finalize`]: comm_core::Comm::finalize
/// [`Comm::monitored_barrier`]: comm_core::Comm::monitored_barrier
/// [`Comm::shrink`]: comm_core::Comm::shrink
#[derive(Debug)]
pub struct MpiCommunicator {
    messages: Messages,
    /// Serializes collectives from several threads.
    turn: Mutex<Staging>,
    session: Session,
}

/// The number of communicators that this process has created, except for groups of others.
static CREATED: AtomicU64 = AtomicU64::new(0);

impl MpiCommunicator {
    /// Creates a communicator of all processes of the job. Every process calls this, and waits for
    /// the others. Initializes MPI with `MPI_THREAD_MULTIPLE`, unless the program has done so, and
    /// then finalizes it when the process exits.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if MPI allows calls only from its main thread, or is
    /// finalized; [`Error::Timeout`]; [`Invalid::Setting`] on every rank if the ranks differ in
    /// [`MpiConfig::compare_calls`]; [`Error::Backend`] with MPI's class of the error and its text.
    pub fn world(config: MpiConfig) -> Result<Self> {
        initialize()?;
        Self::connect(CommHandle::duplicate_world()?, config, |_| GroupId::WORLD)
    }

    /// Creates a communicator of the processes of one of the program's, which it duplicates. Every
    /// process of it calls this, and waits for the others.
    ///
    /// # Errors
    /// As [`MpiCommunicator::world`].
    pub fn duplicate_of(comm: &impl MpiComm, config: MpiConfig) -> Result<Self> {
        initialize()?;
        Self::connect(CommHandle::duplicate_of(comm)?, config, GroupId)
    }

    /// Creates a communicator whose identifier follows from its number.
    fn connect(duplicate: Duplicate, config: MpiConfig, id: impl FnOnce(u64) -> GroupId) -> Result<Self> {
        let deadline = Deadline::after(config.timeout);
        let handle = CommHandle::duplicated(await_duplicate(duplicate, deadline)?)?;
        let membership = handle.membership();
        let mut this =
            Self::over(handle, (Group::new(GroupId::WORLD, membership)?, Session::UNKNOWN), config);
        this.session.instance = this.agree(deadline)?;
        this.session.group = Group::new(id(this.session.instance), membership)?;
        Ok(this)
    }

    /// Checks that all ranks have the same settings. Returns a number that no other communicator
    /// has.
    fn agree(&self, deadline: Deadline) -> Result<u64> {
        let session = &self.session;
        let compares = u64::from(session.config.compare_calls);
        let own = [compares, u64::from(std::process::id()), CREATED.fetch_add(1, Ordering::Relaxed)];
        let signature = Signature::new(session.group.id(), Collective::Duplicate, "");
        let all = session.all_words(&own, &CallContext { signature: &signature, sequence: 0, deadline })?;
        if all.chunks_exact(own.len()).any(|other| other[0] != compares) {
            let reason = "must be equal on every rank, but is not";
            return Err(Error::setting("compare_calls", session.config.compare_calls.to_string(), reason));
        }
        Ok(Signature::fingerprint_of(all))
    }

    pub(crate) fn over(handle: CommHandle, group: (Group, u64), config: MpiConfig) -> Self {
        Self {
            messages: Messages::default(),
            turn: Mutex::default(),
            session: Session::new(handle, group, config),
        }
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) const fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Makes the next call of the sequence, and records its failure.
    pub(crate) fn make_call<T>(
        &self,
        signature: &Signature,
        options: &CallOptions,
        call: impl FnOnce(&mut Staging, &CallContext<'_>) -> Result<T>,
    ) -> Result<T> {
        let session = &self.session;
        session.process.check()?;
        let mut staging = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        session.usable()?;
        let sequence = session.started.fetch_add(1, Ordering::AcqRel) + 1;
        let context = CallContext { signature, sequence, deadline: Deadline::after(options.timeout) };
        call(&mut staging, &context).map_err(|error| session.fail(error, Scope::COLLECTIVES, sequence))
    }
}

impl Communicator for MpiCommunicator {
    fn group(&self) -> Group {
        self.session.group
    }

    fn check(&self) -> Result<()> {
        self.session.process.check()?;
        self.session.poll_notices()?;
        self.session.usable()
    }

    fn run(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        let session = &self.session;
        let mut signature = call.check(session.group, options)?;
        check_options(&mut signature)?;
        match call {
            Call::MonitoredBarrier => {
                self.make_call(&signature, options, |_, context| session.monitored_barrier(context))
            }
            Call::Finalize => self.make_call(&signature, options, |_, context| {
                session.finalize(context, || self.messages.receive(session))
            }),
            call => {
                let call = CheckedCall::new(&signature, call, session)?;
                self.make_call(&signature, options, |staging, context| {
                    session.compare_calls(context)?;
                    call.run(session, staging, context)
                })
            }
        }
    }

    fn abort(&self, reason: &str) {
        if let Err(error) = self.session.process.check() {
            tracing::warn!(%error, reason, "not aborted");
            return;
        }
        let by = self.session.group.rank();
        self.session.fail(Error::Aborted { by, reason: reason.into() }, Scope::ALL, 0);
    }
}

/// Allocates on the heap: MPI registers memory itself.
impl Allocate for MpiCommunicator {}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        let session = &mut self.session;
        if !session.process.is_current() {
            return;
        }
        let after = session.started.load(Ordering::Acquire);
        let notice = if session.check_finalized().is_err() {
            None
        } else if is_unwinding() {
            Some(Notice::Aborted { scope: Scope::ALL, call: 0, reason: "its thread panicked".into() })
        } else {
            Some(Notice::Left { after })
        };
        self.messages.close(session);
        session.close(notice.as_ref());
    }
}

/// Checks the options of a call, and removes the name of the only algorithm, so that calls with and
/// without it are equal.
fn check_options(signature: &mut Signature) -> Result<()> {
    if !signature.algorithm.is_empty() {
        if signature.algorithm != BACKEND {
            let (name, collective) = (signature.algorithm.to_string(), signature.collective.name());
            return Err(Invalid::Algorithm { name, collective, known: BACKEND.into() }.into());
        }
        signature.algorithm = "".into();
    }
    if signature.order == ReduceOrder::Any {
        return Ok(());
    }
    Err(Error::setting("order", format!("{:?}", signature.order), "MPI promises no order"))
}

/// Waits for a duplicate of a communicator.
fn await_duplicate(duplicate: Duplicate, deadline: Deadline) -> Result<NewComm> {
    let Duplicate { mut operation, membership } = duplicate;
    let mut pause = Pause::new();
    while !operation.test()? {
        if pause.after_poll().is_some_and(|now| deadline.is_over(now)) {
            let waiting_for = (0..membership.size).filter(|rank| *rank != membership.rank).collect();
            return Err(Error::Timeout { waiting_for, after: deadline.after, during: During::Connect });
        }
    }
    operation.into_memory()
}
