//! The state that a rank shares with its peers: streams, numbers of calls, and the end of the
//! group.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Armed, Collective, During, Error, Group, Idle, Result, Transport, Waiter};

use super::clock::Clock;
use super::failure::{LossOfSelf, PendingAbort};
use super::unexpected::UnexpectedCheck;
use crate::RingConfig;
use crate::control::{Announce, Control, ControlFrame, Event};
use crate::executor::{Executor, Job, LoweredStep, Progress, Regions, Stop};
use crate::history::History;

/// The streams to the members of a group, and the calls made on them. It runs steps until they are
/// done, the deadline passes, or the group fails.
pub(super) struct Session {
    pub(super) group: Group,
    pub(super) config: RingConfig,
    pub(super) data: Box<dyn Transport>,
    /// The number of bytes of a result that stay in the caches of the host.
    pub(super) cached_bytes: usize,
    /// Whether all ranks had windows in the last call from which they learnt it.
    pub(super) all_have_windows: bool,
    /// Whether memory of the last call is registered.
    has_registered: bool,
    pub(super) control: Control,
    pub(super) history: History,
    pub(super) events: Vec<Event>,
    pub(super) executor: Executor,
    pub(super) unexpected: UnexpectedCheck,
    pub(super) waiter: Waiter,
    /// The members for which the current wait slept.
    pub(super) slept_for: Vec<usize>,
    pub(super) poison: Option<Arc<Error>>,
    /// The first call that was not completed, once the group has failed.
    pub(super) failed_in: Option<u64>,
    pub(super) pending_abort: Option<PendingAbort>,
    /// The first report that another rank has lost this one.
    pub(super) lost_by: Option<LossOfSelf>,
    /// The last announcement of this rank.
    announced: Option<Announce>,
    /// Whether this rank continues in a smaller group.
    pub(super) has_shrunk: bool,
}

impl Session {
    pub(super) fn new(
        control: Box<dyn Transport>,
        data: Box<dyn Transport>,
        members: Option<&[usize]>,
        window: usize,
        config: RingConfig,
    ) -> Self {
        let group = data.group();
        let history = History::new(group, members, data.now(), &config);
        Self {
            group,
            executor: Executor::new(group.size(), window),
            unexpected: UnexpectedCheck::default(),
            waiter: data.waiter(config.yield_max),
            slept_for: Vec::with_capacity(group.size()),
            config,
            cached_bytes: data.cached_bytes(),
            all_have_windows: false,
            has_registered: false,
            data,
            control: Control::new(control),
            history,
            events: Vec::new(),
            poison: None,
            failed_in: None,
            pending_abort: None,
            lost_by: None,
            announced: None,
            has_shrunk: false,
        }
    }

    /// Returns whether the other ranks are to read this rank's contribution where it is, so that it
    /// need not be staged.
    pub(super) fn exposes(&self, collective: Collective, contribution: &[u8]) -> bool {
        let ranks = self.group.size();
        // The readers of a broadcast are not in step, and each would get long data from memory; of
        // staged data, only as much is out at once as stays in the cache.
        let is_too_long = collective.base() == Collective::Broadcast
            && contribution.len() > self.cached_bytes.saturating_mul(ranks);
        // Short pieces are not read in place.
        let piece = &contribution[..contribution.len() / ranks];
        !is_too_long && self.data.is_read_in_place(contribution) && self.data.is_read_in_place(piece)
    }

    /// Registers the memory of the next call, if receivers may read it in place, and no other.
    #[inline]
    pub(super) fn register(&mut self, memory: Option<&Regions<'_>>) {
        if let Some(Regions { input, output, scratch }) = memory {
            self.data.register(&[input, output, scratch]);
        } else if self.has_registered {
            self.data.register(&[]);
        }
        self.has_registered = memory.is_some();
    }

    /// Runs the steps of a call. If they cannot be completed, the group fails with the cause.
    #[inline]
    pub(super) fn run<S: Iterator<Item: Borrow<LoweredStep>> + ?Sized>(
        &mut self,
        steps: &mut S,
        job: &Job<'_>,
        buffers: &mut Regions<'_>,
        started: Instant,
        timeout: Duration,
    ) -> Result<()> {
        let mut clock = Clock::new(timeout, &self.config);
        let mut guard = AbortOnUnwind { session: self, is_over: false };
        let session = &mut *guard.session;
        // Holds only the error: copying a whole `Result` slows small calls measurably.
        let error = session.drive(steps, job, buffers, started, &mut clock).err().map(|stop| {
            let error = session.find_cause(stop);
            tracing::debug!(target: "comm_ring::call", %error, sequence = job.sequence, "a collective failed");
            session.give_up(error)
        });
        guard.is_over = true;
        error.map_or(Ok(()), Err)
    }

