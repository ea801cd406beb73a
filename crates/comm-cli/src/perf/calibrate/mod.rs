//! The model of the links, from measurements: the one under which the closed forms of the
//! algorithms are least wrong.
//!
//! Every algorithm of every collective is forced at several sizes. Some of these times, [`grid`]
//! says which, are explained by [`fit`]; the others show whether the model also foretells what it
//! was not made from. All ranks send and receive at once, so a host's cores and memory are as busy
//! as in use, and the costs are those of that.

mod fit;
mod grid;
mod page;
mod simplex;

use clap::ValueEnum;
use comm::LinkModel;
use comm::ring::Tuning;
use comm::ring::schedule::Algorithm;
use comm_cli::__private::statistics::median;
use comm_cli::__private::units::short;

use super::args::{Call, Perf, Sizes};
use super::error::{PerfError, Result};
use super::operation::Operation;
use super::plan::{Plan, Range};
use super::plot::write_file;
use super::print::{line, ranks};
use super::rank;
use super::session::Session;
use grid::Point;

/// Every algorithm of every operation whose calls can be told apart.
pub(super) fn plans(ranks: usize, sizes: &Sizes) -> Result<Vec<Plan>> {
    if ranks < 2 {
        return Err(PerfError::usage("--calibrate: one rank sends no messages; take two at least"));
    }
    let range = Range::GRID.or(sizes)?;
    // In a scan the first ranks are done before the last have begun: calls in a row overlap.
    let operations = Operation::value_variants().iter().filter(|operation| !operation.is_prefix());
    let named = operations.flat_map(|operation| {
        let rows = Algorithm::for_collective(operation.facts().collective);
        rows.map(move |row| Plan::new(*operation, ranks, &Call::forced(row.name), range))
    });
    named.collect()
}

/// Measures, fits, and says what came out.
pub(super) fn run(session: &Session, plans: &[Plan], perf: &Perf) -> Result<()> {
    plans.iter().try_for_each(|plan| rank::agree_on_memory(session, plan))?;
    if session.speaks() {
        line(&format!("# commctl {} perf --calibrate\n{}#", env!("CARGO_PKG_VERSION"), ranks(session)))?;
    }
    let points = grid::measure(session, plans, &perf.samples)?;
    if !session.speaks() {
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

/// A model and what it was made from.
#[derive(Debug)]
struct Calibration {
    points: Vec<Point>,
    /// With the model, and otherwise as the measured communicator was.
    tuning: Tuning,
    model: LinkModel,
}

/// By what factor predictions are off, in the middle: 1 if they are right.
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

    /// Where the algorithm that the model chooses is slowest by the side of the fastest, and by
    /// what factor. Nothing if there is nowhere a choice.
    fn worst_choice(&self) -> Option<(&Point, f64)> {
        let by = |cost: &dyn Fn(&Point) -> f64, a: &Point, b: &Point| cost(a).total_cmp(&cost(b));
        let question = |point: &Point| (point.plan.operation, point.bytes);
        let questions = self.points.chunk_by(|a, b| a.plan.operation == b.plan.operation);
        let choices = questions.flat_map(|points| {
            points.iter().filter_map(|point| {
                let rivals = || points.iter().filter(|rival| question(rival) == question(point));
                let chosen = rivals().min_by(|a, b| by(&|point| point.predict(&self.tuning), a, b))?;
                let fastest = rivals().min_by(|a, b| by(&|point| point.seconds, a, b))?;
                (rivals().count() > 1).then_some((chosen, chosen.seconds / fastest.seconds))
            })
        });
        choices.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// In a sentence, what [`Self::worst_choice`] says.
    fn on_choices(&self) -> String {
        let Some((point, factor)) = self.worst_choice() else {
            return "No collective has several algorithms.".into();
        };
        let (name, bytes) = (point.plan.operation.name(), point.bytes);
        format!(
            "For collectives with several algorithms, the chosen one takes at most {factor:.2} times as long as the \
             fastest ({name} of {bytes} bytes)."
        )
    }

    /// The points, how wrong the model is, and last the model by itself.
    fn print(&self) -> Result<()> {
        let row = |cells: [&str; 6]| {
            let [name, algorithm, size, measured, predicted, ratio] = cells;
            format!("{name:>15} {algorithm:>20} {size:>12} {measured:>12} {predicted:>12} {ratio:>8}")
        };
        let names = row(["collective", "algorithm", "size (B)", "time (us)", "model (us)", "ratio"]);
        line(&format!("#{}", &names[1..]))?;
        for point in &self.points {
            let text = row([
                point.plan.operation.name(),
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
            "# wrong by a factor of {all:.2} in the middle: {fitted:.2} where fitted, {held_out:.2} where held out"
        ))?;
        line(&format!("# {}", self.on_choices()))?;
        line(&self.model.to_string())
    }
}
