//! What one rank does: the calls of a plan, size by size.

use comm::{DType, ReduceOp};
use comm_cli::__private::progress::Progress;
use half::{bf16, f16};

use super::args::{Perf, Samples};
use super::buffers::Buffers;
use super::error::{PerfError, Result};
use super::memory;
use super::number::Number;
use super::plan::Plan;
use super::plot;
use super::print::Printer;
use super::row::Row;
use super::session::Session;
use super::statistics::Percentiles;
use super::timing;

/// Measures a plan and prints it.
pub(crate) fn run(session: &Session, plan: &Plan, perf: &Perf) -> Result<()> {
    agree_on_memory(session, plan)?;
    let measure = row_of(plan.dtype)?;
    let label = plan.label();
    let printer = Printer::new(perf.output.format(), label, session);
    printer.head(session)?;
    let progress = Progress::new(plan.sizes.len(), session.speaks());
    let mut rows = Vec::with_capacity(plan.sizes.len());
    for &bytes in &plan.sizes {
        progress.at(format!("{} of {bytes} bytes", plan.operation.name()));
        let row = measure(session, plan, &perf.samples, bytes, perf.call.check)?;
        progress.done(|| printer.row(&row))?;
        rows.push(row);
    }
    drop(progress);
    let wrong = perf.call.check.then(|| rows.iter().filter_map(|row| row.wrong).sum());
    printer.foot(wrong)?;
    if let (Some(path), true) = (&perf.output.svg, session.speaks()) {
        plot::write_rows(path, &label, &rows)?;
    }
    match wrong {
        // All ranks know the number, and one says it.
        Some(wrong) if wrong > 0 && session.speaks() => Err(PerfError::Wrong(wrong)),
        _ => Ok(()),
    }
}

/// Refuses on all ranks what does not fit on one.
pub(crate) fn agree_on_memory(session: &Session, plan: &Plan) -> Result<()> {
    let own = memory::check(plan, &session.tuning, session.local_ranks);
    let mut fits = [u8::from(own.is_ok())];
    session.comm.all_reduce(&mut fits, ReduceOp::Min)?;
    match fits {
        [0] => own.and(Err(PerfError::usage("--max: it does not fit into the memory of another host"))),
        _ => own,
    }
}

type Measure = fn(&Session, &Plan, &Samples, usize, bool) -> Result<Row>;

/// The measurement for an element type.
fn row_of(dtype: DType) -> Result<Measure> {
    Ok(match dtype {
        DType::I8 => row::<i8>,
        DType::U8 => row::<u8>,
        DType::I16 => row::<i16>,
        DType::U16 => row::<u16>,
        DType::I32 => row::<i32>,
        DType::U32 => row::<u32>,
        DType::I64 => row::<i64>,
        DType::U64 => row::<u64>,
        DType::F16 => row::<f16>,
        DType::BF16 => row::<bf16>,
        DType::F32 => row::<f32>,
        DType::F64 => row::<f64>,
        other => return Err(PerfError::usage(format!("--dtype {other}: cannot be measured"))),
    })
}

/// Measures one size.
fn row<T: Number>(
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
    let mut buffers = Buffers::<T>::new(plan, &session.comm, plan.count(bytes))?;
    buffers.clear();
    let times = timing::measure(&session.comm, samples, &mut || buffers.call(&comm))?;
    let wrong = match check {
        true => {
            let mut wrong = [buffers.check(&comm)?];
            session.comm.all_reduce(&mut wrong, ReduceOp::Sum)?;
            Some(wrong[0])
        }
        false => None,
    };
    let algorithm = Some(plan.choice(bytes, &session.tuning)?.algorithm.name);
    Ok(Row { bytes, algorithm, time: Percentiles::of(&times), wrong })
}
