//! The state that all calls of a communicator share: failures, peers that left, and waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{During, Error, Failure, Group, Invalid, Loss, Process, Result, Signature, wire};

use crate::config::MpiConfig;
use crate::notice::{Notice, Scope};
use crate::pause::{Deadline, Pause};
use crate::raw::{CommHandle, Operation, PinnedMemory};

/// The tags of messages of MPI. Bodies of long messages have tags of their own, from
/// [`Tag::BODIES`] on.
#[derive(Debug)]
pub(crate) struct Tag;

impl Tag {
    /// Headers of messages between two ranks.
    pub(crate) const MESSAGE: i32 = 0;
    /// Notices.
    pub(crate) const NOTICE: i32 = 1;
    /// Monitored barriers: messages to rank 0, and its answers.
    pub(crate) const ARRIVAL: i32 = 2;
    /// Answers of rank 0 in monitored barriers.
    pub(crate) const ANSWER: i32 = 3;
    /// The first tag of bodies.
    pub(crate) const BODIES: i32 = 4;
    /// The largest tag that every MPI has.
    pub(crate) const MAX: i32 = 32767;
}

/// The time for which a call may still end after another rank has failed in a later one.
const LATER_CALL_GRACE: Duration = Duration::from_secs(2);

/// A collective in progress.
#[derive(Debug)]
pub(crate) struct CallContext<'a> {
    pub(crate) signature: &'a Signature,
    pub(crate) sequence: u64,
    pub(crate) deadline: Deadline,
}

impl CallContext<'_> {
    pub(crate) fn during(&self) -> During {
        During::Call { call: Box::new(self.signature.clone()), sequence: self.sequence }
    }
}

/// The shared state of a communicator.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) handle: CommHandle,
    pub(crate) group: Group,
    /// A number that no other communicator of the job has. MPI may give the context of a freed one
    /// to a new one, in which messages of the old one can then arrive.
    pub(crate) instance: u64,
    /// The numbers of short messages to and from each rank.
    traffic: Vec<[AtomicU64; 2]>,
    pub(crate) config: MpiConfig,
    /// The failure of collectives.
    pub(crate) collectives: Failure,
    /// The failure of messages.
    pub(crate) messages: Failure,
    peers: Mutex<Peers>,
    is_finalized: AtomicBool,
    /// The number of short messages that this rank had sent when all ranks had received them.
    settled: AtomicU64,
    /// The number of the last collective that was started.
    pub(crate) started: AtomicU64,
    /// The number of the collective in which another rank failed; 0 if none.
    failed_call: AtomicU64,
    /// Whether operations are pending that nobody waits for any more.
    has_abandoned: AtomicBool,
    pub(crate) process: Process,
}

#[derive(Debug, Default)]
struct Peers {
    /// The last call of each rank that has closed the communicator.
    left: BTreeMap<usize, u64>,
    /// Notices on their way.
    notices: Vec<Operation<Vec<u8>>>,
}

impl Session {
    /// The number of a communicator whose ranks have not agreed on its number. They leave short
    /// messages of those that have where they are.
    pub(crate) const UNKNOWN: u64 = 0;

    pub(crate) fn new(handle: CommHandle, (group, instance): (Group, u64), config: MpiConfig) -> Self {
        Self {
            handle,
            group,
            instance,
            traffic: (0..group.size()).map(|_| Default::default()).collect(),
            config,
            collectives: Failure::default(),
            messages: Failure::default(),
            peers: Mutex::default(),
            is_finalized: AtomicBool::new(false),
            settled: AtomicU64::new(u64::MAX),
            started: AtomicU64::new(0),
            failed_call: AtomicU64::new(0),
            has_abandoned: AtomicBool::new(false),
            process: Process::current(),
        }
    }

    /// Returns an error if no collectives can run.
    pub(crate) fn usable(&self) -> Result<()> {
        self.check_finalized()?;
        self.collectives.usable()
    }

    pub(crate) fn check_finalized(&self) -> Result<()> {
        if self.is_finalized.load(Ordering::Acquire) { Err(Invalid::Finalized.into()) } else { Ok(()) }
    }

