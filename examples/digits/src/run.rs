//! One rank of a run.

use comm::ddp::LocalOptions;
use comm::{Comm, Config};
use indicatif::HumanBytes;

use crate::args::{Args, Number, OptimizerName};
use crate::console::Console;
use crate::elastic;
use digits::chart;
use digits::error::{Error, Result};
use digits::real::Real;
use digits::trace::Tracer;
use digits::train::{EpochReport, Settings, Trainer};

/// Trains, and prints the progress on rank 0.
pub(crate) fn run(config: &Config, args: &Args) -> Result<()> {
    match args.dtype {
        Number::F32 => train::<f32>(config, args),
        Number::F64 => train::<f64>(config, args),
    }
}

fn train<T: Real>(config: &Config, args: &Args) -> Result<()> {
    if args.elastic {
        return elastic::train::<T>(config, args);
    }
    let comm = &comm::init_with(config)?;
    let parallel = Settings { local: None, ..args.settings() };
    let Some(local) = args.local() else {
        let (mut trainer, console) = fit::<T>(comm, args, parallel)?;
        return conclude(&mut trainer, &console);
    };
    let (mut reference, console) = fit::<T>(comm, args, parallel)?;
    console.line("")?;
    let (mut trainer, console) = fit::<T>(comm, args, Settings { local: Some(local), ..parallel })?;
    trainer.synchronize()?;
    console.line("")?;
    console.line("training                   held-out   sent per rank")?;
    for (name, trainer) in [("averaged gradients", &mut reference), ("local training", &mut trainer)] {
        let (accuracy, sent) = (trainer.accuracy()?, HumanBytes(trainer.bytes_sent()).to_string());
        console.line(&format!("{name:24} {accuracy:10.4} {sent:>15}"))?;
    }
    conclude(&mut trainer, &console)
}

/// Trains for all epochs. Writes the loss curve, and the trace of averaged gradients.
fn fit<T: Real>(comm: &Comm, args: &Args, settings: Settings) -> Result<(Trainer<T>, Console)> {
    let mut trainer = Trainer::<T>::new(comm, settings)?;
    let tracer =
        args.trace.as_ref().map(|path| Tracer::start(comm).map(|tracer| (tracer, path))).transpose()?;
    let steps = args.epochs.get() * trainer.steps();
    let mut console = Console::new(comm.rank(), (!args.no_progress).then_some(steps as u64));
    let title = title(comm, args, &settings);
    console.line(&title)?;
    let reports = epochs(&mut trainer, &mut console, args.epochs.get())?;
    if let Some((tracer, path)) = tracer {
        tracer.write(comm, path, trainer.timelines())?;
        console.line(&format!("trace: {}", path.display()))?;
    }
    // A comparison calls this twice, so the curve of local training replaces the other one.
    write_chart(args, &console, &title, &reports)?;
    Ok((trainer, console))
}

fn epochs<T: Real>(
    trainer: &mut Trainer<T>,
    console: &mut Console,
    epochs: usize,
) -> Result<Vec<EpochReport>> {
    console.heading()?;
    let mut reports: Vec<EpochReport> = Vec::with_capacity(epochs);
    for epoch in 1..=epochs {
        let report = trainer.epoch(epoch, |_| console.step())?;
        console.row(&report)?;
        reports.push(report);
    }
    console.done();
    Ok(reports)
}

/// Writes the loss curve on rank 0.
pub(crate) fn write_chart(
    args: &Args,
    console: &Console,
    title: &str,
    reports: &[EpochReport],
) -> Result<()> {
    if console.speaks() {
        chart::write(&args.svg, title, reports)?;
        console.line(&format!("loss curve: {}", args.svg.display()))?;
    }
    Ok(())
}

/// Prints the result. Scripts parse these two lines.
pub(crate) fn conclude<T: Real>(trainer: &mut Trainer<T>, console: &Console) -> Result<()> {
    let (accuracy, identical) = (trainer.accuracy()?, trainer.replicas_identical()?);
    console.line(&format!("held-out accuracy {accuracy:.4}"))?;
    console.line(&format!("replicas bit-identical: {}", if identical { "yes" } else { "no" }))?;
    if identical { Ok(()) } else { Err(Error::ReplicasDiffer) }
}

pub(crate) fn title(comm: &Comm, args: &Args, settings: &Settings) -> String {
    let ranks = comm.size();
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
    let local = settings.local.map_or(String::new(), |local| {
        let codec = local.codec.map_or("", |codec| codec.name());
        let LocalOptions { sync_every, fragments, .. } = local;
        let fragments = if fragments == 1 { String::new() } else { format!(" in {fragments} fragments") };
        format!(", local with {sync_every} steps between synchronizations{fragments} {codec}")
            .trim_end()
            .to_owned()
    });
    let zero = if settings.state.is_sharded() && settings.local.is_none() { ", ZeRO" } else { "" };
    format!(
        "{ranks} rank{plural} x {batch_size} images per step, {dtype}, {rule} with learning rate {rate}{zero}{local}"
    )
}
