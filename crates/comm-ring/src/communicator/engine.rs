//! Prepares the buffers of a call, selects its schedule and runs it.

use std::time::Duration;

use comm_core::{Call, CallOptions, Group, InputCopy, Reduction, Result, Signature, Transport, copy};

use super::checked_call::{Bytes, CheckedCall};
use super::last_call::LastCall;
use super::program::{Buffers, Programs};
use super::scratch::{Scratch, SharedBufferSource};
use super::session::Session;
use super::wide::Wide;
use crate::executor::{Job, Regions};
use crate::{RingConfig, Tuning};

/// The longest buffer of a call that is not timed, unless it waits or is sampled.
const SHORT_BYTES_MAX: usize = 64 << 10;

/// Calls with shorter results do not ask which memory is read in place: that would take longer than
/// it saves.
pub(super) const READ_IN_PLACE_MIN: usize = 16 << 10;

/// The target of the spans of calls.
const CALL_TARGET: &str = "comm_ring::call";

/// Creates the span of a call.
#[cold]
fn call_span(call: &Signature, group: Group, sequence: u64) -> tracing::Span {
    tracing::trace_span!(
        target: CALL_TARGET,
        "collective",
        collective = call.collective.name(),
        algorithm = &*call.algorithm,
        bytes = call.bytes(group.size()),
        sequence,
        group = %group.id(),
        rank = group.rank(),
    )
}

/// Prepares the buffers of calls and runs them, one call at a time.
pub(super) struct Engine {
    /// The last call that was prepared.
    last: LastCall,
    /// Copies of buffers in `f32`, for reductions of 16-bit floats with partial sums in `f32`.
    wide: Wide,
    inputs: InputCopies,
}

/// Runs calls whose contribution may have to be copied or multiplied first.
pub(super) struct InputCopies {
    /// A copy of a contribution that the result would overwrite.
    copy: Vec<u8>,
    runner: Runner,
}

/// Runs compiled schedules.
struct Runner {
    programs: Programs,
    scratch: Scratch,
    session: Session,
}

impl Engine {
    /// Creates the engine of a group over its control and data streams, with settings on which the
    /// members have yet to agree.
    pub(super) fn new(
        (control, data): (Box<dyn Transport>, Box<dyn Transport>),
        members: Option<&[usize]>,
        stage: SharedBufferSource,
        config: RingConfig,
    ) -> Self {
        let tuning = Tuning::FOR_AGREEMENT;
        let session = Session::new(control, data, members, tuning.window, config);
        let programs = Programs::new(session.group, tuning, session.data.registration_sizes());
        let last = LastCall::none(session.group.id());
        let runner = Runner { programs, scratch: Scratch::new(stage), session };
        Self { last, wide: Wide::default(), inputs: InputCopies { copy: Vec::new(), runner } }
    }

    /// Returns the settings on which the members agreed.
    pub(super) const fn tuning(&self) -> &Tuning {
        self.inputs.runner.programs.tuning()
    }

    /// Uses these settings from the next call on.
    pub(super) fn adopt(&mut self, tuning: Tuning) {
        let Runner { programs, session, .. } = &mut self.inputs.runner;
        session.executor.set_window(tuning.window);
        *programs = Programs::new(session.group, tuning, session.data.registration_sizes());
    }

    /// Returns the state that is shared with the peers.
    #[inline]
    pub(super) const fn session(&self) -> &Session {
        &self.inputs.runner.session
    }

    /// Returns the state that is shared with the peers.
    #[inline]
    pub(super) const fn session_mut(&mut self) -> &mut Session {
        &mut self.inputs.runner.session
    }

    /// Checks a call, unless it repeats the last one.
    #[inline(always)]
    pub(super) fn prepare(&mut self, call: &Call<'_>, options: &CallOptions) -> Result<()> {
        if !self.last.is_repeated_by(call, options) {
            self.last = self.last.next(call, options, self.session().group)?;
        }
        Ok(())
    }

    /// Runs the call that was prepared.
    #[inline(always)]
    pub(super) fn call(&mut self, call: Call<'_>, timeout: Duration) -> Result<()> {
        let LastCall { signature, number, .. } = &self.last;
        let checked = CheckedCall { signature, counts: call.counts(), number: *number };
        let session = &mut self.inputs.runner.session;
        let bytes = Bytes::new(call.into_operands(session.group.rank()), signature.collective);
        session.check_nan(signature, &bytes)?;
        match checked.widening() {
            None => self.inputs.run(&checked, bytes, timeout),
            Some(widening) => self.wide.run(&checked, bytes, widening, timeout, &mut self.inputs),
        }
    }

    /// Runs a call on these bytes without copying or multiplying them first.
    pub(super) fn execute(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: Bytes<'_>,
        timeout: Duration,
    ) -> Result<()> {
        self.inputs.runner.execute(call, bytes.input, bytes.output, bytes.in_place, timeout)
    }
}

impl InputCopies {
    pub(super) const fn rank(&self) -> usize {
        self.runner.session.group.rank()
    }

