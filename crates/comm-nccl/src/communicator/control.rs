//! The control channel of a group. Over a host communicator, ranks report to each other what NCCL
//! does not report: calls in which they have waited for a long time, and failures.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use comm_core::{
    CallOptions, During, Error, Group, HostCommunicator, HostView, HostViewMut, Loss, Outgoing, Received,
    Result, Signature, Source, TagMatch,
};

use super::notice::{Announcement, Notice};
use crate::pause::Pause;
use crate::sync::lock;

/// The largest number of ranks to which a rank announces its call. It limits the traffic of a large
/// group.
const PEERS_MAX: usize = 64;
/// The longest message in bytes.
const MESSAGE_MAX: usize = 1 << 24;
/// The shortest interval between polls for messages.
const INTERVAL: Duration = Duration::from_millis(5);
/// The same per rank of a large group, because a poll checks the connections to all other ranks.
const PER_RANK: Duration = Duration::from_micros(20);
/// The number of intervals between checks for ranks that have died.
const POLLS_PER_CHECK: u32 = 10;
/// The time for which such a check waits: some transports detect a death only while they wait.
const TO_NOTICE: Duration = Duration::from_millis(20);
/// The timeout for the rest of a message whose beginning has arrived.
const TO_RECV: Duration = Duration::from_secs(5);
/// The time to wait for the cause of an NCCL error.
const TO_EXPLAIN: Duration = Duration::from_millis(200);
/// The timeout of a send. It is practically infinite because the host communicator fails after a
/// timeout, and a rank that receives nothing because it makes no call has not failed.
const TO_SEND: Duration = Duration::from_secs(1 << 20);

/// A kind of message. Each has its own tag in each group.
#[derive(Debug, Clone, Copy)]
pub(super) enum Topic {
    /// A [`Notice`].
    Notice,
    /// From a rank to the leader of the ranks that shrink the group after a failure.
    Hello,
    /// The leader's answer.
    Answer,
    /// Never sent.
    Nothing,
}

/// The control channel of one group. Groups created from a group share its host communicator, and
/// use their own tags.
pub(super) struct ControlChannel {
    host: Arc<dyn HostCommunicator>,
    group: Group,
    /// The ranks of the members in `host`.
    members: Vec<usize>,
    announced: Mutex<Announcements>,
    /// The failure of the rank that failed first.
    failure: Mutex<Option<PeerFailure>>,
    next_poll: Mutex<NextPoll>,
}

/// The times of the next poll for messages, and of the next check for ranks that have died.
#[derive(Debug)]
struct NextPoll {
    at: Instant,
    alive_at: Instant,
}

/// The failure of another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PeerFailure {
    by: usize,
    /// The first collective that it cannot complete. It has done its part of all earlier ones.
    sequence: u64,
    reason: String,
}

/// The last announcement of each rank that made one.
pub(super) type Announcements = BTreeMap<usize, Announcement>;

impl ControlChannel {
    /// Returns the channel of all ranks of `host`, which must have no other user; `None` if there
    /// is only one rank.
    pub(super) fn new(host: Box<dyn HostCommunicator>, group: Group) -> Option<Self> {
        let members = (0..group.size()).collect();
        Self::over(Arc::from(host), group, members)
    }

    fn over(host: Arc<dyn HostCommunicator>, group: Group, members: Vec<usize>) -> Option<Self> {
        let now = Instant::now();
        let next_poll = NextPoll { at: now, alive_at: now + POLLS_PER_CHECK * INTERVAL }.into();
        let (announced, failure) = (Mutex::default(), Mutex::default());
        (members.len() > 1).then_some(Self { host, group, members, announced, failure, next_poll })
    }

    /// Returns the channel of a group of these members of this group.
    pub(super) fn of_group(&self, group: Group, members: &[usize]) -> Option<Self> {
        let members = members.iter().map(|&rank| self.members[rank]).collect();
        Self::over(Arc::clone(&self.host), group, members)
    }

    /// Announces the call in which this rank waits to the next [`PEERS_MAX`] ranks.
    pub(super) fn announce(&self, announcement: &Announcement) {
        let (rank, size) = (self.group.rank(), self.group.size());
        for step in 1..size.min(PEERS_MAX + 1) {
            self.announce_to((rank + step) % size, announcement);
        }
    }

    /// Announces a call of this rank to one other rank.
    pub(super) fn announce_to(&self, peer: usize, announcement: &Announcement) {
        self.post(peer, Topic::Notice, Notice::Waiting(announcement.clone()).encode());
    }

