//! The state behind a communicator's lock, and the way of one call through it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{Armed, Call, During, Error, Group, InputCopy, Reduction, Result, Signature, Transport};

use super::audit::Audit;
use super::checked_call::{Bytes, CheckedCall};
use super::failure::Doom;
use super::program::Programs;
use super::scratch::{Scratch, Stage};
use super::wide::Wide;
use crate::control::{Announce, Control, Event, Frame};
use crate::executor::{Executor, Job, LoweredStep, Progress, Regions, Stop};
use crate::history::History;
use crate::wait::{Idle, Waiter, wait_for};
use crate::{RingConfig, Tuning};

/// Everything that one call at a time may use.
#[derive(Debug)]
pub(super) struct Engine<T> {
    pub(super) group: Group,
    pub(super) config: RingConfig,
    programs: Programs,
    pub(super) data: T,
    pub(super) control: Control<T>,
    pub(super) history: History,
    pub(super) events: Vec<Event>,
    pub(super) executor: Executor,
    pub(super) audit: Audit,
    waiter: Waiter,
    scratch: Scratch,
    stage: Stage,
    /// A contribution that was moved out of the way of the result.
    input_copy: Vec<u8>,
    /// Contributions and results of reductions that compute in another type than that of the elements.
    pub(super) wide: Wide,
    pub(super) poison: Option<Arc<Error>>,
    pub(super) doom: Option<Doom>,
}

/// The times of the call under way.
///
/// They count from its first wait that is not over at once: what a call does before, it does without waiting for anybody,
/// and a small call has no time to ask for the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) timeout: Duration,
    announce_after: Duration,
    /// How long before the deadline to ask everybody where they are.
    answers_within: Duration,
    times: Option<Times>,
}

/// When something is to happen.
#[derive(Debug, Clone, Copy)]
struct Times {
    deadline: Option<Instant>,
    /// When to ask everybody where they are, unless that is done.
    ask_at: Option<Instant>,
    answers_within: Duration,
    announce_at: Instant,
    announce_every: Duration,
}

/// Announcements of a call that stays blocked become rarer up to this.
const ANNOUNCE_EVERY_MAX: Duration = Duration::from_secs(5);

impl Clock {
    #[inline]
    fn new(timeout: Duration, config: &RingConfig) -> Self {
        let answers_within = config.diagnosis.min(timeout / 2);
        Self { timeout, announce_after: config.announce_after, answers_within, times: None }
    }

    /// Whether the call has waited.
    #[inline]
    const fn has_started(&self) -> bool {
        self.times.is_some()
    }

    /// The times, which count from `now` if nobody has asked before.
    fn at(&mut self, now: Instant) -> &mut Times {
        self.times.get_or_insert_with(|| {
            // Ranks with a short deadline must have heard of each other before it passes.
            let first = self.announce_after.min(self.timeout / 4);
            Times {
                deadline: now.checked_add(self.timeout),
                ask_at: (!self.answers_within.is_zero())
                    .then(|| now.checked_add(self.timeout - self.answers_within))
                    .flatten(),
                answers_within: self.answers_within,
                announce_at: now + first,
                announce_every: first.max(Duration::from_millis(1)),
            }
        })
    }
}

impl Times {
    fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    fn must_ask(&self, now: Instant) -> bool {
        self.ask_at.is_some_and(|at| now >= at)
    }

    /// Everybody is asked, and gets time to answer also if this rank was kept from asking until its deadline.
    fn asked(&mut self, now: Instant) {
        self.ask_at = None;
        if self.is_over(now) {
            self.deadline = now.checked_add(self.answers_within);
        }
    }

    fn announced(&mut self, now: Instant) {
        self.announce_every = (self.announce_every * 2).min(ANNOUNCE_EVERY_MAX);
        self.announce_at = now + self.announce_every;
    }

    fn until_next(&self, now: Instant) -> Duration {
        let next = [self.deadline, self.ask_at].into_iter().flatten().fold(self.announce_at, Instant::min);
        next.saturating_duration_since(now)
    }
}

