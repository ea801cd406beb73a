//! The measurements to which a model is fitted.

use comm::Collective;
use comm::ring::schedule::Algorithm;
use comm::ring::{Tuning, choose};
use comm_cli::__private::progress::Progress;
use comm_cli::__private::statistics::median;

use super::super::args::Samples;
use super::super::buffers::RankBuffers;
use super::super::plan::Plan;
use super::super::session::Session;
use super::super::timing;
use crate::error::Result;

/// An algorithm at one size.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) plan: Plan,
    pub(super) bytes: usize,
    pub(super) algorithm: &'static Algorithm,
    /// The number of segments per chunk.
    segments: usize,
    /// The predicted time, or the measured time once there is one.
    pub(super) seconds: f64,
    /// Whether the model is fitted to this point.
    pub(super) fitted: bool,
}

impl Point {
    pub(super) fn predict(&self, tuning: &Tuning) -> f64 {
        choose::predict(&self.plan.shape(self.bytes), self.algorithm, self.segments, tuning)
    }

    /// Returns the predicted time divided by the measured time.
    pub(super) fn ratio(&self, tuning: &Tuning) -> f64 {
        self.predict(tuning) / self.seconds
    }

    /// Returns the absolute logarithm of the ratio.
    pub(super) fn error(&self, tuning: &Tuning) -> f64 {
        self.ratio(tuning).ln().abs()
    }
}

/// The collectives to which the model is fitted, at every second size. Together they depend on
/// every cost: an all-to-all of tiny blocks separates overhead from latency, and an all-gather has
/// no reduction. In each of them, all ranks are busy.
const FITTED: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::AllToAll, Collective::Barrier];

fn is_fitted(plan: &Plan, index: usize) -> bool {
    index.is_multiple_of(2) && FITTED.contains(&plan.collective)
}

/// The number of passes over all points. The load of the machine changes within seconds, so the
/// samples of a point are spread over time.
const PASSES: u32 = 3;

/// Measures every plan at every size.
pub(super) fn measure(session: &Session, plans: &[Plan], samples: &Samples) -> Result<Vec<Point>> {
    let mut points = grid(plans, &session.tuning)?;
    let mut times = vec![Vec::new(); points.len()];
    let progress = Progress::new(points.len() * PASSES as usize, session.prints());
    let samples = Samples { samples: samples.samples.div_ceil(PASSES), ..*samples };
    for _ in 0..PASSES {
        for (point, times) in points.iter().zip(&mut times) {
            progress.at(format!("{} of {} bytes", point.plan.collective, point.bytes));
            let found = times_of(session, point, &samples)?;
            progress.done(|| times.extend(found));
        }
    }
    for (point, times) in points.iter_mut().zip(times) {
        point.seconds = median(times);
    }
    Ok(points)
}

/// Returns a point with the predicted time for every plan and size.
fn grid(plans: &[Plan], tuning: &Tuning) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        for (at, &bytes) in plan.sizes.iter().enumerate() {
            let choice = plan.select(bytes, tuning)?;
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

fn times_of(session: &Session, point: &Point, samples: &Samples) -> Result<Vec<f64>> {
    let Point { plan, bytes, .. } = point;
    let (comm, forced) = (&session.comm, session.comm.with_algorithm(point.algorithm.name));
    let mut buffers = RankBuffers::<f32>::for_any_root(plan, comm, plan.count(*bytes))?;
    buffers.clear();
    let (mut root, step) = (plan.root, next_root(plan));
    let times = timing::measure(comm, samples, &mut || {
        root = (root + step) % plan.ranks;
        buffers.run(&forced, root)
    })?;
    Ok(times)
}

/// Returns the distance between the roots of consecutive calls.
///
/// Consecutive calls with the same root overlap, because some ranks only send or only receive. So
/// the root of each call is the rank that completes last in the previous one.
const fn next_root(plan: &Plan) -> usize {
    match plan.collective {
        Collective::Broadcast | Collective::Scatter => plan.ranks - 1,
        _ => 1,
    }
}

/// Returns the measurements of a machine that follows the model exactly.
#[cfg(test)]
pub(super) fn predicted(plans: &[Plan], tuning: &Tuning) -> Vec<Point> {
    grid(plans, tuning).unwrap()
}
