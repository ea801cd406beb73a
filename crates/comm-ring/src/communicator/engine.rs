//! The state behind a communicator's lock, and the way of one call through it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Armed, CallOptions, Collective, DType, During, Error, Exchange, Group, ReduceOp, Reduction, Result, Step,
    Transport,
};

use super::audit::Audit;
use super::failure::Doom;
use super::request::{Bytes, Request};
use crate::choose::{self, Choice, Question};
use crate::control::{Announce, Control, Event, Frame};
use crate::executor::{Buffers, Executor, Job, Progress, Stop};
use crate::history::History;
use crate::schedule::{Algorithm, Params};
use crate::wait::{Idle, Waiter, wait_for};
use crate::{RingConfig, Tuning};

/// Everything that one call at a time may use.
#[derive(Debug)]
pub(super) struct Engine<T> {
    pub(super) group: Group,
    pub(super) config: RingConfig,
    /// What all ranks use the same of.
    tuning: Tuning,
    /// The last choice of an algorithm, as calls often repeat.
    chosen: Option<Chosen>,
    pub(super) data: T,
    pub(super) control: Control<T>,
    pub(super) history: History,
    pub(super) events: Vec<Event>,
    pub(super) executor: Executor,
    pub(super) audit: Audit,
    waiter: Waiter,
    scratch: Vec<u8>,
    /// Contributions that were multiplied beforehand, or moved out of the way of the result.
    aside: Vec<u8>,
    pub(super) poison: Option<Arc<Error>>,
    pub(super) doom: Option<Doom>,
}

/// A question and its answer.
#[derive(Debug)]
struct Chosen {
    question: Question,
    forced: Option<Cow<'static, str>>,
    choice: Choice,
}

/// The times of the call under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub(super) timeout: Duration,
    started: Instant,
    deadline: Option<Instant>,
    announce_at: Instant,
    announce_every: Duration,
}

/// Announcements of a call that stays blocked become rarer up to this.
const ANNOUNCE_EVERY_MAX: Duration = Duration::from_secs(5);