    /// Runs a call after copying and multiplying its contribution, if needed.
    #[inline(always)]
    pub(super) fn run(
        &mut self,
        call: &CheckedCall<'_>,
        mut bytes: Bytes<'_>,
        timeout: Duration,
    ) -> Result<()> {
        // In a branch of its own: to move a reduction that there may be takes a measurable part of
        // the time of a small call.
        if call.may_multiply()
            && let Some(factor) = call.premultiplication(self.runner.session.group.size())?
        {
            return self.run_multiplied(call, bytes, factor, timeout);
        }
        match call.signature.input_copy(self.rank(), bytes.in_place, false) {
            InputCopy::ToScratch => return self.run_on_copy(call, bytes, None, timeout),
            InputCopy::IntoOutput if !call.may_start_from(bytes.input) => bytes.copy_in(),
            InputCopy::IntoOutput | InputCopy::None => {}
        }
        self.runner.execute(call, bytes.input, bytes.output, bytes.in_place, timeout)
    }

    /// Runs a call after multiplying its contribution.
    fn run_multiplied(
        &mut self,
        call: &CheckedCall<'_>,
        mut bytes: Bytes<'_>,
        factor: Reduction,
        timeout: Duration,
    ) -> Result<()> {
        match call.signature.input_copy(self.rank(), bytes.in_place, true) {
            InputCopy::ToScratch => return self.run_on_copy(call, bytes, Some(factor), timeout),
            InputCopy::IntoOutput => bytes.copy_in(),
            InputCopy::None => {}
        }
        factor.start(bytes.output, self.runner.session.group.size());
        self.runner.execute(call, bytes.input, bytes.output, bytes.in_place, timeout)
    }

    /// Runs a call on a copy of its contribution, which is multiplied first if there is a `factor`.
    fn run_on_copy(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: Bytes<'_>,
        factor: Option<Reduction>,
        timeout: Duration,
    ) -> Result<()> {
        self.copy.clear();
        self.copy.extend_from_slice(if bytes.in_place { bytes.output } else { bytes.input });
        if let Some(reduction) = factor {
            reduction.start(&mut self.copy, self.runner.session.group.size());
        }
        self.runner.execute(call, &self.copy, bytes.output, false, timeout)
    }
}

impl Runner {
    /// Compiles the call, unless it is cached, and runs it. The buffers are separate parameters so
    /// that they are passed in registers: copies through memory slow small calls measurably.
    fn execute(
        &mut self,
        call: &CheckedCall<'_>,
        input: &[u8],
        output: &mut [u8],
        in_place: bool,
        timeout: Duration,
    ) -> Result<()> {
        let Self { programs, scratch, session } = self;
        let own = if in_place { &*output } else { input };
        let is_long = own.len() >= READ_IN_PLACE_MIN;
        let exposed = is_long && session.exposes(call.signature.collective, own);
        let learns = is_long && call.shape(session.group).learns_windows();
        let has_window = learns && exposed && session.data.is_window(own);
        let all_have_windows = learns && session.all_have_windows;
        let program = programs.get(call, Buffers { in_place, exposed, all_have_windows })?;
        if program.starts_with_copy {
            copy(output, input);
        }
        let (reduction, fingerprint) = (program.reduction.as_ref(), program.fingerprint);
        // The exact clock takes a measurable part of the time of a small call.
        let is_exact = input.len().max(output.len()) > SHORT_BYTES_MAX
            || session.config.exact_times
            || session.history.samples_next();
        let now = if is_exact { session.data.now() } else { session.data.now_roughly() };
        let sequence = session.history.push(&program.signature, fingerprint, now, is_exact);
        let _span = tracing::enabled!(target: CALL_TARGET, tracing::Level::TRACE)
            .then(|| call_span(&program.signature, session.group, sequence).entered());
        let bypasses_caches = program.has_final_receives() && output.len() > session.cached_bytes;
        let scratch = scratch.bytes(program.scratch_bytes, program.is_staged());
        let mut buffers = Regions { input, output, scratch };
        session.register(program.registers.then_some(&buffers));
        let is_output_read = reduction.is_some()
            && buffers.output.len() >= READ_IN_PLACE_MIN
            && session.data.is_read_in_place(buffers.output);
        let results = program.results();
        let opens_window = results.is_some();
        if learns {
            session.executor.take_sender_has_window();
        }
        if opens_window {
            session.data.open_window(buffers.output, sequence);
        }
        let job = Job {
            reduction,
            sequence,
            fingerprint,
            bypasses_caches,
            is_output_read,
            has_window,
            results: results.unwrap_or_default(),
            polls: session.waiter.polls(),
        };
        match program.kept() {
            Some(steps) => session.run(&mut steps.iter(), &job, &mut buffers, now, timeout),
            None => session.run(&mut *program.steps(), &job, &mut buffers, now, timeout),
        }?;
        if opens_window {
            session.data.close_window();
        }
        if learns {
            let other = session.executor.take_sender_has_window();
            session.all_have_windows = has_window && other == Some(true);
        }
        Ok(())
    }
}
