//! One rank of a run.

use std::io::{self, Write};
use std::time::Instant;

use comm::Comm;
use comm_cli::__private::page;
use comm_cli::__private::progress::Progress;
use comm_cli::__private::units;
use gpt::data::Text;
use gpt::settings::Settings;
use gpt::store::Store;
use gpt::train::Trainer;
use gpt::trigram::Trigram;
use gpt::{Error, Result, chart};
use serde_json::{Value, json};

use crate::args::Args;

/// Trains, and prints the progress on rank 0.
pub(crate) fn run(comm: &Comm, args: &Args) -> Result<()> {
    let settings = args.settings();
    let text = Text::first(settings.text)?;
    let mut run = Run::new(comm, args, Trainer::new(comm, &text, settings)?);
    let folder = args.checkpoints.as_deref();
    let mut store = folder.map(|folder| run.trainer.open_store(folder)).transpose()?;
    if let Some(store) = &mut store
        && run.trainer.restore(store)?
    {
        run.say(&format!("continuing after step {}", run.trainer.steps()))?;
    }
    // Other ranks wait for this one in the first step.
    let trigram = if comm.rank() == 0 { run.trigram(&text)? } else { 0.0 };
    run.train(&settings, store.as_mut())?;
    run.conclude(&settings, trigram)
}

/// A run on this rank.
struct Run<'a> {
    comm: &'a Comm,
    args: &'a Args,
    trainer: Trainer,
    speed: Speed,
}

/// The bytes that all ranks train on per second, without validations and checkpoints.
#[derive(Default)]
struct Speed {
    bytes: usize,
    seconds: f64,
}

impl<'a> Run<'a> {
    fn new(comm: &'a Comm, args: &'a Args, trainer: Trainer) -> Self {
        Self { comm, args, trainer, speed: Speed::default() }
    }

    /// Prints a line on rank 0.
    fn say(&self, line: &str) -> Result<()> {
        if self.comm.rank() == 0 { writeln!(io::stdout(), "{line}").map_err(Error::Print) } else { Ok(()) }
    }

    /// Returns the bits per byte of the baseline, on the bytes that the model is validated on.
    fn trigram(&self, text: &Text) -> Result<f64> {
        let first = text.validation().start + 1;
        let bits = Trigram::fit(text.bytes(), text.training())
            .bits_per_byte(text.bytes(), first..first + self.trainer.validated_bytes());
        let parameters = self.trainer.parameter_count();
        self.say(&format!("{} ranks, {parameters} parameters, trigram {bits:.3}", self.comm.size()))?;
        Ok(bits)
    }

    fn train(&mut self, settings: &Settings, mut store: Option<&mut Store>) -> Result<()> {
        let left = settings.steps.saturating_sub(self.trainer.steps()) as usize;
        let is_first = self.comm.rank() == 0;
        let bar = if is_first { Progress::with_estimate(left) } else { Progress::new(left, false) };
        self.say(" step  training  validation  tokens/s")?;
        while self.trainer.steps() < settings.steps {
            let began = Instant::now();
            let loss = self.trainer.step()?;
            self.speed.bytes += settings.bytes_per_step();
            self.speed.seconds += began.elapsed().as_secs_f64();
            let (step, speed) = (self.trainer.steps(), self.speed.per_second());
            bar.at(format!("{speed:.0} tokens/s, loss {loss:.3}"));
            let is_last = step == settings.steps;
            if is_last || step % self.args.validate_every == 0 {
                let validation = self.trainer.validate()?;
                let training = self.trainer.history().recent();
                bar.suspended(|| {
                    self.say(&format!("{step:5} {training:9.3} {validation:11.3} {speed:9.0}"))
                })?;
            }
            if let Some(store) = &mut store
                && (is_last || step % self.args.checkpoint_every == 0)
            {
                self.trainer.save(store)?;
            }
            bar.done(|| ());
        }
        Ok(())
    }

    /// Validates on the whole validation part, and writes the files. Scripts parse the last lines.
    fn conclude(&mut self, settings: &Settings, trigram: f64) -> Result<()> {
        let bits = self.trainer.finish()?;
        self.trainer.check_replicas()?;
        if self.comm.rank() == 0 {
            self.write(settings, bits, trigram)?;
        }
        let (sent, otherwise) = (self.trainer.bytes_per_step(), self.trainer.data_parallel_bytes());
        let [about_sent, about_otherwise] = [sent, otherwise].map(units::about);
        self.say(&match settings.local {
            None => format!("sent: {about_sent} per rank and step"),
            Some(_) => format!("sent: {about_sent} per rank and step, data parallel {about_otherwise}"),
        })?;
        self.say(&format!("trigram: {trigram:.4} bits per byte"))?;
        self.say(&format!("validation: {bits:.4} bits per byte"))?;
        self.say("replicas bit-identical: yes")
    }

    fn write(&self, settings: &Settings, bits: f64, trigram: f64) -> Result<()> {
        let (json, svg) = (&self.args.out, self.args.out.with_extension("svg"));
        let failed = |error: io::Error| Error::Write { path: json.clone(), reason: error.to_string() };
        let report = format!("{:#}\n", self.report(settings, bits, trigram));
        page::write_file(json, &report).map_err(failed)?;
        let (ranks, steps, bytes) = (self.comm.size(), settings.steps, settings.bytes_per_step());
        let title = format!("{ranks} ranks, {steps} steps of {bytes} bytes");
        chart::write(&svg, &title, self.trainer.history(), trigram)?;
        self.say(&format!("losses: {} and {}", json.display(), svg.display()))
    }

    fn report(&self, settings: &Settings, bits: f64, trigram: f64) -> Value {
        json!({
            "settings": settings,
            "ranks": self.comm.size(),
            "parameters": self.trainer.parameter_count(),
            "losses": self.trainer.history(),
            "trigram": trigram,
            "validation": bits as f32,
            "bytes_per_step": self.trainer.bytes_per_step(),
            "data_parallel_bytes_per_step": self.trainer.data_parallel_bytes(),
            "tokens_per_second": self.speed.per_second(),
            "seconds": self.speed.seconds,
        })
    }
}

impl Speed {
    fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}