    /// Leaves the group: waits until all ranks do, and until every short message has been received.
    /// `receive` receives messages between two ranks.
    pub(crate) fn finalize(&self, context: &CallContext<'_>, receive: impl Fn() -> Result<()>) -> Result<()> {
        self.compare_calls(context)?;
        self.is_finalized.store(true, Ordering::Release);
        let sent = self.sent();
        let expected = self.exchange_words(&sent, context)?;
        let mut pause = Pause::new();
        while self.traffic.iter().zip(&expected).any(|(one, sent)| one[1].load(Ordering::Acquire) < *sent) {
            receive()?;
            self.poll_notices()?;
            while self.recv_short(Tag::ARRIVAL)?.is_some() || self.recv_short(Tag::ANSWER)?.is_some() {}
            if pause.after_poll().is_some_and(|now| context.deadline.is_over(now)) {
                return Err(self.timeout(context));
            }
        }
        self.barrier(context)?;
        self.settled.store(sent.iter().sum(), Ordering::Release);
        Ok(())
    }

    /// Returns the numbers of short messages that this rank has sent.
    fn sent(&self) -> Vec<u64> {
        self.traffic.iter().map(|one| one[0].load(Ordering::Acquire)).collect()
    }

    /// Records a failure of this rank, and sends it to all others, unless it is not fatal or not
    /// the first. `call` is the number of the collective that failed; 0 if none. Returns the error.
    pub(crate) fn fail(&self, error: Error, scope: Scope, call: u64) -> Error {
        if !error.is_fatal() || matches!(error, Error::Poisoned(_)) {
            return error;
        }
        // Nobody would receive a notice after the others have left.
        if self.settled.load(Ordering::Acquire) != u64::MAX {
            return error;
        }
        if self.keep(&error, scope) {
            let reason = match &error {
                Error::Aborted { by, reason } if *by == self.group.rank() => reason.clone(),
                other => other.to_string(),
            };
            // Ranks that compare their calls find a difference all at once.
            if !matches!(error, Error::Desync(_)) {
                self.tell(&Notice::Aborted { scope, call, reason });
            }
        }
        error
    }

    /// Records a failure. Returns whether it is the first.
    fn keep(&self, error: &Error, scope: Scope) -> bool {
        let failures = [(scope.collectives, &self.collectives), (scope.messages, &self.messages)];
        let ended = failures.into_iter().filter(|(applies, _)| *applies).map(|(_, failure)| failure);
        ended.fold(false, |is_first, failure| failure.keep(error) | is_first)
    }

    /// Starts to send a short message.
    pub(crate) fn send_short(&self, to: usize, tag: i32, message: &[u8]) -> Result<Operation<Vec<u8>>> {
        let bytes = wire::encode(|to| _ = to.put(self.instance).raw(message));
        let operation = self.handle.send(to, tag, bytes, false)?;
        self.traffic[to][0].fetch_add(1, Ordering::AcqRel);
        Ok(operation)
    }

    /// Receives a short message, if one has arrived. Returns its sender.
    pub(crate) fn recv_short(&self, tag: i32) -> Result<Option<(usize, Vec<u8>)>> {
        if self.instance == Self::UNKNOWN {
            return Ok(None);
        }
        while let Some((from, bytes)) = self.handle.try_recv(tag)? {
            let mut reader = wire::Reader::new(&bytes);
            if reader.get::<u64>() == Ok(self.instance) && from < self.traffic.len() {
                self.traffic[from][1].fetch_add(1, Ordering::AcqRel);
                return Ok(Some((from, reader.rest().to_vec())));
            }
            tracing::debug!(from, tag, "a message of a communicator that was dropped is ignored");
        }
        Ok(None)
    }

    /// Sends a notice to all other ranks.
    pub(crate) fn tell(&self, notice: &Notice) {
        let bytes = notice.encode();
        let mut peers = self.peers();
        for peer in self.group.peers() {
            match self.send_short(peer, Tag::NOTICE, &bytes) {
                Ok(operation) => peers.notices.push(operation),
                Err(error) => tracing::warn!(%error, peer, "a notice was not sent"),
            }
        }
    }

