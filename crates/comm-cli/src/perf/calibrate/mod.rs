//! Calibrates the link model: fits the closed forms of the algorithms to measured times.
//!
//! Every algorithm of every collective is measured at several sizes. The model is fitted to some of
//! these points (see [`grid`]); the others are held out to show its accuracy.

mod fit;
mod grid;
mod page;
mod simplex;

use comm::LinkModel;
use comm::ring::Tuning;
use comm::ring::schedule::Algorithm;
use comm_cli::__private::statistics::median;
use comm_cli::__private::units::short;

use super::args::{CallArgs, Perf, Sizes};
use super::plan::{Plan, SizeRange};
use super::plot::write_file;
use super::print::{line, ranks};
use super::rank;
use super::session::Session;
use crate::collective::{is_prefix, measurable};
use crate::error::{CliError, Result};
use grid::Point;

/// Returns a plan for every algorithm of every collective except scans.
pub(super) fn plans(ranks: usize, sizes: &Sizes) -> Result<Vec<Plan>> {
    if ranks < 2 {
        return Err(CliError::usage("--calibrate: needs at least two ranks"));
    }
    let range = SizeRange::GRID.or(sizes)?;
    // Scans are excluded because consecutive ones overlap: the first ranks complete before the last
    // ones start.
    let plans = measurable().filter(|collective| !is_prefix(*collective)).flat_map(|collective| {
        let rows = Algorithm::for_collective(collective);
        rows.map(move |row| Plan::new(collective, ranks, &CallArgs::forced(row.name), range))
    });
    plans.collect()
}

/// Measures all plans, fits the model and reports it.
pub(super) fn run(session: &Session, plans: &[Plan], perf: &Perf) -> Result<()> {
    plans.iter().try_for_each(|plan| rank::agree_on_memory(session, plan))?;
    if session.prints() {
        line(&format!("# commctl {} perf --calibrate\n{}#", env!("CARGO_PKG_VERSION"), ranks(session)))?;
    }
    let points = grid::measure(session, plans, &perf.samples)?;
    if !session.prints() {
        return Ok(());
    }
    let calibration = Calibration::of(points, session);
    calibration.print()?;
    if let Some(path) = &perf.calibrate.out {
        write_file(path, &format!("{}\n", calibration.model))?;
    }
    match &perf.calibrate.report {
        Some(path) => page::write(path, &calibration, session),
        None => Ok(()),
    }
}

/// A model and its measurements.
#[derive(Debug)]
struct Calibration {
    points: Vec<Point>,
    /// The tuning of the measured communicator, with the model.
    tuning: Tuning,
    model: LinkModel,
}

/// Median factors between predicted and measured times; 1 is exact.
#[derive(Debug, Clone, Copy)]
struct Errors {
    fitted: f64,
    held_out: f64,
    all: f64,
}

impl Calibration {
    fn of(points: Vec<Point>, session: &Session) -> Self {
        let tuning = fit::fit(&points, &session.tuning);
        let model = LinkModel { ranks_per_host: session.ranks_per_host(), ..tuning.links };
        Self { points, tuning, model }
    }

    fn errors(&self) -> Errors {
        let of = |wanted: &dyn Fn(&Point) -> bool| {
            let points = self.points.iter().filter(|point| wanted(point));
            median(points.map(|point| point.error(&self.tuning)).collect()).exp()
        };
        Errors { fitted: of(&|point| point.fitted), held_out: of(&|point| !point.fitted), all: of(&|_| true) }
    }

    /// Returns the point at which the selected algorithm is slowest relative to the fastest one,
    /// and the factor. `None` if no collective has several algorithms.
    fn worst_choice(&self) -> Option<(&Point, f64)> {
        let by = |cost: &dyn Fn(&Point) -> f64, a: &Point, b: &Point| cost(a).total_cmp(&cost(b));
        let shape = |point: &Point| (point.plan.collective, point.bytes);
        let collectives = self.points.chunk_by(|a, b| a.plan.collective == b.plan.collective);
        let choices = collectives.flat_map(|points| {
            points.iter().filter_map(|point| {
                let rivals = || points.iter().filter(|rival| shape(rival) == shape(point));
                let chosen = rivals().min_by(|a, b| by(&|point| point.predict(&self.tuning), a, b))?;
                let fastest = rivals().min_by(|a, b| by(&|point| point.seconds, a, b))?;
                (rivals().count() > 1).then_some((chosen, chosen.seconds / fastest.seconds))
            })
        });
        choices.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn describe_worst_choice(&self) -> String {
        let Some((point, factor)) = self.worst_choice() else {
            return "No collective has several algorithms.".into();
        };
        let (name, bytes) = (point.plan.collective.name(), point.bytes);
        format!(
            "For collectives with several algorithms, the chosen one takes at most {factor:.2} times as long as the \
             fastest ({name} of {bytes} bytes)."
        )
    }

    /// Prints the points, the errors and the model.
    fn print(&self) -> Result<()> {
        let row = |cells: [&str; 6]| {
            let [name, algorithm, size, measured, predicted, ratio] = cells;
            format!("{name:>15} {algorithm:>20} {size:>12} {measured:>12} {predicted:>12} {ratio:>8}")
        };
        let names = row(["collective", "algorithm", "size (B)", "time (us)", "model (us)", "ratio"]);
        line(&format!("#{}", &names[1..]))?;
        for point in &self.points {
            let text = row([
                point.plan.collective.name(),
                point.algorithm.name,
                &point.bytes.to_string(),
                &short(point.seconds * 1e6),
                &short(point.predict(&self.tuning) * 1e6),
                &short(point.ratio(&self.tuning)),
            ]);
            let held_out = if point.fitted { "" } else { "  held out" };
            line(&format!("{text}{held_out}"))?;
        }
        let Errors { fitted, held_out, all } = self.errors();
        line(&format!(
            "# median factor between predicted and measured times: {all:.2}; {fitted:.2} at fitted and {held_out:.2} at held-out points"
        ))?;
        line(&format!("# {}", self.describe_worst_choice()))?;
        line(&self.model.to_string())
    }
}
