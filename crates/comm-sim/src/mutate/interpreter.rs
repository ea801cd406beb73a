//! Execution of programs on numbers, in random order.

use std::collections::VecDeque;

use comm_core::{Action, Collective, Layout, Step};

use super::arrays::{Arrays, Number, layout};
use crate::random::Random;
use crate::verify::{Program, Spec, Tree};

/// The error in a program that ran on numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InterpretError {
    /// No rank could continue.
    #[error("it deadlocks with a window of {window} and space for {capacity} messages")]
    Deadlock {
        /// The window, in steps.
        window: usize,
        /// The number of messages that fit between two ranks.
        capacity: usize,
    },
    /// A message was never received.
    #[error("rank {from} sent more to rank {to} than it received")]
    LeftOver {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// A message and its receive have different sizes.
    #[error("rank {rank} receives a message of the wrong size")]
    Length {
        /// The receiver.
        rank: usize,
    },
    /// A peer is out of range.
    #[error("rank {rank} names rank {peer} as its peer")]
    Peer {
        /// The rank.
        rank: usize,
        /// The peer.
        peer: usize,
    },
    /// Blocks are outside the array.
    #[error("rank {rank} names blocks that it does not have")]
    Outside {
        /// The rank.
        rank: usize,
    },
    /// A step writes to the input.
    #[error("rank {rank} writes to its input")]
    WritesInput {
        /// The rank.
        rank: usize,
    },
    /// The output of a rank is wrong at the end.
    #[error("rank {rank} ends with the wrong numbers in block {block}")]
    Result {
        /// The rank.
        rank: usize,
        /// The block.
        block: usize,
    },
    /// Results depend on the rank, or on the order of events.
    #[error("results differ in their rounding")]
    Order,
    /// A rank passed a barrier before another had arrived.
    #[error("rank {rank} leaves the barrier before rank {absent} has arrived")]
    Barrier {
        /// The rank that left.
        rank: usize,
        /// The rank that had not arrived.
        absent: usize,
    },
}

/// The parameters of one run.
#[derive(Debug, Clone, Copy)]
struct RunOptions {
    window: usize,
    /// The number of messages that fit between two ranks. With 0, a send waits for its receive.
    capacity: usize,
    /// A rank that never starts.
    frozen: Option<usize>,
}

const UNBOUNDED: usize = usize::MAX;

/// Runs a program many times on numbers, with and without buffering of messages, with small and
/// large windows, and in random order.
///
/// # Errors
/// The [`InterpretError`] of the first run that failed.
pub fn interpret(program: &Program<'_>, seed: u64) -> Result<(), InterpretError> {
    let (spec, tree) = (&program.spec, program.tree);
    let (slots, layout) = (program.scratch_slots, layout(spec));
    let steps: Vec<Vec<Step>> = (0..spec.ranks).map(|rank| (program.steps)(rank).collect()).collect();
    let run = |manner: RunOptions, stream: u64| {
        let mut run = Execution::new(spec, &layout, slots, &steps, manner, seed);
        run.run_to_end(&mut Random::new(seed, stream)).and_then(|()| run.results(tree, seed))
    };
    let manners =
        [(Step::WINDOW_MIN, 0), (16, 0), (Step::WINDOW_MIN, UNBOUNDED), (16, UNBOUNDED), (3, 1), (5, 2)];
    let mut first: Option<Vec<Vec<Number>>> = None;
    for (stream, (window, capacity)) in manners.into_iter().enumerate() {
        let results = run(RunOptions { window, capacity, frozen: None }, stream as u64)?;
        let same_everywhere = spec.collective == Collective::AllReduce;
        if same_everywhere && results.iter().any(|result| *result != results[0]) {
            return Err(InterpretError::Order);
        }
        if *first.get_or_insert_with(|| results.clone()) != results {
            return Err(InterpretError::Order);
        }
    }
    if spec.collective == Collective::Barrier {
        for absent in 0..spec.ranks {
            let manner = RunOptions { window: 16, capacity: UNBOUNDED, frozen: Some(absent) };
            Execution::new(spec, &layout, slots, &steps, manner, seed).check_barrier(absent, seed)?;
        }
    }
    Ok(())
}

/// The state of all ranks.
struct Execution<'a> {
    spec: &'a Spec,
    steps: &'a [Vec<Step>],
    manner: RunOptions,
    /// The first unfinished step of each rank.
    oldest: Vec<usize>,
    done: Vec<Vec<bool>>,
    /// Messages from `a` to `b` are at `a * ranks + b`.
    channels: Vec<VecDeque<Vec<Number>>>,
    arrays: Vec<Arrays<'a>>,
}

impl<'a> Execution<'a> {
    fn new(
        spec: &'a Spec,
        layout: &'a Layout,
        slots: usize,
        steps: &'a [Vec<Step>],
        manner: RunOptions,
        seed: u64,
    ) -> Self {
        Self {
            spec,
            steps,
            manner,
            oldest: vec![0; spec.ranks],
            done: steps.iter().map(|steps| vec![false; steps.len()]).collect(),
            channels: vec![VecDeque::new(); spec.ranks * spec.ranks],
            arrays: (0..spec.ranks).map(|rank| Arrays::new(spec, layout, slots, rank, seed)).collect(),
        }
    }

    /// Runs steps in random order until every rank has ended.
    fn run_to_end(&mut self, random: &mut Random) -> Result<(), InterpretError> {
        while self.one(random)? {}
        if (0..self.spec.ranks).all(|rank| self.has_ended(rank)) {
            return Ok(());
        }
        let RunOptions { window, capacity, .. } = self.manner;
        Err(InterpretError::Deadlock { window, capacity })
    }

