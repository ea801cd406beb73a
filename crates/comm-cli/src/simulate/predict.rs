//! Predicts the time of an algorithm by simulation or by its closed form.

use std::time::Duration;

use comm::ring::choose::{CallShape, Selection, choose, params, sizes};
use comm::ring::schedule::{Algorithm, Params};
use comm_sim::cost::{self, SimulationOptions, TimedProgram, simulate_with};
use indicatif::{ProgressBar, ProgressStyle};

use super::options::Setup;
use crate::error::{CliError, Result};

/// The number of ranks whose steps are counted to estimate the length of a program.
const SAMPLED_RANKS: usize = 16;

/// The predicted costs of an algorithm.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prediction {
    pub(super) algorithm: &'static str,
    pub(super) segments: usize,
    /// The time in seconds.
    pub(super) time: f64,
    /// The largest number of messages that a rank sends or receives.
    pub(super) messages: usize,
    /// The largest number of bytes that a rank sends or receives.
    pub(super) bytes: f64,
    /// The largest number of steps of a rank, if they were simulated.
    pub(super) steps: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Simulator<'a> {
    setup: &'a Setup,
    steps_max: usize,
}

impl<'a> Simulator<'a> {
    pub(super) const fn new(setup: &'a Setup, steps_max: usize) -> Self {
        Self { setup, steps_max }
    }

    /// Predicts the costs at the size of the setup, by simulation if the program is short enough.
    pub(super) fn predict(&self, row: &'static Algorithm) -> Result<Prediction> {
        let choice = self.choice(row, self.setup.shape.bytes)?;
        if let Some(steps) = self.steps(row, &self.params(&choice))
            && let Some(simulated) = self.simulate(&choice, self.setup.shape.bytes, steps)?
        {
            return Ok(simulated);
        }
        let cost = (row.cost)(&self.params(&choice));
        let sizes = sizes(&self.setup.shape, row, &self.params(&choice));
        Ok(Prediction {
            algorithm: row.name,
            segments: choice.segments,
            time: choice.time,
            messages: cost.messages,
            bytes: cost.blocks as f64 * sizes.block_bytes_max() as f64,
            steps: None,
        })
    }

    /// Predicts the times at several sizes. Either all of them are simulated or none, so that they
    /// form one curve. The flag is true if they are simulated.
    pub(super) fn curve(&self, row: &'static Algorithm, bytes: &[usize]) -> Result<(bool, Vec<f64>)> {
        let choices: Vec<Selection> =
            bytes.iter().map(|bytes| self.choice(row, *bytes)).collect::<Result<_, _>>()?;
        let steps: Option<Vec<u64>> =
            choices.iter().map(|choice| self.steps(row, &self.params(choice))).collect();
        if let Some(steps) = steps
            && steps.iter().sum::<u64>() <= self.steps_max as u64
        {
            let mut times = Vec::new();
            for ((choice, bytes), steps) in choices.iter().zip(bytes).zip(steps) {
                times.extend(self.simulate(choice, *bytes, steps)?.map(|simulated| simulated.time));
            }
            if times.len() == bytes.len() {
                return Ok((true, times));
            }
        }
        Ok((false, choices.iter().map(|choice| choice.time).collect()))
    }

    fn shape(&self, bytes: usize) -> CallShape {
        self.setup.shape.bytes(bytes)
    }

    fn choice(&self, row: &Algorithm, bytes: usize) -> Result<Selection> {
        Ok(choose(&self.shape(bytes), Some(row.name), &self.setup.tuning)?)
    }

    fn params(&self, choice: &Selection) -> Params {
        let params = params(&self.setup.shape, choice.segments, &self.setup.tuning);
        params.root(self.setup.root)
    }

    /// Estimates the number of steps of a program; `None` if it exceeds the limit. The root, which
    /// has the most steps, is counted exactly.
    fn steps(&self, row: &Algorithm, p: &Params) -> Option<u64> {
        let limit = self.steps_max;
        let count = |rank| (row.steps)(&p.rank(rank)).take(limit.saturating_add(1)).count();
        let of_root = count(p.root);
        let others = p.ranks - 1;
        let sampled = others.min(SAMPLED_RANKS);
        if of_root > limit {
            return None;
        }
        let mut sum = 0_usize;
        for sample in 0..sampled {
            let distance = 1 + sample * others / sampled;
            sum = sum.saturating_add(count((p.root + distance) % p.ranks));
            if sum > limit {
                return None;
            }
        }
        let steps = of_root as f64 + sum as f64 / sampled.max(1) as f64 * others as f64;
        // The estimate may be too high, so it gets some slack; the simulation counts exactly.
        (steps <= 1.5 * limit as f64).then_some(steps as u64)
    }

    /// Simulates the program; `None` if it exceeds the limit.
    fn simulate(&self, choice: &Selection, bytes: usize, steps: u64) -> Result<Option<Prediction>> {
        let (row, p) = (choice.algorithm, self.params(choice));
        let sizes = sizes(&self.shape(bytes), row, &p);
        let of_rank = |rank| (row.steps)(&p.rank(rank)) as _;
        let program = TimedProgram { ranks: p.ranks, sizes: &sizes, steps: &of_rank };
        let tuning = &self.setup.tuning;
        let options =
            SimulationOptions::new(tuning.links).window(tuning.window).steps_max(self.steps_max as u64);
        let bar = progress_bar(row.name, steps);
        let report = simulate_with(&program, &options, &mut |steps| bar.set_position(steps));
        bar.finish_and_clear();
        match report {
            Ok(report) => Ok(Some(Prediction {
                algorithm: row.name,
                segments: p.segments,
                time: report.time,
                messages: report.messages_max(),
                bytes: report.bytes_max() as f64,
                steps: Some(report.steps_max()),
            })),
            Err(cost::SimulationError::TooLong { .. }) => Ok(None),
            Err(source) => Err(CliError::Simulation { algorithm: row.name, source }),
        }
    }
}

/// Creates a progress bar on standard error, which is hidden unless that is a terminal.
fn progress_bar(name: &'static str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} of about {human_len} steps");
    let bar = ProgressBar::new(steps).with_message(name);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
