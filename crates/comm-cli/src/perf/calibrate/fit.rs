//! Fits a model to measurements.

use comm::ring::Tuning;
use comm::{Link, LinkModel};

use super::grid::Point;
use super::simplex::minimise;

/// The logarithms of latency, overhead, time per byte and time per reduced byte. Logarithms keep
/// costs positive, and weigh a factor of 2 like a factor of 1/2.
type Costs = [f64; 4];

/// The smallest costs in seconds.
const COSTS_MIN: Costs = [1e-10, 1e-10, 1e-14, 1e-14];
/// The penalty for changing a cost by a factor of e. It matters only for costs that the
/// measurements do not determine.
const INERTIA: f64 = 1e-3;
/// The initial steps of consecutive searches; each search starts at the best result so far.
const STEPS: [f64; 4] = [1.5, 0.7, 0.3, 0.1];

/// Returns the tuning with the smallest mean absolute logarithmic error. Squares would give
/// outliers more weight.
pub(super) fn fit(points: &[Point], tuning: &Tuning) -> Tuning {
    let fitted: Vec<&Point> = points.iter().filter(|point| point.fitted).collect();
    let ranks = points.first().map_or(1, |point| point.plan.ranks);
    let start = costs(&tuning.links, ranks);
    let wrong = |costs: &Costs| {
        let tuning = with(tuning, costs);
        let error = fitted.iter().map(|point| point.error(&tuning)).sum::<f64>() / fitted.len().max(1) as f64;
        let moved: f64 = costs.iter().zip(start).map(|(cost, start)| (cost - start).powi(2)).sum();
        error + INERTIA * moved
    };
    let best = STEPS.into_iter().fold(start, |best, step| minimise(&wrong, best, step));
    with(tuning, &best)
}

fn costs(links: &LinkModel, ranks: usize) -> Costs {
    let link = links.slowest(ranks);
    let known = [link.latency, link.overhead, link.per_byte, links.reduce];
    let mut costs = COSTS_MIN;
    for (cost, known) in costs.iter_mut().zip(known) {
        *cost = cost.max(known).ln();
    }
    costs
}

/// Uses the same costs for all links, because the measurements do not separate them.
fn with(tuning: &Tuning, costs: &Costs) -> Tuning {
    let [latency, overhead, per_byte, reduce] = costs.map(f64::exp);
    let link = Link { latency, overhead, per_byte };
    let mut tuning = *tuning;
    tuning.links = LinkModel { within: link, between: link, reduce, ..tuning.links };
    tuning
}

#[cfg(test)]
mod tests {
    use comm::ring::RingConfig;

    use super::*;
    use crate::perf::args::Sizes;
    use crate::perf::calibrate::{grid, plans};

    fn tuning(latency: f64, overhead: f64, per_byte: f64, reduce: f64) -> Tuning {
        RingConfig::default().tuning(LinkModel::uniform(Link { latency, overhead, per_byte }, reduce))
    }

    /// Returns the measurements of a machine with these costs, with some noise.
    fn measured(truth: &Tuning, noise: f64) -> Vec<Point> {
        let sizes = Sizes { min: None, max: None, factor: None };
        let mut points = grid::predicted(&plans(4, &sizes).unwrap(), truth);
        for (at, point) in points.iter_mut().enumerate() {
            point.seconds *= (noise * (at as f64 * 12.9898).sin()).exp();
        }
        points
    }

    #[test]
    fn the_costs_of_a_machine_that_follows_the_model_are_found() {
        let start = tuning(6e-6, 4e-6, 3.5e-10, 1e-10);
        for truth in [
            tuning(2e-5, 2e-6, 2e-9, 4e-10),
            tuning(5e-7, 2e-7, 5e-11, 2e-10),
            tuning(1e-3, 1e-5, 1e-8, 1e-10),
        ] {
            let points = measured(&truth, 0.02);
            let found = fit(&points, &start);
            let errors: Vec<f64> = points.iter().map(|point| point.error(&found)).collect();
            assert!(errors.iter().all(|error| *error < 0.2), "{:?} {errors:?}", found.links);
            assert!((found.links.within.per_byte / truth.links.within.per_byte).ln().abs() < 0.1);
        }
    }

    #[test]
    fn costs_without_measurements_do_not_change() {
        let start = tuning(6e-6, 4e-6, 3.5e-10, 1e-10);
        let found = fit(&[], &start).links;
        let near = |a: f64, b: f64| assert!((a / b).ln().abs() < 0.05, "{a} {b}");
        near(found.within.latency, 6e-6);
        near(found.reduce, 1e-10);
        assert!(found.is_sound());
    }
}