    /// Returns the results of every rank.
    fn results(&self, tree: Option<Tree<'_>>, seed: u64) -> Result<Vec<Vec<Number>>, InterpretError> {
        if let Some(at) = self.channels.iter().position(|channel| !channel.is_empty()) {
            return Err(InterpretError::LeftOver { from: at / self.spec.ranks, to: at % self.spec.ranks });
        }
        self.arrays.iter().map(|arrays| arrays.check(tree, seed)).collect()
    }

    /// Checks that no rank ends if one never starts.
    fn check_barrier(&mut self, absent: usize, seed: u64) -> Result<(), InterpretError> {
        let mut random = Random::new(seed, 99);
        while self.one(&mut random)? {}
        let left = (0..self.spec.ranks).find(|&rank| rank != absent && self.has_ended(rank));
        left.map_or(Ok(()), |rank| Err(InterpretError::Barrier { rank, absent }))
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.oldest[rank] == self.steps[rank].len()
    }

    /// Runs one step that can run. Returns whether there was one.
    fn one(&mut self, random: &mut Random) -> Result<bool, InterpretError> {
        let (ranks, window) = (self.spec.ranks, self.manner.window);
        let (any_rank, any_step) = (random.below(ranks), random.below(window));
        for rank in (0..ranks).map(|at| (any_rank + at) % ranks) {
            for offset in (0..window).map(|at| (any_step + at) % window) {
                let index = self.oldest[rank] + offset;
                if self.may_run(rank, index) && self.try_run(rank, index)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether a step is in the window, unfinished, and not preceded by an unfinished step
    /// with conflicting blocks or the same stream.
    fn may_run(&self, rank: usize, index: usize) -> bool {
        let (steps, oldest) = (&self.steps[rank], self.oldest[rank]);
        if self.manner.frozen == Some(rank)
            || index >= steps.len()
            || index >= oldest + self.manner.window
            || self.done[rank][index]
        {
            return false;
        }
        let first = |earlier: &Step| steps[index].conflicts(earlier) || same_stream(&steps[index], earlier);
        !(oldest..index).any(|earlier| !self.done[rank][earlier] && first(&steps[earlier]))
    }

    /// Runs a step, unless it must wait for a peer. Returns whether it ran.
    fn try_run(&mut self, rank: usize, index: usize) -> Result<bool, InterpretError> {
        let step = self.steps[rank][index];
        let ran = match step.action {
            Action::Send { to } => self.send(rank, to, &step)?,
            Action::Recv { from } | Action::RecvReduce { from, .. } => self.recv(rank, from, &step)?,
            Action::Reduce { with: src } | Action::Copy { from: src } => {
                let numbers = self.arrays[rank].read(src, step.blocks)?;
                let addend = matches!(step.action, Action::Reduce { .. }).then_some(step.place);
                self.arrays[rank].accept(step.place, addend, step.blocks, &numbers)?;
                true
            }
            Action::Finish => {
                self.arrays[rank].finish(step.place, step.blocks)?;
                true
            }
        };
        if ran {
            self.end(rank, index);
        }
        Ok(ran)
    }

    fn end(&mut self, rank: usize, index: usize) {
        self.done[rank][index] = true;
        while self.done[rank].get(self.oldest[rank]) == Some(&true) {
            self.oldest[rank] += 1;
        }
    }

    fn channel(&mut self, from: usize, to: usize) -> Result<&mut VecDeque<Vec<Number>>, InterpretError> {
        let ranks = self.spec.ranks;
        if from == to || from >= ranks {
            return Err(InterpretError::Peer { rank: to, peer: from });
        }
        if to >= ranks {
            return Err(InterpretError::Peer { rank: from, peer: to });
        }
        Ok(&mut self.channels[from * ranks + to])
    }

    fn send(&mut self, rank: usize, to: usize, step: &Step) -> Result<bool, InterpretError> {
        let capacity = self.manner.capacity;
        let waiting = self.channel(rank, to)?.len();
        if capacity > 0 {
            if waiting < capacity {
                let numbers = self.arrays[rank].read(step.place, step.blocks)?;
                self.channel(rank, to)?.push_back(numbers);
            }
            return Ok(waiting < capacity);
        }
        let is_match = |step: &Step| matches!(step.action, Action::Recv { from } | Action::RecvReduce { from, .. } if from == rank);
        let window = self.oldest[to]..(self.oldest[to] + self.manner.window).min(self.steps[to].len());
        let receive = window.into_iter().find(|&at| is_match(&self.steps[to][at]) && self.may_run(to, at));
        let Some(receive) = receive else { return Ok(false) };
        let numbers = self.arrays[rank].read(step.place, step.blocks)?;
        self.accept(to, &self.steps[to][receive], &numbers)?;
        self.end(to, receive);
        Ok(true)
    }

    fn recv(&mut self, rank: usize, from: usize, step: &Step) -> Result<bool, InterpretError> {
        let Some(numbers) = self.channel(from, rank)?.pop_front() else { return Ok(false) };
        self.accept(rank, step, &numbers)?;
        Ok(true)
    }

    fn accept(&mut self, rank: usize, step: &Step, numbers: &[Number]) -> Result<(), InterpretError> {
        // The source of a receive is its addend.
        self.arrays[rank].accept(step.place, step.src(), step.blocks, numbers)
    }
}

/// Returns whether two steps send to the same rank, or receive from the same rank.
fn same_stream(a: &Step, b: &Step) -> bool {
    let stream = |step: &Step| match step.action {
        Action::Send { to } => Some((true, to)),
        Action::Recv { from } | Action::RecvReduce { from, .. } => Some((false, from)),
        Action::Reduce { .. } | Action::Copy { .. } | Action::Finish => None,
    };
    stream(a).is_some() && stream(a) == stream(b)
}