    /// Alternates between moving data and waiting until the call is done.
    #[inline]
    fn drive<S: Iterator<Item: Borrow<LoweredStep>> + ?Sized>(
        &mut self,
        steps: &mut S,
        job: &Job<'_>,
        buffers: &mut Regions<'_>,
        started: Instant,
        clock: &mut Clock,
    ) -> Result<(), Stop> {
        self.check_control()?;
        loop {
            match self.executor.progress(&mut *self.data, steps, job, buffers)? {
                Progress::Done if clock.has_started() => {
                    let now = self.data.now();
                    self.end_sleep(now);
                    self.waiter.moved(|| now);
                    self.history.complete(now);
                    return Ok(());
                }
                Progress::Done => {
                    // Reading even a coarse clock takes a measurable part of the time of a small
                    // call.
                    let now = if self.history.is_timed() { self.data.now() } else { started };
                    self.history.complete(now);
                    return self.poll_control(now);
                }
                Progress::Blocked { moved } => {
                    if moved {
                        if !self.slept_for.is_empty() {
                            self.end_sleep(self.data.now());
                        }
                        self.waiter.moved(|| self.data.now());
                        if clock.is_check_due() {
                            self.check_while_moving(clock)?;
                        }
                    }
                    let data = &*self.data;
                    let awaited = self.executor.interest();
                    let idle = self.waiter.idle(
                        || data.now(),
                        || data.peers_run_elsewhere(),
                        || data.run_now(awaited.recv()) && data.run_now(awaited.send()),
                    );
                    if !clock.has_started()
                        && let Some(since) = self.waiter.since()
                    {
                        clock.start(since);
                        self.history.wait_since(since);
                        // Polling the control channel takes about as long as one pause, and
                        // replaces it.
                        self.poll_control(since)?;
                        continue;
                    }
                    match idle {
                        Idle::Spin => std::hint::spin_loop(),
                        Idle::Yield => self.yield_now(),
                        Idle::Sleep => self.sleep(clock)?,
                    }
                }
            }
        }
    }

    /// Lets another thread run.
    fn yield_now(&mut self) {
        let yielding = self.waiter.begin_yield(|| self.data.now());
        self.data.yield_now();
        self.waiter.end_yield(yielding, || self.data.now());
    }

    /// Applies the deadline to a call whose data moves so steadily that this rank never sleeps.
    #[cold]
    fn check_while_moving(&mut self, clock: &mut Clock) -> Result<(), Stop> {
        let now = self.data.now_roughly();
        self.poll_control(now)?;
        self.keep_deadline(clock, now).map(drop)
    }

    /// Asks all ranks for their state shortly before the deadline, and fails at the deadline.
    /// Returns whether it has asked.
    fn keep_deadline(&mut self, clock: &mut Clock, now: Instant) -> Result<bool, Stop> {
        let timeout = clock.timeout;
        let times = clock.start(now);
        if times.must_ask(now) {
            times.asked(now);
            self.ask_all(&self.waiting_for());
            return Ok(true);
        }
        if times.is_over(now) {
            return Err(self.timeout(timeout).into());
        }
        Ok(false)
    }

    /// Sleeps until data can move, a control message arrives, or an instant of the clock is due.
    fn sleep(&mut self, clock: &mut Clock) -> Result<(), Stop> {
        let mut control = self.arm_control()?;
        if control == Armed::Ready {
            self.handle_events()?;
            self.check_members()?;
            control = self.arm_control()?;
        }
        // While control messages keep arriving, this rank does not sleep, but its deadline still
        // applies.
        if control == Armed::Sleep && self.data.arm(self.executor.interest())? == Armed::Ready {
            return Ok(());
        }
        let now = self.data.now();
        if self.keep_deadline(clock, now)? {
            return Ok(());
        }
        let times = clock.start(now);
        if times.must_announce(now) {
            self.announce();
            times.announced(now);
            return self.check_unexpected(now);
        }
        if control == Armed::Sleep {
            self.note_sleep();
            self.data.sleep(Some(self.control.descriptor()), times.until_next(now))?;
        }
        Ok(())
    }

    /// Reads the control channel, and leaves the events for the next call.
    pub(super) fn poll_events(&mut self) {
        self.control.poll(&mut self.events);
    }

    /// Prepares to sleep until something arrives on the control channel. Events that were left for
    /// this call have arrived.
    pub(super) fn arm_control(&mut self) -> Result<Armed> {
        if self.events.is_empty() { self.control.arm() } else { Ok(Armed::Ready) }
    }

    /// Announces to all ranks the call in which this rank is blocked and the ranks that it waits
    /// for, unless it has already. A rank that is busy elsewhere does not read announcements, and
    /// too many would leave no space for the frame that tells it of a failure.
    fn announce(&mut self) {
        let sequence = self.history.last();
        let Some(call) = self.history.get(sequence) else { return };
        let mut waiting_for = self.waiting_for();
        self.record_wait(&waiting_for);
        waiting_for.truncate(Announce::WAITING_MAX);
        let past = self.history.before(sequence);
        let announce = Announce { sequence, question: false, call, waiting_for, past };
        if self.announced.as_ref() != Some(&announce) {
            self.control.send_all(&ControlFrame::Announce(announce.clone()));
            self.announced = Some(announce);
        }
    }

    /// Returns the current call, for errors.
    pub(super) fn during(&self) -> During {
        let sequence = self.history.last();
        match self.history.get(sequence) {
            Some(call) => During::Call { call: Box::new(call), sequence },
            None => During::Idle,
        }
    }

    /// Drops the remaining state of a call that failed.
    pub(super) fn drop_call(&mut self) {
        self.executor.reset();
        self.slept_for.clear();
        self.data.revoke();
    }
}

/// Fails the group if a call panics, before the memory that is being sent returns to its owner: the
/// caller, which may catch the panic, or the heap.
struct AbortOnUnwind<'a> {
    session: &'a mut Session,
    is_over: bool,
}

impl Drop for AbortOnUnwind<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.give_up(Error::Internal("a call panicked".into()));
        }
    }
}
