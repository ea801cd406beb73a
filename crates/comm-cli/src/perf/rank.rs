//! Measures the calls of a plan on one rank.

use comm::{DType, Element, ReduceOp};
use comm_cli::__private::progress::Progress;
use comm_sim::exact::Small;

use super::args::{Perf, Samples};
use super::buffers::RankBuffers;
use super::memory;
use super::plan::Plan;
use super::plot;
use super::print::Printer;
use super::row::{Percentiles, Row};
use super::session::Session;
use super::timing;
use crate::error::{CliError, Result};

/// Measures a plan, and prints the results.
pub(crate) fn run(session: &Session, plan: &Plan, perf: &Perf) -> Result<()> {
    agree_on_memory(session, plan)?;
    let measure = measure_of(plan.dtype)?;
    let info = plan.info();
    let printer = Printer::new(perf.output.format(), info, session);
    printer.header(session)?;
    let progress = Progress::new(plan.sizes.len(), session.prints());
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for &bytes in &plan.sizes {
        progress.at(format!("{} of {bytes} bytes", plan.collective));
        let row = measure(session, plan, &perf.samples, bytes, perf.call.check)?;
        progress.done(|| printer.row(&row))?;
        rows.push(row);
    }
    drop(progress);
    let wrong = perf.call.check.then(|| rows.iter().filter_map(|row| row.wrong).sum());
    printer.footer(wrong)?;
    if let (Some(path), true) = (&perf.output.svg, session.prints()) {
        plot::write_rows(path, &info, &rows)?;
    }
    match wrong {
        Some(wrong) if wrong > 0 && session.prints() => Err(CliError::Wrong(wrong)),
        _ => Ok(()),
    }
}

/// Returns an error on all ranks if the plan needs more memory than any one host has.
pub(crate) fn agree_on_memory(session: &Session, plan: &Plan) -> Result<()> {
    let own = memory::check(plan, &session.tuning, session.local_ranks);
    let mut fits = [u8::from(own.is_ok())];
    session.comm.all_reduce(&mut fits, ReduceOp::Min)?;
    match fits {
        [0] => own.and(Err(CliError::usage("--max: the buffers do not fit into the memory of another host"))),
        _ => own,
    }
}

type Measure = fn(&Session, &Plan, &Samples, usize, bool) -> Result<Row>;

/// Returns the measurement for an element type.
fn measure_of(dtype: DType) -> Result<Measure> {
    let mut found: Option<Measure> = None;
    comm_sim::for_each_of_host!(T => {
        if <T as Element>::DTYPE == dtype {
            found = Some(measure::<T>);
        }
    });
    found.ok_or_else(|| CliError::usage(format!("--dtype {dtype}: the host does not reduce this type")))
}

/// Measures one size.
fn measure<T: Small>(
    session: &Session,
    plan: &Plan,
    samples: &Samples,
    bytes: usize,
    check: bool,
) -> Result<Row> {
    let comm = match &plan.algorithm {
        Some(name) => session.comm.with_algorithm(name.clone()),
        None => session.comm.clone(),
    };
    let mut buffers = RankBuffers::<T>::new(plan, &session.comm, plan.count(bytes))?;
    buffers.clear();
    let times = if plan.rotated_bytes == 0 {
        timing::measure(&session.comm, samples, &mut || buffers.run(&comm, plan.root))
    } else {
        let call = |buffers: &mut RankBuffers<'_, T>| buffers.run(&comm, plan.root);
        timing::measure_with(&session.comm, samples, &mut buffers, call, RankBuffers::rotate)
    }?;
    let wrong = match check {
        true => {
            let mut wrong = [buffers.check(&comm)?];
            session.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
            Some(wrong[0])
        }
        false => None,
    };
    let algorithm = Some(plan.select(bytes, &session.tuning)?.algorithm.name);
    Ok(Row { bytes, algorithm, time: Percentiles::of(&times), wrong })
}
