//! The measurements that a model has to explain.

use comm::ring::Tuning;
use comm::ring::choose;
use comm::ring::schedule::Algorithm;

use super::super::args::Samples;
use super::super::buffers::Buffers;
use super::super::error::Result;
use super::super::operation::Operation;
use super::super::plan::Plan;
use super::super::progress::Progress;
use super::super::session::Session;
use super::super::statistics::median;
use super::super::timing;

/// An algorithm at one size.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) plan: Plan,
    pub(super) bytes: usize,
    pub(super) algorithm: &'static Algorithm,
    /// Into how many segments it cut its chunks.
    segments: usize,
    /// How long it took when all ranks started at once.
    pub(super) seconds: f64,
    /// Whether the model is made from it.
    pub(super) fitted: bool,
}

impl Point {
    /// How long the model of this tuning says that it takes.
    pub(super) fn predict(&self, tuning: &Tuning) -> f64 {
        choose::predict(&self.plan.question(self.bytes), self.algorithm, self.segments, tuning)
    }

    /// Predicted by measured.
    pub(super) fn ratio(&self, tuning: &Tuning) -> f64 {
        self.predict(tuning) / self.seconds
    }

    /// The logarithm of the factor by which the prediction is off, in either direction.
    pub(super) fn error(&self, tuning: &Tuning) -> f64 {
        self.ratio(tuning).ln().abs()
    }
}

/// The operations that a model is made from, at every second size, in turns: between them they show every cost. Exchanges of
/// tiny blocks tell overhead from latency, gathers have no reduction in them, and all ranks are busy in all of them.
const FITTED: [Operation; 4] =
    [Operation::AllReduce, Operation::AllGather, Operation::AllToAll, Operation::Barrier];

/// Whether the model is made from this place of the board.
fn is_fitted(plan: &Plan, at: usize) -> bool {
    at.is_multiple_of(2) && FITTED.contains(&plan.operation)
}

/// Measures every plan at every size.
pub(super) fn measure(session: &Session, plans: &[Plan], samples: &Samples) -> Result<Vec<Point>> {
    let steps = plans.iter().map(|plan| plan.sizes.len()).sum();
    let progress = Progress::new(steps, session.speaks());
    let mut points = Vec::with_capacity(steps);
    for (number, plan) in plans.iter().enumerate() {
        for (at, &bytes) in plan.sizes.iter().enumerate() {
            progress.at(format!("{} of {bytes} bytes", plan.operation.name()));
            let choice = plan.choice(bytes, &session.tuning)?;
            let point = Point {
                plan: plan.clone(),
                bytes,
                algorithm: choice.algorithm,
                segments: choice.segments,
                seconds: seconds(session, plan, bytes, samples)?,
                fitted: is_fitted(plan, number + at),
            };
            progress.done(|| points.push(point));
        }
    }
    Ok(points)
}

/// The time of one call, from when all ranks can start to when the last is done.
fn seconds(session: &Session, plan: &Plan, bytes: usize, samples: &Samples) -> Result<f64> {
    let name = plan.algorithm.clone().unwrap_or_default();
    let (comm, forced) = (&session.comm, session.comm.with_algorithm(name));
    let mut buffers = Buffers::<f32>::for_any_root(plan, comm.rank(), plan.count(bytes))?;
    buffers.clear();
    let (mut root, step) = (plan.root, next_root(plan));
    let times = timing::measure(comm, samples, &mut || {
        root = (root + step) % plan.ranks;
        buffers.call_with_root(&forced, root)
    })?;
    Ok(median(times))
}

/// By how many ranks the root moves from one call to the next.
///
/// Calls in a row with the same root overlap, as some ranks only send, and others only receive. So each call gets as
/// its root the rank that was done last in the one before: a root sends to the rank before it last, or down the longest
/// way. Where ranks send to the root, the one before has the longest way to the next.
const fn next_root(plan: &Plan) -> usize {
    match plan.operation {
        Operation::Broadcast | Operation::Scatter => plan.ranks - 1,
        _ => 1,
    }
}

/// The points of a plan on a machine that keeps to a model.
#[cfg(test)]
pub(super) fn foretold(plan: &Plan, tuning: &Tuning) -> Vec<Point> {
    let point = |(at, &bytes): (usize, &usize)| {
        let choice = plan.choice(bytes, tuning).unwrap();
        let (algorithm, segments, seconds) = (choice.algorithm, choice.segments, choice.time);
        let fitted = is_fitted(plan, at);
        Point { plan: plan.clone(), bytes, algorithm, segments, seconds, fitted }
    };
    plan.sizes.iter().enumerate().map(point).collect()
}