impl<T: Transport> Engine<T> {
    /// What runs calls over these lanes, once the members have agreed.
    pub(super) fn new(control: T, data: T, stage: Stage, config: RingConfig) -> Self {
        let tuning = Tuning::FOR_AGREEMENT;
        let group = data.group();
        Self {
            group,
            executor: Executor::new(group.size(), tuning.window),
            audit: Audit::default(),
            waiter: Waiter::new(config.yield_max),
            config,
            programs: Programs::new(group, tuning),
            data,
            control: Control::new(control),
            history: History::default(),
            events: Vec::new(),
            scratch: Scratch::default(),
            stage,
            input_copy: Vec::new(),
            wide: Wide::default(),
            poison: None,
            doom: None,
        }
    }

    /// What the members agreed on.
    pub(super) const fn tuning(&self) -> &Tuning {
        self.programs.tuning()
    }

    /// Uses what the members agreed on from the next call on.
    pub(super) fn adopt(&mut self, tuning: Tuning) {
        self.executor.set_window(tuning.window);
        self.programs = Programs::new(self.group, tuning);
    }

    /// Carries out a call that fits the group.
    #[inline]
    pub(super) fn call(&mut self, signature: &Signature, call: Call<'_>, timeout: Duration) -> Result<()> {
        let checked = CheckedCall::new(signature, call.counts());
        let mut bytes = Bytes::new(call.into_operands(self.group.rank()), signature.collective);
        match checked.widening() {
            None => self.premultiply(&checked, &mut bytes, timeout),
            Some(widening) => self.widened(&checked, bytes, widening, timeout),
        }
    }

    /// Carries out a call whose contribution may have to be moved or multiplied first.
    #[inline]
    pub(super) fn premultiply(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: &mut Bytes<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let ranks = self.group.size();
        let factor = call.premultiplication(ranks)?;
        let rank = self.group.rank();
        match call.signature.input_copy(rank, bytes.in_place, factor.is_some()) {
            InputCopy::Aside => self.with_input_copy(call, bytes, factor, timeout),
            copy => {
                if copy == InputCopy::IntoOutput {
                    bytes.copy_in();
                }
                if let Some(reduction) = factor {
                    reduction.start(bytes.output, ranks);
                }
                self.execute(call, bytes, timeout)
            }
        }
    }

    /// Carries out a call on a copy of its contribution, which is multiplied if it must be.
    fn with_input_copy(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: &mut Bytes<'_>,
        factor: Option<Reduction>,
        timeout: Duration,
    ) -> Result<()> {
        let mut input = std::mem::take(&mut self.input_copy);
        input.clear();
        input.extend_from_slice(if bytes.in_place { bytes.output } else { bytes.input });
        if let Some(reduction) = factor {
            reduction.start(&mut input, self.group.size());
        }
        let mut bytes = Bytes { input: &input, output: bytes.output, in_place: false };
        let result = self.execute(call, &mut bytes, timeout);
        self.input_copy = input;
        result
    }

    /// Carries out a call on these bytes.
    pub(super) fn execute(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: &mut Bytes<'_>,
        timeout: Duration,
    ) -> Result<()> {
        let program = self.programs.take(call, bytes.in_place)?;
        let (reduction, fingerprint) = (program.reduction, program.fingerprint);
        let sequence = self.history.push(&program.signature, fingerprint);
        let job = Job { reduction, ranks: self.group.size(), sequence, fingerprint };
        let mut scratch = std::mem::take(&mut self.scratch);
        let temporary = if program.is_staged() {
            scratch.staged(program.scratch_bytes, &self.stage)
        } else {
            scratch.on_heap(program.scratch_bytes)
        };
        let mut buffers = Regions { input: bytes.input, output: bytes.output, scratch: temporary };
        let memory = [buffers.input, &*buffers.output, &*buffers.scratch];
        self.data.expose(if program.exposes { &memory } else { &[] });
        let mut clock = Clock::new(timeout, &self.config);
        let mut rescue = Rescue { engine: self, is_over: false };
        let engine = &mut *rescue.engine;
        let result = match program.kept() {
            Some(steps) => engine.drive(&mut steps.iter(), &job, &mut buffers, &mut clock),
            None => engine.drive(&mut *program.steps(), &job, &mut buffers, &mut clock),
        };
        let error = result.err().map(|stop| {
            let error = engine.diagnose(stop);
            engine.give_up(error)
        });
        rescue.is_over = true;
        drop(rescue);
        self.scratch = scratch;
        self.programs.give_back(program);
        error.map_or(Ok(()), Err)
    }