impl Clock {
    fn start(now: Instant, timeout: Duration, announce_after: Duration) -> Self {
        // Ranks with a short deadline must have heard of each other before it passes.
        let first = announce_after.min(timeout / 4);
        Self {
            timeout,
            started: now,
            deadline: now.checked_add(timeout),
            announce_at: now + first,
            announce_every: first.max(Duration::from_millis(1)),
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    fn announced(&mut self, now: Instant) {
        self.announce_every = (self.announce_every * 2).min(ANNOUNCE_EVERY_MAX);
        self.announce_at = now + self.announce_every;
    }

    fn until_next(&self, now: Instant) -> Duration {
        let next = self.deadline.map_or(self.announce_at, |deadline| deadline.min(self.announce_at));
        next.saturating_duration_since(now)
    }
}

impl<T: Transport> Engine<T> {
    /// What runs calls over these lanes, once the members have agreed.
    pub(super) fn new(control: T, data: T, config: RingConfig) -> Self {
        let tuning = Tuning::FOR_AGREEMENT;
        let group = data.group();
        Self {
            group,
            executor: Executor::new(group.size(), tuning.window),
            audit: Audit::default(),
            waiter: Waiter::new(config.yield_max),
            config,
            tuning,
            chosen: None,
            data,
            control: Control::new(control),
            history: History::default(),
            events: Vec::new(),
            scratch: Vec::new(),
            aside: Vec::new(),
            poison: None,
            doom: None,
        }
    }

    /// What the members agreed on.
    pub(super) const fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Uses what the members agreed on from the next call on.
    pub(super) fn adopt(&mut self, tuning: Tuning) {
        self.executor.set_window(tuning.window);
        (self.tuning, self.chosen) = (tuning, None);
    }

    /// Every rank gets the reduction: worked out in the output.
    pub(super) fn reduce_everywhere(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let bytes = Bytes::of(buffers).copy_in();
        start(&request, bytes.output)?;
        self.run(request, bytes, options)
    }

    /// What is reduced is moved out of the way of the result, which some ranks do not get.
    pub(super) fn reduce_aside(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.with_input_aside(request, Bytes::of(buffers), options)
    }

    /// The root gets the reduction; other ranks' memory is only read.
    pub(super) fn reduce_to_root(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        if request.root == Some(self.group.rank()) {
            let mut bytes = Bytes::of(buffers);
            if matches!(request.op, Some(ReduceOp::PreMulSum(_))) {
                bytes = bytes.copy_in();
                start(&request, bytes.output)?;
            }
            return self.run(request, bytes, options);
        }
        self.with_input_aside(request, Bytes::read_only(buffers), options)
    }

    pub(super) fn reduce_scatter(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let bytes = Bytes::of(buffers);
        if bytes.in_place {
            start(&request, bytes.output)?;
            return self.run(request, bytes, options);
        }
        self.with_input_aside(request, bytes, options)
    }

    /// The root gets all contributions; other ranks' memory is only read.
    pub(super) fn gather(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let is_root = request.root == Some(self.group.rank());
        let bytes = if is_root { Bytes::of(buffers) } else { Bytes::read_only(buffers) };
        self.run(request, bytes, options)
    }

    /// Every rank gets its share of what the root has, which is only read.
    pub(super) fn scatter(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let is_root = request.root == Some(self.group.rank());
        let bytes = match buffers {
            Exchange::InPlace(_) | Exchange::SendOnly(_) if is_root => {
                Bytes { in_place: true, ..Bytes::read_only(buffers) }
            }
            buffers => Bytes::of(buffers),
        };
        self.run(request, bytes, options)
    }

    /// Every rank gets something from every rank. In place, what is sent is moved out of the way first.
    pub(super) fn all_to_all(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.with_input_aside(request, Bytes::of(buffers), options)
    }

    /// A collective whose contribution is sent as it is.
    pub(super) fn as_it_is(
        &mut self,
        request: Request<'_>,
        buffers: Exchange<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        self.run(request, Bytes::of(buffers), options)
    }

    /// A call that every rank must have entered, and that moves nothing.
    pub(super) fn barrier(&mut self, request: Request<'_>, options: &CallOptions) -> Result<()> {
        let nothing = Bytes { input: &[], output: &mut [], in_place: true };
        self.run(request, nothing, options)
    }

    /// Runs with an input apart from the output. It is copied to memory of our own if it lies in the output, or must be
    /// multiplied first.
    fn with_input_aside(
        &mut self,
        request: Request<'_>,
        bytes: Bytes<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        if !bytes.in_place && !matches!(request.op, Some(ReduceOp::PreMulSum(_))) {
            return self.run(request, bytes, options);
        }
        let mut aside = std::mem::take(&mut self.aside);
        aside.clear();
        aside.extend_from_slice(if bytes.in_place { bytes.output } else { bytes.input });
        start(&request, &mut aside)?;
        let bytes = Bytes { input: &aside, output: bytes.output, in_place: false };
        let result = self.run(request, bytes, options);
        self.aside = aside;
        result
    }

    /// The algorithm for a call and the parameters of its schedule.
    fn choose(
        &mut self,
        request: &Request<'_>,
        in_place: bool,
        options: &CallOptions,
    ) -> Result<(&'static Algorithm, Params)> {
        let question = request.question(self.group, options.order);
        let same = |last: &&Chosen| last.question == question && last.forced == options.algorithm;
        let choice = match self.chosen.as_ref().filter(same) {
            Some(last) => last.choice,
            None => {
                let choice = choose::choose(&question, options.algorithm.as_deref(), &self.tuning)?;
                self.chosen = Some(Chosen { question, forced: options.algorithm.clone(), choice });
                choice
            }
        };
        let params = Params {
            rank: self.group.rank(),
            root: request.root.unwrap_or(0),
            in_place,
            ..choose::params(&question, choice.segments, &self.tuning)
        };
        Ok((choice.algorithm, params))
    }

    /// Carries out a call.
    fn run(&mut self, request: Request<'_>, bytes: Bytes<'_>, options: &CallOptions) -> Result<()> {
        let (algorithm, params) = self.choose(&request, bytes.in_place, options)?;
        let reduction = match (request.op, request.dtype) {
            (Some(op), Some(dtype)) => Some(Reduction::new(op, dtype)?),
            // A barrier reduces nothing.
            _ if request.collective.base() == Collective::Barrier => {
                Some(Reduction::new(ReduceOp::Sum, DType::U8)?)
            }
            _ => None,
        };
        let layout = request.layout(self.group, algorithm, &params);
        let call = request.call(self.group, algorithm, options.detail);
        let fingerprint = call.fingerprint();
        let sequence = self.history.push(call);
        let job = Job { layout: &layout, reduction, ranks: self.group.size(), sequence, fingerprint };
        let mut scratch = std::mem::take(&mut self.scratch);
        let needed = (algorithm.slots)(&params) * layout.slot_bytes();
        if scratch.len() < needed {
            scratch.resize(needed, 0);
        }
        let mut buffers = Buffers { input: bytes.input, output: bytes.output, scratch: &mut scratch };
        let mut clock = Clock::start(self.data.now(), options.timeout, self.config.announce_after);
        let mut steps = (algorithm.steps)(&params);
        let result = self.drive(&mut *steps, &job, &mut buffers, &mut clock);
        self.scratch = scratch;
        result.map_err(|stop| {
            let error = self.diagnose(stop);
            self.give_up(error)
        })
    }

    /// Alternates between moving and waiting until the call is done.
    fn drive(
        &mut self,
        steps: &mut dyn Iterator<Item = Step>,
        job: &Job<'_>,
        buffers: &mut Buffers<'_>,
        clock: &mut Clock,
    ) -> Result<(), Stop> {
        self.check_doom()?;
        if self.group.size() > 1 && self.control.arm()? == Armed::Ready {
            self.hear()?;
        }
        self.check_members()?;
        self.compare_with_announced()?;
        self.audit_now_and_then(clock.started)?;
        loop {
            match self.executor.progress(&mut self.data, steps, job, buffers)? {
                Progress::Done => {
                    self.waiter.moved(|| self.data.now());
                    return Ok(());
                }
                Progress::Blocked { moved } => {
                    if moved {
                        self.waiter.moved(|| self.data.now());
                    }
                    match self.waiter.idle(self.data.now()) {
                        Idle::Spin => std::hint::spin_loop(),
                        Idle::Yield => rustix::thread::sched_yield(),
                        Idle::Sleep => self.sleep(clock)?,
                    }
                }
            }
        }
    }

    /// Sleeps until something can move, somebody says something, or a time has come.
    fn sleep(&mut self, clock: &mut Clock) -> Result<(), Stop> {
        if self.control.arm()? == Armed::Ready {
            self.hear()?;
            self.check_members()?;
            if self.control.arm()? == Armed::Ready {
                return Ok(());
            }
        }
        if self.data.arm(self.executor.interest())? == Armed::Ready {
            return Ok(());
        }
        let now = self.data.now();
        if clock.is_over(now) {
            return Err(self.timeout(clock.timeout).into());
        }
        if now >= clock.announce_at {
            self.announce();
            clock.announced(now);
            return self.audit(now);
        }
        wait_for([self.data.descriptor(), self.control.descriptor()], clock.until_next(now))?;
        Ok(())
    }

    /// Tells everybody which call this rank is blocked in, and whom it waits for.
    fn announce(&mut self) {
        let sequence = self.history.last();
        let Some(call) = self.history.get(sequence).cloned() else { return };
        let mut waiting_for = self.waiting_for();
        waiting_for.truncate(Announce::WAITING_MAX);
        self.control.send_all(&Frame::Announce(Announce { sequence, question: false, call, waiting_for }));
    }

    /// The call under way, for errors.
    pub(super) fn during(&self) -> During {
        let sequence = self.history.last();
        match self.history.get(sequence) {
            Some(call) => During::Call { call: Box::new(call.clone()), sequence },
            None => During::Other("no call was made yet"),
        }
    }

    /// Drops what is left of a call that failed.
    pub(super) fn drop_call(&mut self) {
        self.executor.reset();
        self.data.revoke();
    }
}

/// Multiplies contributions that are to be multiplied before they are summed.
fn start(request: &Request<'_>, contribution: &mut [u8]) -> Result<()> {
    if let (Some(op), Some(dtype)) = (request.op, request.dtype) {
        Reduction::new(op, dtype)?.start(contribution);
    }
    Ok(())
}
