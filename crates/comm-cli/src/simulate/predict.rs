//! How long an algorithm takes: simulated, or by closed form.

use std::time::Duration;

use comm::ring::choose::{CallShape, Selection, choose, params, sizes};
use comm::ring::schedule::{Algorithm, Params};
use comm_sim::cost::{self, Options, Program, simulate_with};
use indicatif::{ProgressBar, ProgressStyle};

use super::Failure;
use super::options::Setup;

/// How many ranks tell how long a program is.
const SAMPLED_RANKS: usize = 16;

/// What an algorithm is predicted to cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prediction {
    pub(super) algorithm: &'static str,
    pub(super) segments: usize,
    /// In seconds.
    pub(super) time: f64,
    /// The most messages that any rank sends or receives, whichever is more.
    pub(super) messages: usize,
    /// The most bytes that any rank sends or receives, whichever is more.
    pub(super) bytes: f64,
    /// The most steps of any rank, if they were simulated.
    pub(super) steps: Option<usize>,
}

/// Predicts times for one setup.
#[derive(Debug)]
pub(super) struct Simulator<'a> {
    setup: &'a Setup,
    steps_max: usize,
}

impl<'a> Simulator<'a> {
    pub(super) const fn new(setup: &'a Setup, steps_max: usize) -> Self {
        Self { setup, steps_max }
    }

    /// What a row costs for the setup's size: simulated if it is short enough.
    pub(super) fn predict(&self, row: &'static Algorithm) -> Result<Prediction, Failure> {
        let choice = self.choice(row, self.setup.question.bytes)?;
        if let Some(steps) = self.steps(row, &self.params(&choice))
            && let Some(simulated) = self.simulate(&choice, self.setup.question.bytes, steps)?
        {
            return Ok(simulated);
        }
        let cost = (row.cost)(&self.params(&choice));
        let sizes = sizes(&self.setup.question, row, &self.params(&choice));
        Ok(Prediction {
            algorithm: row.name,
            segments: choice.segments,
            time: choice.time,
            messages: cost.messages,
            bytes: cost.blocks as f64 * sizes.block_bytes_max() as f64,
            steps: None,
        })
    }

    /// The times of a row for several sizes: all of them simulated, or none, so that they make one
    /// curve. Whether they are simulated.
    pub(super) fn curve(
        &self,
        row: &'static Algorithm,
        bytes: &[usize],
    ) -> Result<(bool, Vec<f64>), Failure> {
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

    fn question(&self, bytes: usize) -> CallShape {
        self.setup.question.bytes(bytes)
    }

    fn choice(&self, row: &Algorithm, bytes: usize) -> Result<Selection, Failure> {
        Ok(choose(&self.question(bytes), Some(row.name), &self.setup.tuning)?)
    }

    fn params(&self, choice: &Selection) -> Params {
        let params = params(&self.setup.question, choice.segments, &self.setup.tuning);
        params.root(self.setup.root)
    }

    /// About how many steps a program has; none if they are too many. The root has more than
    /// others, so it is counted by itself.
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
            // Whatever the other ranks do, these alone are too many.
            if sum > limit {
                return None;
            }
        }
        let steps = of_root as f64 + sum as f64 / sampled.max(1) as f64 * others as f64;
        // A sample may be off; the simulation itself counts exactly.
        (steps <= 1.5 * limit as f64).then_some(steps as u64)
    }

    /// What the simulation says; none if the program turns out to be too long.
    fn simulate(&self, choice: &Selection, bytes: usize, steps: u64) -> Result<Option<Prediction>, Failure> {
        let (row, p) = (choice.algorithm, self.params(choice));
        let sizes = sizes(&self.question(bytes), row, &p);
        let of_rank = |rank| (row.steps)(&p.rank(rank)) as _;
        let program = Program { ranks: p.ranks, sizes: &sizes, steps: &of_rank };
        let tuning = &self.setup.tuning;
        let options = Options::new(tuning.links).window(tuning.window).steps_max(self.steps_max as u64);
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
            Err(cost::Failure::TooLong { .. }) => Ok(None),
            Err(source) => Err(Failure::Simulation { algorithm: row.name, source }),
        }
    }
}

/// A bar on standard error, which shows nothing unless that is a terminal.
fn progress_bar(name: &'static str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos} of about {human_len} steps");
    let bar = ProgressBar::new(steps).with_message(name);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