    /// Sends all other ranks the cause of this rank's failure and the first collective that it
    /// cannot complete. A failure announced by another rank is not repeated: that rank has sent it
    /// to everyone.
    pub(super) fn announce_failure(&self, sequence: u64, cause: &Error) {
        let reason = match cause {
            Error::Aborted { by, .. } if *by != self.group.rank() => return,
            Error::Aborted { reason, .. } => reason.clone(),
            other => other.to_string(),
        };
        let notice = Notice::Failed(sequence, reason).encode();
        self.group.peers().for_each(|peer| self.post(peer, Topic::Notice, notice.clone()));
        self.flush();
    }

    /// Receives a notice, if one has arrived, and returns whether to poll again immediately.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a member has died.
    pub(super) fn poll(&self) -> Result<bool> {
        let mut next_poll = lock(&self.next_poll);
        if Instant::now() < next_poll.at {
            return Ok(false);
        }
        let found = self.host.try_probe(Source::Any, self.tag(Topic::Notice));
        let Some(received) = found.map_err(|error| self.renumbered(error))? else {
            let interval = self.interval();
            if Instant::now() >= next_poll.alive_at {
                self.check_alive()?;
                next_poll.alive_at = Instant::now() + POLLS_PER_CHECK * interval;
            }
            next_poll.at = Instant::now() + interval;
            return Ok(false);
        };
        let bytes = self.take(received)?;
        let Some(peer) = self.member(received.source) else { return Ok(true) };
        let malformed = |error| Error::malformed(format!("a notice of rank {peer}"), error);
        match Notice::decode(&bytes).map_err(malformed)? {
            Notice::Failed(sequence, reason) => {
                let mut failure = lock(&self.failure);
                if failure.as_ref().is_none_or(|first| sequence < first.sequence) {
                    *failure = Some(PeerFailure { by: peer, sequence, reason });
                }
            }
            Notice::Waiting(announcement) => drop(lock(&self.announced).insert(peer, announcement)),
        }
        Ok(true)
    }

    /// Returns the interval between polls for messages.
    fn interval(&self) -> Duration {
        let ranks = u32::try_from(self.host.group().size()).unwrap_or(u32::MAX);
        INTERVAL.max(PER_RANK.saturating_mul(ranks))
    }

    /// Returns an error if another rank has announced that it cannot complete this collective.
    pub(super) fn check_failure(&self, sequence: u64) -> Result<()> {
        match lock(&self.failure).clone().filter(|failure| failure.sequence <= sequence) {
            Some(PeerFailure { by, reason, .. }) => Err(Error::Aborted { by, reason }),
            None => Ok(()),
        }
    }

    /// Receives all notices that have arrived.
    ///
    /// # Errors
    /// [`Error::PeerLost`] if a member has died, and [`Error::Aborted`] if a rank could not
    /// connect.
    pub(super) fn check_connecting(&self) -> Result<()> {
        while self.poll()? {}
        self.check_failure(0)
    }

    /// Waits briefly for another rank to report that it could not connect, and returns that error,
    /// or otherwise `error`: an asynchronous error of NCCL may be the consequence of such a
    /// failure.
    pub(super) fn cause_of(&self, error: Error) -> Error {
        let (began, mut pause) = (Instant::now(), Pause::default());
        while matches!(error, Error::Backend { .. }) && began.elapsed() < TO_EXPLAIN {
            if let Err(cause) = self.check_connecting() {
                return cause;
            }
            pause.wait();
        }
        error
    }

