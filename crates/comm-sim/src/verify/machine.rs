//! The execution of all ranks without buffering.

use comm_core::Action;

use super::rank::{End, Rank, Slot, check};
use super::{
    Blocked, Contributors, Fault, Program, Reason, Required, Spec, Stats, StepLocation, Tree, Value,
};

/// The state of all ranks.
pub(super) struct Machine<'a> {
    spec: Spec,
    window: usize,
    ranks: Vec<Rank<'a>>,
    /// Ranks that may be able to continue.
    awake: Vec<usize>,
    /// The values in flight. The vector is kept to reuse its memory.
    moving: Vec<Value>,
    rounds: u32,
}

impl<'a> Machine<'a> {
    pub(super) fn new(program: &Program<'a>, window: usize) -> Self {
        let size = program.spec.ranks;
        Self {
            spec: program.spec,
            window,
            ranks: (0..size).map(|rank| Rank::new(program, rank)).collect(),
            awake: (0..size).rev().collect(),
            moving: Vec::new(),
            rounds: 0,
        }
    }

    /// Runs until every rank has ended.
    pub(super) fn run(&mut self) -> Result<(), Fault> {
        while let Some(rank) = self.awake.pop() {
            self.advance(rank)?;
        }
        let blocked = self.blocked();
        if blocked.is_empty() { Ok(()) } else { Err(Fault::Deadlock(blocked)) }
    }

    pub(super) fn into_stats(self) -> Stats {
        Stats { ranks: self.ranks.into_iter().map(|rank| rank.traffic).collect(), rounds: self.rounds }
    }

    /// Runs all steps of a rank that can run: local ones, and messages whose other end is waiting.
    fn advance(&mut self, rank: usize) -> Result<(), Fault> {
        loop {
            self.fill(rank)?;
            let local = self.start(rank)?;
            let matched = self.find_match(rank);
            if let Some((send, recv)) = matched {
                self.transfer(send, recv)?;
            } else if !local {
                return Ok(());
            }
        }
    }

    /// Moves the window past finished steps, and fills it with new ones.
    fn fill(&mut self, rank: usize) -> Result<(), Fault> {
        let state = &mut self.ranks[rank];
        while state.window.front().is_some_and(|slot| slot.done) {
            state.window.pop_front();
        }
        while state.window.len() < self.window {
            let Some(step) = state.steps.next() else { break };
            let at = StepLocation { rank, index: state.traffic.steps, step };
            state.traffic.steps += 1;
            check(at, &self.spec, &state.memory)?;
            state.window.push_back(Slot { at, started: false, done: false });
        }
        Ok(())
    }

    /// Starts every step that conflicts with no earlier one, and runs those that are local. Returns
    /// whether a local step ran.
    fn start(&mut self, rank: usize) -> Result<bool, Fault> {
        let state = &mut self.ranks[rank];
        let mut ran = false;
        for position in 0..state.window.len() {
            let slot = state.window[position];
            if slot.started || state.conflict(position).is_some() {
                continue;
            }
            state.window[position].started = true;
            if slot.end().is_none() {
                let depth = state.run_local(slot.at, &mut self.moving)?;
                self.rounds = self.rounds.max(depth);
                state.window[position].done = true;
                ran = true;
            }
        }
        Ok(ran)
    }

    /// Returns a message of this rank whose two ends have both started and are the next ones of
    /// their streams, as (rank, position) of the send and of the receive.
    fn find_match(&self, rank: usize) -> Option<((usize, usize), (usize, usize))> {
        let state = &self.ranks[rank];
        for (position, slot) in state.window.iter().enumerate() {
            let Some(end) = slot.end().filter(|end| state.next(*end) == Some(position)) else { continue };
            let (peer, other) = match end {
                End::To(peer) => (peer, End::From(rank)),
                End::From(peer) => (peer, End::To(rank)),
            };
            let Some(theirs) = self.ranks[peer].next(other) else { continue };
            if slot.started && self.ranks[peer].window[theirs].started {
                let (ours, theirs) = ((rank, position), (peer, theirs));
                return Some(if matches!(end, End::To(_)) { (ours, theirs) } else { (theirs, ours) });
            }
        }
        None
    }

