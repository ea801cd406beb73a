//! The simulation of one rank: its steps in order, with their start and end times.

use std::collections::VecDeque;

use comm_core::{Action, Blocks, LinkModel, Partition, Step};

use super::mail::{Mailbox, Message};
use super::timeline::Timeline;
use super::window::{Timed, Window};
use super::{RankReport, SimulationError, Steps};
use crate::verify::StepLocation;

/// The parameters that all ranks share.
#[derive(Debug)]
pub(super) struct SimulationParams<'a> {
    pub(super) ranks: usize,
    pub(super) links: LinkModel,
    pub(super) sizes: &'a Partition,
    /// The number of blocks.
    pub(super) blocks: usize,
    pub(super) steps_max: u64,
}

impl SimulationParams<'_> {
    /// Returns the size of blocks in bytes, or `None` if there are no such blocks.
    fn bytes(&self, blocks: Blocks) -> Option<usize> {
        let end = blocks.first.checked_add(blocks.count)?;
        if end <= self.blocks { self.sizes.size(blocks) } else { None }
    }
}

/// The reason why a rank stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    Ended,
    /// It needs a message from this rank that has not been sent yet.
    Awaits(usize),
}

/// The state of one rank.
pub(super) struct SimulatedRank<'a> {
    number: usize,
    steps: Steps<'a>,
    exhausted: bool,
    /// The next step, if the rank is blocked before it.
    next: Option<Step>,
    /// Deferred receives, which later steps may overtake.
    receives: VecDeque<(usize, Step)>,
    window: Window,
    /// The busy times of the rank itself, and of its two ports.
    busy: Timeline,
    port_out: Timeline,
    port_in: Timeline,
    pub(super) report: RankReport,
}

impl<'a> SimulatedRank<'a> {
    pub(super) fn new(number: usize, steps: Steps<'a>, window: usize) -> Self {
        Self {
            number,
            steps,
            exhausted: false,
            next: None,
            receives: VecDeque::new(),
            window: Window::new(window),
            busy: Timeline::default(),
            port_out: Timeline::default(),
            port_in: Timeline::default(),
            report: RankReport::default(),
        }
    }

    /// Runs until a message is missing or the program ends.
    ///
    /// A receive is deferred until a later step needs it or its space in the window, so that it
    /// does not delay sends that need not wait for it. Whether its message has arrived is ignored,
    /// so that times do not depend on the order in which ranks run.
    pub(super) fn advance(
        &mut self,
        world: &SimulationParams<'_>,
        mail: &mut Mailbox,
    ) -> Result<StopReason, SimulationError> {
        while !self.exhausted {
            let Some(step) = self.next.take().or_else(|| self.steps.next()) else {
                self.exhausted = true;
                break;
            };
            let timed = Timed::new(&step);
            if let Some(from) = self.receive_until(self.needed(&step, &timed), world, mail)? {
                self.next = Some(step);
                return Ok(StopReason::Awaits(from));
            }
            if self.report.traffic.steps as u64 >= world.steps_max {
                return Err(SimulationError::TooLong { limit: world.steps_max });
            }
            self.report.traffic.steps += 1;
            match step.action {
                Action::Send { to } => self.send(&step, &timed, to, world, mail)?,
                Action::Recv { .. } | Action::RecvReduce { .. } => {
                    self.receives.push_back((self.window.position(), step));
                    self.window.place(&timed, None);
                }
                Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => {
                    self.run_local(&step, &timed, world)?;
                }
            }
        }
        let missing = self.receive_until(self.receives.len(), world, mail)?;
        Ok(missing.map_or(StopReason::Ended, StopReason::Awaits))
    }

    /// Returns the receive that blocks the rank.
    pub(super) fn blocked_at(&self) -> Option<StepLocation> {
        self.receives.front().map(|(position, step)| self.at(*position, step))
    }

    const fn at(&self, index: usize, step: &Step) -> StepLocation {
        StepLocation { rank: self.number, index, step: *step }
    }

    /// Returns the number of deferred receives that must run before a step.
    fn needed(&self, step: &Step, timed: &Timed) -> usize {
        let receives = matches!(step.action, Action::Recv { .. } | Action::RecvReduce { .. });
        let needs = |position| {
            self.window.is_full_from(position) || !receives && timed.conflicts(self.window.at(position))
        };
        self.receives.iter().rposition(|(position, _)| needs(*position)).map_or(0, |last| last + 1)
    }