    /// Alternates between moving and waiting until the call is done.
    fn drive<S: Iterator<Item: Borrow<LoweredStep>> + ?Sized>(
        &mut self,
        steps: &mut S,
        job: &Job,
        buffers: &mut Regions<'_>,
        clock: &mut Clock,
    ) -> Result<(), Stop> {
        self.attend()?;
        loop {
            match self.executor.progress(&mut self.data, steps, job, buffers)? {
                Progress::Done if clock.has_started() => {
                    self.waiter.moved(|| self.data.now());
                    return Ok(());
                }
                Progress::Done => {
                    let now = self.data.now_roughly();
                    return self.look_around(now);
                }
                Progress::Blocked { moved } => {
                    if moved {
                        self.waiter.moved(|| self.data.now());
                    }
                    let idle = self.waiter.idle(|| self.data.now());
                    if !clock.has_started()
                        && let Some(since) = self.waiter.since()
                    {
                        clock.at(since);
                        // This takes as long as a pause between two looks.
                        self.look_around(since)?;
                        continue;
                    }
                    match idle {
                        Idle::Spin => std::hint::spin_loop(),
                        Idle::Yield => self.waiter.give_way(|| self.data.now()),
                        Idle::Sleep => self.sleep(clock)?,
                    }
                }
            }
        }
    }

    /// Sleeps until something can move, somebody says something, or a time has come.
    fn sleep(&mut self, clock: &mut Clock) -> Result<(), Stop> {
        let mut control = self.control.arm()?;
        if control == Armed::Ready {
            self.hear()?;
            self.check_members()?;
            control = self.control.arm()?;
        }
        // While others talk, this rank does not sleep, but its deadline passes.
        if control == Armed::Sleep && self.data.arm(self.executor.interest())? == Armed::Ready {
            return Ok(());
        }
        let now = self.data.now();
        let timeout = clock.timeout;
        let times = clock.at(now);
        if times.must_ask(now) {
            times.asked(now);
            self.ask_everybody();
            return Ok(());
        }
        if times.is_over(now) {
            return Err(self.timeout(timeout).into());
        }
        if now >= times.announce_at {
            self.announce();
            times.announced(now);
            return self.audit(now);
        }
        if control == Armed::Sleep {
            wait_for([self.data.descriptor(), self.control.descriptor()], times.until_next(now))?;
        }
        Ok(())
    }

    /// Tells everybody which call this rank is blocked in, and whom it waits for.
    fn announce(&mut self) {
        let sequence = self.history.last();
        let Some(call) = self.history.get(sequence).cloned() else { return };
        let mut waiting_for = self.waiting_for();
        waiting_for.truncate(Announce::WAITING_MAX);
        let past = self.history.before(sequence);
        let announce = Announce { sequence, question: false, call, waiting_for, past };
        self.control.send_all(&Frame::Announce(announce));
    }

    /// The call under way, for errors.
    pub(super) fn during(&self) -> During {
        let sequence = self.history.last();
        match self.history.get(sequence) {
            Some(call) => During::Call { call: Box::new(call.clone()), sequence },
            None => During::Idle,
        }
    }

    /// Drops what is left of a call that failed.
    pub(super) fn drop_call(&mut self) {
        self.executor.reset();
        self.data.revoke();
    }
}

/// Gives up when a call panics, before the memory that it sends from goes back to its owners: to the caller, who may
/// catch the panic, or to the heap.
struct Rescue<'a, T: Transport> {
    engine: &'a mut Engine<T>,
    is_over: bool,
}

impl<T: Transport> Drop for Rescue<'_, T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.engine.give_up(Error::Internal("a call panicked".into()));
        }
    }
}