    /// Reads the notices of other ranks.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub(crate) fn poll_notices(&self) -> Result<()> {
        let mut peers = self.peers();
        // One that failed is given up; the rank learns of the failure in its own call.
        peers.notices.retain_mut(|operation| matches!(operation.test(), Ok(false)));
        while let Some((from, bytes)) = self.recv_short(Tag::NOTICE)? {
            match Notice::decode(&bytes) {
                Ok(Notice::Aborted { scope, call, reason }) => {
                    if self.keep(&Error::Aborted { by: from, reason }, scope) && scope.collectives {
                        self.failed_call.store(call, Ordering::Release);
                    }
                }
                Ok(Notice::Left { after }) => _ = peers.left.entry(from).or_insert(after),
                Err(error) => {
                    let malformed = Error::malformed(format!("a notice of rank {from}"), error);
                    self.keep(&malformed, Scope::ALL);
                }
            }
        }
        Ok(())
    }

    /// Returns the ranks that have closed the communicator.
    pub(crate) fn ranks_that_left(&self) -> BTreeSet<usize> {
        self.peers().left.keys().copied().collect()
    }

    /// Returns the error of a failure that is known, for a collective in progress.
    pub(crate) fn check_call(&self, context: &CallContext<'_>) -> Result<()> {
        if let Some(cause) = self.collectives.cause() {
            return Err(Error::clone(&cause));
        }
        let peers = self.peers();
        match peers.left.iter().find(|(_, after)| **after < context.sequence) {
            None => Ok(()),
            Some((&peer, &after)) => {
                Err(Error::PeerLost { peer, during: context.during(), loss: Loss::Left { after } })
            }
        }
    }

    /// Returns the error of a call that has passed its deadline. MPI does not report which ranks
    /// have not arrived, so it names all others.
    pub(crate) fn timeout(&self, context: &CallContext<'_>) -> Error {
        let waiting_for = self.group.peers().collect();
        Error::Timeout { waiting_for, after: context.deadline.after, during: context.during() }
    }

    /// Waits for the end of an operation of a collective, and returns its memory.
    ///
    /// # Errors
    /// The failure of the communicator, of this or another rank; [`Error::Timeout`].
    pub(crate) fn wait<M: PinnedMemory>(
        &self,
        mut operation: Operation<M>,
        context: &CallContext<'_>,
    ) -> Result<M> {
        let (mut pause, mut failed_since) = (Pause::new(), None);
        loop {
            match operation.test() {
                Ok(true) => return operation.into_memory(),
                Ok(false) => {}
                Err(error) => {
                    self.abandon();
                    return Err(error);
                }
            }
            if let Some(now) = pause.after_poll() {
                let alive = self.poll_notices().and_then(|()| self.check_call(context));
                let failed = alive.and_then(|()| {
                    if context.deadline.is_over(now) { Err(self.timeout(context)) } else { Ok(()) }
                });
                let Err(error) = failed else { continue };
                let since = *failed_since.get_or_insert(now);
                // A rank that failed in a later call has done its part in this one.
                let is_later = self.failed_call.load(Ordering::Acquire) > context.sequence;
                if !is_later || now.duration_since(since) > LATER_CALL_GRACE {
                    self.abandon();
                    return Err(error);
                }
            }
        }
    }

    /// Notes that an operation is left pending.
    pub(crate) fn abandon(&self) {
        self.has_abandoned.store(true, Ordering::Release);
    }

    /// Ends the use of the communicator: informs the other ranks, and lets MPI free it if all ranks
    /// have left in order.
    pub(crate) fn close(&mut self, notice: Option<&Notice>) {
        if let Some(notice) = notice {
            self.tell(notice);
            // Notices are short, so MPI has usually sent them already.
            let mut peers = self.peers();
            peers.notices.retain_mut(|operation| matches!(operation.test(), Ok(false)));
        }
        let is_pending = !self.peers().notices.is_empty() || self.has_abandoned.load(Ordering::Acquire);
        let is_settled = self.settled.load(Ordering::Acquire) == self.sent().iter().sum();
        if is_settled && !is_pending {
            self.handle.release();
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