    /// Runs the first `count` deferred receives. Returns the rank whose message is missing, if
    /// there is one.
    fn receive_until(
        &mut self,
        mut count: usize,
        world: &SimulationParams<'_>,
        mail: &mut Mailbox,
    ) -> Result<Option<usize>, SimulationError> {
        while count > 0
            && let Some(&(position, step)) = self.receives.front()
        {
            if let Some(from) = self.receive(position, &step, world, mail)? {
                return Ok(Some(from));
            }
            self.receives.pop_front();
            count -= 1;
        }
        Ok(None)
    }

    /// Returns the time at which the first step whose times are unknown entered the window: no
    /// later request starts earlier.
    fn horizon(&self) -> f64 {
        let first = self.receives.front().map_or(self.window.position(), |(position, _)| *position);
        self.window.entered(first)
    }

    fn send(
        &mut self,
        step: &Step,
        timed: &Timed,
        to: usize,
        world: &SimulationParams<'_>,
        mail: &mut Mailbox,
    ) -> Result<(), SimulationError> {
        let position = self.window.position();
        if to >= world.ranks || to == self.number {
            return Err(SimulationError::Peer(self.at(position, step)));
        }
        let Some(bytes) = world.bytes(step.blocks) else {
            return Err(SimulationError::Blocks(self.at(position, step)));
        };
        let link = world.links.link(self.number, to);
        let horizon = self.horizon();
        let free = self.window.free(position, timed, self.window.entered(position));
        let handed_over = self.busy.take(free.conflicts, link.overhead, horizon) + link.overhead;
        let on_port = bytes as f64 * link.per_byte;
        let left = self.port_out.take(handed_over.max(free.stream), on_port, horizon);
        mail.send(self.number, to, Message { ready: left + link.latency, blocks: step.blocks, bytes });
        self.report.traffic.messages_sent += 1;
        self.report.traffic.blocks_sent += step.blocks.count;
        self.report.bytes_sent += bytes as u64;
        self.report.end = self.report.end.max(left + on_port);
        self.window.place(timed, Some(left + on_port));
        Ok(())
    }

    /// Receives, or returns the rank whose message is missing.
    fn receive(
        &mut self,
        position: usize,
        step: &Step,
        world: &SimulationParams<'_>,
        mail: &mut Mailbox,
    ) -> Result<Option<usize>, SimulationError> {
        let (Action::Recv { from } | Action::RecvReduce { from, .. }) = step.action else { return Ok(None) };
        if from >= world.ranks || from == self.number {
            return Err(SimulationError::Peer(self.at(position, step)));
        }
        let Some(message) = mail.receive(from, self.number) else { return Ok(Some(from)) };
        if message.blocks != step.blocks {
            return Err(SimulationError::Mismatch { at: self.at(position, step), sent: message.blocks });
        }
        let link = world.links.link(from, self.number);
        let on_port = message.bytes as f64 * link.per_byte;
        let entered = self.window.entered(position);
        let arrived = self.port_in.take(message.ready.max(entered), on_port, entered) + on_port;
        let free = self.window.free(position, self.window.at(position), arrived);
        let reduces = matches!(step.action, Action::RecvReduce { .. });
        let work = link.overhead + if reduces { message.bytes as f64 * world.links.reduce } else { 0.0 };
        let end = self.busy.take(free.conflicts.max(free.stream), work, entered) + work;
        self.report.traffic.messages_received += 1;
        self.report.traffic.blocks_received += step.blocks.count;
        self.report.bytes_received += message.bytes as u64;
        self.report.end = self.report.end.max(end);
        self.window.set_end(position, end);
        Ok(None)
    }

    fn run_local(
        &mut self,
        step: &Step,
        timed: &Timed,
        world: &SimulationParams<'_>,
    ) -> Result<(), SimulationError> {
        let position = self.window.position();
        let Some(bytes) = world.bytes(step.blocks) else {
            return Err(SimulationError::Blocks(self.at(position, step)));
        };
        let free = self.window.free(position, timed, self.window.entered(position));
        let reduces = matches!(step.action, Action::Reduce { .. });
        let work = if reduces { bytes as f64 * world.links.reduce } else { 0.0 };
        let end = self.busy.take(free.conflicts, work, self.horizon()) + work;
        self.report.end = self.report.end.max(end);
        self.window.place(timed, Some(end));
        Ok(())
    }
}
