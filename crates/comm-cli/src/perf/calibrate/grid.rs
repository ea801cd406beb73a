//! The measurements that a model has to explain.

use comm::ring::Tuning;
use comm::ring::choose;
use comm::ring::schedule::Algorithm;
use comm_cli::__private::progress::Progress;
use comm_cli::__private::statistics::median;

use super::super::args::Samples;
use super::super::buffers::Buffers;
use super::super::error::Result;
use super::super::operation::Operation;
use super::super::plan::Plan;
use super::super::session::Session;
use super::super::timing;

/// An algorithm at one size.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) plan: Plan,
    pub(super) bytes: usize,
    pub(super) algorithm: &'static Algorithm,
    /// Into how many segments it cut its chunks.
    segments: usize,
    /// How long it takes when all ranks start at once: as was foretold, and once it is measured, as
    /// was found.
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

/// The operations that a model is made from, at every second size, in turns: between them they show
/// every cost. Exchanges of tiny blocks tell overhead from latency, gathers have no reduction in
/// them, and all ranks are busy in all of them.
const FITTED: [Operation; 4] =
    [Operation::AllReduce, Operation::AllGather, Operation::AllToAll, Operation::Barrier];

/// Whether the model is made from this place of the board.
fn is_fitted(plan: &Plan, at: usize) -> bool {
    at.is_multiple_of(2) && FITTED.contains(&plan.operation)
}

/// How often the whole board is gone over. What a rank waits like, and what else the machine does,
/// changes by the second: samples that lie apart in time do not all meet the same.
const PASSES: u32 = 3;

/// Measures every plan at every size.
pub(super) fn measure(session: &Session, plans: &[Plan], samples: &Samples) -> Result<Vec<Point>> {
    let mut points = board(plans, &session.tuning)?;
    let mut times = vec![Vec::new(); points.len()];
    let progress = Progress::new(points.len() * PASSES as usize, session.speaks());
    let samples = Samples { samples: samples.samples.div_ceil(PASSES), ..*samples };
    for _ in 0..PASSES {
        for (point, times) in points.iter().zip(&mut times) {
            progress.at(format!("{} of {} bytes", point.plan.operation.name(), point.bytes));
            let found = times_of(session, point, &samples)?;
            progress.done(|| times.extend(found));
        }
    }
    for (point, times) in points.iter_mut().zip(times) {
        point.seconds = median(times);
    }
    Ok(points)
}

/// Every plan at every size, not yet measured.
fn board(plans: &[Plan], tuning: &Tuning) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        for (at, &bytes) in plan.sizes.iter().enumerate() {
            let choice = plan.choice(bytes, tuning)?;
            points.push(Point {
                plan: plan.clone(),
                bytes,
                algorithm: choice.algorithm,
                segments: choice.segments,
                seconds: choice.time,
                fitted: is_fitted(plan, number + at),
            });
        }
    }
    Ok(points)
}

/// Times of one call, from when all ranks can start to when the last is done.
fn times_of(session: &Session, point: &Point, samples: &Samples) -> Result<Vec<f64>> {
    let Point { plan, bytes, .. } = point;
    let (comm, forced) = (&session.comm, session.comm.with_algorithm(point.algorithm.name));
    let mut buffers = Buffers::<f32>::for_any_root(plan, comm, plan.count(*bytes))?;
    buffers.clear();
    let (mut root, step) = (plan.root, next_root(plan));
    let times = timing::measure(comm, samples, &mut || {
        root = (root + step) % plan.ranks;
        buffers.call_with_root(&forced, root)
    })?;
    Ok(times)
}

/// By how many ranks the root moves from one call to the next.
///
/// Calls in a row with the same root overlap, as some ranks only send, and others only receive. So
/// each call gets as its root the rank that was done last in the one before: a root sends to the
/// rank before it last, or down the longest way. Where ranks send to the root, the one before has
/// the longest way to the next.
const fn next_root(plan: &Plan) -> usize {
    match plan.operation {
        Operation::Broadcast | Operation::Scatter => plan.ranks - 1,
        _ => 1,
    }
}

/// What a machine that keeps to a model would measure.
#[cfg(test)]
pub(super) fn foretold(plans: &[Plan], tuning: &Tuning) -> Vec<Point> {
    board(plans, tuning).unwrap()
}