    /// Moves a message.
    fn transfer(&mut self, send: (usize, usize), recv: (usize, usize)) -> Result<(), Fault> {
        let (from, to) = (self.ranks[send.0].window[send.1].at, self.ranks[recv.0].window[recv.1].at);
        let blocks = from.step.blocks;
        if blocks != to.step.blocks {
            return Err(Fault::Mismatch { send: Box::new(from), recv: Box::new(to) });
        }
        let sender = &mut self.ranks[send.0];
        sender.memory.read(from, from.step.place, &mut self.moving)?;
        let depth_of_send = sender.memory.depth_to_read(from.step.place, blocks);
        sender.window[send.1].done = true;
        sender.traffic.messages_sent += 1;
        sender.traffic.blocks_sent += blocks.count;

        let receiver = &mut self.ranks[recv.0];
        if !self.spec.counts() {
            let seen = |seen: Contributors, value: &Value| seen.union(&value.contributors);
            receiver.seen = self.moving.iter().fold(receiver.seen.clone(), seen);
        }
        let mut depth = depth_of_send.max(receiver.memory.depth_to_write(to.step.place, blocks));
        if let Action::RecvReduce { with, .. } = to.step.action {
            receiver.memory.combine(to, with, &mut self.moving)?;
            depth = depth.max(receiver.memory.depth_to_read(with, blocks));
            receiver.memory.reached(with, blocks, depth + 1, false);
        }
        let depth = depth + 1;
        receiver.memory.write(to, &mut self.moving)?;
        receiver.memory.reached(to.step.place, blocks, depth, true);
        receiver.window[recv.1].done = true;
        receiver.traffic.messages_received += 1;
        receiver.traffic.blocks_received += blocks.count;

        self.ranks[send.0].memory.reached(from.step.place, blocks, depth, false);
        self.rounds = self.rounds.max(depth);
        self.awake.push(send.0);
        self.awake.push(recv.0);
        Ok(())
    }

    /// Returns every step that is in a window when no rank can continue.
    fn blocked(&self) -> Vec<Blocked> {
        let mut blocked = Vec::new();
        for state in &self.ranks {
            for (position, slot) in state.window.iter().enumerate().filter(|(_, slot)| !slot.done) {
                let reason = self.reason(state, position, slot);
                blocked.push(Blocked { at: slot.at, reason });
            }
        }
        blocked
    }

    fn reason(&self, state: &Rank<'_>, position: usize, slot: &Slot) -> Reason {
        if let Some(earlier) = state.conflict(position) {
            return Reason::Conflict(earlier);
        }
        let (Some(end @ End::To(peer)) | Some(end @ End::From(peer))) = slot.end() else {
            return Reason::Conflict(slot.at.index);
        };
        match state.next(end) {
            Some(next) if next != position => Reason::EarlierMessage(state.window[next].at.index),
            _ if self.ranks[peer].window.is_empty() => Reason::Ended(peer),
            _ => Reason::Peer(peer),
        }
    }

    /// Compares the output of every rank with the requirements.
    pub(super) fn check_results(&self, tree: Option<Tree<'_>>) -> Result<(), Fault> {
        self.check_contents()?;
        tree.map_or(Ok(()), |tree| self.check_tree(tree))
    }

    /// Compares the order in which every result was combined with the required tree. A single rank
    /// combines nothing.
    fn check_tree(&self, tree: Tree<'_>) -> Result<(), Fault> {
        let size = self.spec.ranks;
        for block in (0..self.spec.blocks).filter(|_| size > 1) {
            let hash = tree.hash(block, size);
            for (rank, state) in self.ranks.iter().enumerate() {
                let reduced = self.spec.required(rank, block) == Required::Reduced;
                if reduced && state.memory.output(block).map(|value| value.tree) != hash {
                    return Err(Fault::Tree { rank, block });
                }
            }
        }
        Ok(())
    }

    fn check_contents(&self) -> Result<(), Fault> {
        for (rank, state) in self.ranks.iter().enumerate() {
            if !self.spec.counts() && state.seen.len() < self.spec.ranks {
                return Err(Fault::Barrier { rank, seen: state.seen.clone() });
            }
            for block in 0..self.spec.blocks {
                self.check_result(rank, block)?;
            }
        }
        Ok(())
    }

    fn check_result(&self, rank: usize, block: usize) -> Result<(), Fault> {
        let required = self.spec.required(rank, block);
        let found = self.ranks[rank].memory.output(block);
        let size = self.spec.ranks;
        let right = match required {
            Required::Nothing => true,
            Required::Of(rank) => found.is_some_and(|value| {
                value.block == block && value.contributors == Contributors::one(rank, size) && !value.finished
            }),
            // On a single rank, the end of a reduction may be omitted: it divides by one.
            Required::Reduced => found.is_some_and(|value| {
                value.block == block && value.contributors.len() == size && (value.finished || size == 1)
            }),
            Required::First(ranks) => found.is_some_and(|value| {
                let right = value.contributors == Contributors::first(ranks, size);
                value.block == block && right && !value.finished
            }),
        };
        if !right {
            let found = found.map_or_else(|| "nothing".into(), ToString::to_string);
            return Err(Fault::Result { rank, block, found, required });
        }
        let first = self.ranks[0].memory.output(block);
        if self.spec.same_everywhere() && first.map(|value| value.tree) != found.map(|value| value.tree) {
            return Err(Fault::Order { ranks: (0, rank), block });
        }
        Ok(())
    }
}
