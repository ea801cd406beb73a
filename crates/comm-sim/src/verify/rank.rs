//! The state of one rank of the machine.

use std::collections::VecDeque;

use comm_core::{Action, Place, Step};

use super::memory::Memory;
use super::{Contributors, Fault, Program, Spec, StepLocation, Steps, Traffic, Value};

/// One rank: its memory, and the unfinished part of its program.
pub(super) struct Rank<'a> {
    pub(super) steps: Steps<'a>,
    pub(super) window: VecDeque<Slot>,
    pub(super) memory: Memory,
    pub(super) traffic: Traffic,
    /// The ranks from which a chain of messages has arrived, for barriers.
    pub(super) seen: Contributors,
}

/// A step in the window.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) at: StepLocation,
    pub(super) started: bool,
    pub(super) done: bool,
}

/// The two ends of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    To(usize),
    From(usize),
}

impl Slot {
    pub(super) const fn end(&self) -> Option<End> {
        match self.at.step.action {
            Action::Send { to } => Some(End::To(to)),
            Action::Recv { from } | Action::RecvReduce { from, .. } => Some(End::From(from)),
            Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => None,
        }
    }
}

impl<'a> Rank<'a> {
    pub(super) fn new(program: &Program<'a>, rank: usize) -> Self {
        Self {
            steps: (program.steps)(rank),
            window: VecDeque::new(),
            memory: Memory::new(program, rank),
            traffic: Traffic::default(),
            seen: Contributors::one(rank, program.spec.ranks),
        }
    }

    /// Returns the program position of an earlier unfinished step that the step at `position` of
    /// the window conflicts with.
    pub(super) fn conflict(&self, position: usize) -> Option<usize> {
        let step = self.window[position].at.step;
        let earlier = self.window.iter().take(position).filter(|slot| !slot.done);
        earlier.map(|slot| slot.at).find(|at| step.conflicts(&at.step)).map(|at| at.index)
    }

    /// Returns the position in the window of the next message of a stream.
    pub(super) fn next(&self, end: End) -> Option<usize> {
        self.window.iter().position(|slot| !slot.done && slot.end() == Some(end))
    }

    /// Runs a local step, and returns the length of the chain of messages that it ends.
    pub(super) fn run_local(&mut self, at: StepLocation, moving: &mut Vec<Value>) -> Result<u32, Fault> {
        let Step { blocks, place, action } = at.step;
        let own = self.memory.depth_to_write(place, blocks);
        let depth = match at.step.src() {
            Some(src) => {
                self.memory.read(at, src, moving)?;
                if matches!(action, Action::Reduce { .. }) {
                    self.memory.combine(at, place, moving)?;
                }
                self.memory.write(at, moving)?;
                let depth = own.max(self.memory.depth_to_read(src, blocks));
                self.memory.reached(src, blocks, depth, false);
                depth
            }
            None => {
                self.memory.finish(at)?;
                own
            }
        };
        self.memory.reached(place, blocks, depth, true);
        Ok(depth)
    }
}

/// Checks a step without running it.
pub(super) fn check(at: StepLocation, spec: &Spec, memory: &Memory) -> Result<(), Fault> {
    let Step { blocks, place, action } = at.step;
    if let Action::Send { to: peer } | Action::Recv { from: peer } | Action::RecvReduce { from: peer, .. } =
        action
        && (peer >= spec.ranks || peer == at.rank)
    {
        return Err(Fault::Peer(at));
    }
    let in_range = |place| memory.in_range(place, blocks);
    if !in_range(place) || !at.step.src().is_none_or(in_range) {
        return Err(Fault::Range(at));
    }
    if place == Place::Input && !matches!(action, Action::Send { .. }) {
        return Err(Fault::WritesInput(at));
    }
    match (place, at.step.src()) {
        // Only a receive may overwrite its addend.
        (place, Some(src)) if place == src => match action {
            Action::RecvReduce { .. } => Ok(()),
            _ => Err(Fault::Overlap(at)),
        },
        (Place::Scratch { slot }, Some(Place::Scratch { slot: src }))
            if slot.abs_diff(src) < blocks.count =>
        {
            Err(Fault::Overlap(at))
        }
        _ => Ok(()),
    }
}