    /// Returns the last announcement of each rank that made one.
    pub(super) fn announced(&self) -> MutexGuard<'_, Announcements> {
        lock(&self.announced)
    }

    /// Returns an error if a member has died. A rank that has closed its communicator is not an
    /// error.
    fn check_alive(&self) -> Result<()> {
        let mut timeout = TO_NOTICE;
        let is_whole = self.members.len() == self.host.group().size();
        let peers = self.group.peers().map(|peer| Source::Rank(self.members[peer]));
        // A probe of all ranks would also report the loss of a rank that is not a member.
        let sources: Vec<Source> = if is_whole { vec![Source::Any] } else { peers.collect() };
        for source in sources {
            match self.probe(source, Topic::Notice, timeout) {
                Err(Error::PeerLost { loss: Loss::Finished, .. }) => {}
                Err(Error::PeerLost { peer, .. }) if self.member(peer).is_none() => {}
                Err(Error::PeerLost { peer, loss, .. }) => {
                    return Err(self.renumbered(Error::PeerLost { peer, during: During::Idle, loss }));
                }
                // One wait checks the connections to all ranks.
                Ok(_) | Err(Error::Timeout { .. }) => timeout = Duration::ZERO,
                Err(error) => return Err(self.renumbered(error)),
            }
        }
        Ok(())
    }

    /// Sends a message to a rank in the background.
    pub(super) fn post(&self, to: usize, topic: Topic, message: Vec<u8>) {
        let tag = self.tag_number(topic);
        // Every probe makes progress.
        let _ = self.host.post_send(self.members[to], tag, Box::new(Message(message)), &within(TO_SEND));
    }

    /// Sends as much of the posted messages as possible without waiting.
    pub(super) fn flush(&self) {
        // Probing for a message that never arrives progresses the sends. The next poll returns any
        // error.
        drop(self.host.try_probe(Source::Any, self.tag(Topic::Nothing)));
    }

    /// Waits for a message of this kind from a rank. If several have arrived, returns the last one.
    ///
    /// # Errors
    /// [`Error::Timeout`] if there is none in time, [`Error::PeerLost`] if the rank has left.
    pub(super) fn recv_last(&self, from: usize, topic: Topic, timeout: Duration) -> Result<Vec<u8>> {
        let source = Source::Rank(self.members[from]);
        let renumbered = |error| self.renumbered(error);
        // A probe with a timeout of zero does not check connections.
        let mut received = match self.host.try_probe(source, self.tag(topic)).map_err(renumbered)? {
            Some(received) => received,
            None => self.probe(source, topic, timeout).map_err(renumbered)?,
        };
        loop {
            let message = self.take(received)?;
            match self.host.try_probe(source, self.tag(topic)).map_err(renumbered)? {
                Some(another) => received = another,
                None => return Ok(message),
            }
        }
    }

    fn probe(&self, from: Source, topic: Topic, timeout: Duration) -> Result<Received> {
        self.host.probe(from, self.tag(topic), &within(timeout))
    }

    /// Receives a message that has arrived.
    fn take(&self, received: Received) -> Result<Vec<u8>> {
        let mut message = vec![0; received.len.min(MESSAGE_MAX)];
        let (from, tag) = (Source::Rank(received.source), TagMatch::Is(received.tag));
        let taken = self.host.recv(from, tag, HostViewMut::new(&mut message), &within(TO_RECV));
        taken.map(|_| message).map_err(|error| self.renumbered(error))
    }

    fn tag(&self, topic: Topic) -> TagMatch {
        TagMatch::Is(self.tag_number(topic))
    }

    fn tag_number(&self, topic: Topic) -> u64 {
        Signature::fingerprint_of([self.group.id().0, topic as u64])
    }

    /// Returns the rank in the group of a rank in `host`, if it is a member.
    fn member(&self, of_host: usize) -> Option<usize> {
        self.members.iter().position(|&rank| rank == of_host)
    }

    /// Replaces ranks of `host` in an error with ranks of the group.
    fn renumbered(&self, error: Error) -> Error {
        renumbered(error.root_cause().clone(), |rank| self.member(rank).unwrap_or(rank))
    }
}

/// Replaces the ranks in an error.
pub(super) fn renumbered(error: Error, number: impl Fn(usize) -> usize) -> Error {
    match error {
        Error::PeerLost { peer, during, loss } => Error::PeerLost { peer: number(peer), during, loss },
        Error::Timeout { waiting_for, after, during } => {
            let waiting_for = waiting_for.into_iter().map(number).collect();
            Error::Timeout { waiting_for, after, during }
        }
        Error::Aborted { by, reason } => Error::Aborted { by: number(by), reason },
        other => other,
    }
}

impl std::fmt::Debug for ControlChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlChannel").field("group", &self.group).finish_non_exhaustive()
    }
}

/// A message in flight.
struct Message(Vec<u8>);

impl Outgoing for Message {
    fn view(&self) -> Result<HostView<'_>> {
        Ok(HostView::new(&self.0))
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        // Most likely the other rank is gone; the next poll detects that.
        if let Err(error) = outcome {
            tracing::debug!(%error, "a message to another rank of a group was not sent");
        }
    }
}

fn within(timeout: Duration) -> CallOptions {
    CallOptions::default().timeout(timeout)
}
