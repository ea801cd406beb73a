//! The loop that runs ranks, one at a time, until all have ended.

use super::mail::Mailbox;
use super::rank::{SimulatedRank, SimulationParams, StopReason};
use super::{Report, SimulationError, SimulationOptions, TimedProgram};

/// The number of steps between two reports of progress.
const STEPS_BETWEEN_REPORTS: u64 = 1 << 20;
/// The largest number of receives in the error of a deadlock.
const WAITING_MAX: usize = 8;

/// The state of all ranks.
pub(super) struct Simulator<'a> {
    world: SimulationParams<'a>,
    ranks: Vec<SimulatedRank<'a>>,
    mail: Mailbox,
    ended: Vec<bool>,
    /// The ranks that are being run: each waits for a message from the next one.
    path: Vec<usize>,
    on_path: Vec<bool>,
    steps: u64,
}

impl<'a> Simulator<'a> {
    pub(super) fn new(
        program: &TimedProgram<'a>,
        options: &SimulationOptions,
    ) -> Result<Self, SimulationError> {
        if !options.links.is_sound() {
            return Err(SimulationError::Links);
        }
        if program.ranks >= u32::MAX as usize {
            return Err(SimulationError::Ranks(program.ranks));
        }
        let rank = |number| SimulatedRank::new(number, (program.steps)(number), options.window);
        Ok(Self {
            world: SimulationParams {
                ranks: program.ranks,
                links: options.links,
                sizes: program.sizes,
                blocks: program.sizes.blocks(),
                steps_max: options.steps_max,
            },
            ranks: (0..program.ranks).map(rank).collect(),
            mail: Mailbox::new(program.ranks),
            ended: vec![false; program.ranks],
            path: Vec::new(),
            on_path: vec![false; program.ranks],
            steps: 0,
        })
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(u64)) -> Result<Report, SimulationError> {
        let mut reported = 0;
        let mut fresh = 0..self.ranks.len();
        while let Some(rank) = fresh.next().or_else(|| self.mail.next_woken()) {
            self.enter(rank);
            while let Some(&rank) = self.path.last() {
                self.work_on(rank)?;
                if self.steps > self.world.steps_max {
                    return Err(SimulationError::TooLong { limit: self.world.steps_max });
                }
                if self.steps - reported >= STEPS_BETWEEN_REPORTS {
                    reported = self.steps;
                    progress(reported);
                }
            }
        }
        self.check_end()?;
        let ranks: Vec<_> = self.ranks.into_iter().map(|rank| rank.report).collect();
        Ok(Report { time: ranks.iter().map(|rank| rank.end).fold(0.0, f64::max), ranks })
    }

    /// Puts a rank on the path if it can continue. Returns whether it can.
    fn enter(&mut self, rank: usize) -> bool {
        let can = !self.ended[rank] && !self.on_path[rank] && self.mail.waiting_for(rank).is_none();
        if can {
            self.path.push(rank);
            self.on_path[rank] = true;
        }
        can
    }

    /// Runs the last rank of the path. If it needs a message, the sender of that message runs next,
    /// so that many messages are waiting when the rank runs again: in a ring of n ranks, it then
    /// completes n rounds at a time.
    fn work_on(&mut self, rank: usize) -> Result<(), SimulationError> {
        if self.mail.waiting_for(rank).is_none() {
            let state = &mut self.ranks[rank];
            let before = state.report.traffic.steps;
            let halt = state.advance(&self.world, &mut self.mail)?;
            self.steps += (state.report.traffic.steps - before) as u64;
            match halt {
                StopReason::Ended => self.ended[rank] = true,
                StopReason::Awaits(from) => {
                    self.mail.wait(rank, from);
                    if self.enter(from) {
                        return Ok(());
                    }
                }
            }
        }
        self.path.pop();
        self.on_path[rank] = false;
        Ok(())
    }

    fn check_end(&self) -> Result<(), SimulationError> {
        let blocked = self.ended.iter().filter(|ended| !**ended).count();
        if let Some(first) = self.ended.iter().position(|ended| !ended) {
            return Err(SimulationError::Deadlock { ranks: blocked, waiting: self.chain(first) });
        }
        match self.mail.left() {
            Some((from, to)) => Err(SimulationError::Unreceived { from, to }),
            None => Ok(()),
        }
    }

    /// Returns the receives that wait for each other, starting at this rank.
    fn chain(&self, first: usize) -> Vec<crate::verify::StepLocation> {
        let next =
            |rank: &usize| self.mail.waiting_for(*rank).filter(|&next| next != first && !self.ended[next]);
        let ranks = std::iter::successors(Some(first), next);
        ranks.take(WAITING_MAX).filter_map(|rank| self.ranks[rank].blocked_at()).collect()
    }
}
