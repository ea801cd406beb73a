//! One rank of a run.

use comm::Comm;

use crate::args::{Args, Number, OptimizerName};
use crate::console::Console;
use digits::chart;
use digits::error::{Error, Result};
use digits::real::Real;
use digits::trace::Tracer;
use digits::train::{EpochReport, Trainer};

/// Trains, and prints the progress on rank 0.
pub(crate) fn run(comm: &Comm, args: &Args) -> Result<()> {
    match args.dtype {
        Number::F32 => train::<f32>(comm, args),
        Number::F64 => train::<f64>(comm, args),
    }
}

fn train<T: Real>(comm: &Comm, args: &Args) -> Result<()> {
    let mut trainer = Trainer::<T>::new(comm, args.settings())?;
    let tracer =
        args.trace.as_ref().map(|path| Tracer::start(comm).map(|tracer| (tracer, path))).transpose()?;
    let steps = args.epochs.get() * trainer.steps();
    let console = Console::new(comm.rank(), (!args.no_progress).then_some(steps as u64));
    console.line(&title(comm, args))?;
    let reports = epochs(&mut trainer, &console, args.epochs.get())?;
    if let Some((tracer, path)) = tracer {
        tracer.write(comm, path, trainer.timelines())?;
        console.line(&format!("trace: {}", path.display()))?;
    }
    if comm.rank() == 0 {
        chart::write(&args.svg, &title(comm, args), &reports)?;
        console.line(&format!("loss curve: {}", args.svg.display()))?;
    }
    conclude(&mut trainer, &console)
}

fn epochs<T: Real>(trainer: &mut Trainer<T>, console: &Console, epochs: usize) -> Result<Vec<EpochReport>> {
    console.heading()?;
    let mut reports = Vec::with_capacity(epochs);
    for epoch in 1..=epochs {
        let report = trainer.epoch(epoch, || console.step())?;
        console.row(&report)?;
        reports.push(report);
    }
    console.done();
    Ok(reports)
}

/// Scripts parse the last two lines.
fn conclude<T: Real>(trainer: &mut Trainer<T>, console: &Console) -> Result<()> {
    let (accuracy, identical) = (trainer.accuracy()?, trainer.replicas_identical()?);
    console.line(&format!("held-out accuracy {accuracy:.4}"))?;
    console.line(&format!("replicas bit-identical: {}", if identical { "yes" } else { "no" }))?;
    if identical { Ok(()) } else { Err(Error::ReplicasDiffer) }
}

fn title(comm: &Comm, args: &Args) -> String {
    let (ranks, settings) = (comm.size(), args.settings());
    let rule = match args.optimizer {
        OptimizerName::Sgd => "SGD",
        OptimizerName::AdamW => "AdamW",
    };
    let dtype = match args.dtype {
        Number::F32 => "f32",
        Number::F64 => "f64",
    };
    let plural = if ranks == 1 { "" } else { "s" };
    let (batch_size, rate) = (settings.batch_size, settings.learning_rate);
    format!("{ranks} rank{plural} x {batch_size} images per step, {dtype}, {rule} with learning rate {rate}")
}
