//! Runs the suite for GPUs on a real one, and writes its report.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use comm_nccl::{Device, Library};
use gpu_check::record::{self, Record};
use gpu_check::run::{Measure, RunError, Runner};
use gpu_check::{Outcome, Part, maps, play, report};

/// Run the suite for GPUs on this machine's, and write what came out.
///
/// NCCL is looked for in COMM_NCCL_PATH, and then where the system's loader finds it. Ends with an error if any case fails.
#[derive(Debug, Parser)]
#[command(name = "gpu-check")]
struct Cli {
    /// Only cases whose names begin like this; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,

    /// Measure nothing
    #[arg(long)]
    no_speed: bool,

    /// The folder for gpu-report.jsonl and gpu-report.md
    #[arg(long, value_name = "FOLDER", default_value = "gpu-check")]
    out: PathBuf,

    /// The page to write instead of gpu-report.md in that folder
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Run nothing, and write the page of a journal that another run wrote; may be given several times, for a run in parts
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,

    /// The device of single ranks
    #[arg(long, default_value_t = 0)]
    device: usize,

    /// A Python that has PyTorch, to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,

    /// How many seconds a call may take
    #[arg(long, default_value_t = 60)]
    patience: u64,

    /// How many seconds a case may take
    #[arg(long, default_value_t = 600)]
    limit: u64,
}

/// How the emulator names its devices.
const EMULATED: &str = "Emulated device";

/// Driver and NCCL as they are on this machine, if they are real.
fn real() -> Outcome<Library> {
    let library = Library::from_env()?;
    // Loads the driver.
    Device::count()?;
    maps::refuse_emulator()?;
    Ok(library)
}

fn myself() -> io::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// What was found so far, in memory and in a file.
struct Journal {
    file: File,
    records: Vec<Record>,
}

impl Journal {
    fn write(&mut self, record: Record) -> Result<(), RunError> {
        let say = |line: String| writeln!(stdout(), "{line}");
        let written = serde_json::to_string(&record)
            .map_err(io::Error::from)
            .and_then(|line| writeln!(self.file, "{line}"))
            .and_then(|()| match &record {
                Record::Place(place) => say(format!(
                    "{} x {}\nCUDA {}, {}\nNCCL {}, {}",
                    place.gpus,
                    place.gpu,
                    place.cuda,
                    place.libcuda.display(),
                    place.nccl(),
                    place.libnccl.display()
                )),
                Record::Case(ended) => say(report::line(ended)),
                Record::NotMeasured(why) => say(format!("not measured: {why}")),
                Record::Several(_) | Record::Speed(_) => Ok(()),
            });
        written.map_err(|source| RunError::Io { doing: "write the journal", source })?;
        self.records.push(record);
        Ok(())
    }
}

impl Cli {
    /// Whether all went well.
    fn execute(&self) -> Result<bool, Box<dyn Error>> {
        let page = self.report.clone().unwrap_or_else(|| self.out.join("gpu-report.md"));
        let records = if self.from.is_empty() {
            self.run()?
        } else {
            self.from.iter().map(|journal| record::read(journal)).collect::<Result<Vec<_>, _>>()?.concat()
        };
        if let Some(folder) = page.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&page, report::page(&records))?;
        writeln!(stdout(), "{}\nwrote {}", report::count(&records), page.display())?;
        Ok(!record::has_failed(&records))
    }

    fn run(&self) -> Result<Vec<Record>, Box<dyn Error>> {
        if cfg!(target_feature = "crt-static") {
            return Err("this program is linked statically, and so can load neither CUDA nor NCCL".into());
        }
        let (patience, limit) = (Duration::from_secs(self.patience), Duration::from_secs(self.limit));
        let runner = Runner { start: &myself, device: self.device, patience, limit };
        let place = runner.look()?;
        // A copy of the emulator under another name still says what it is.
        if place.gpu.starts_with(EMULATED) {
            return Err(format!("{} is an emulator and no GPU", place.gpu).into());
        }
        std::fs::create_dir_all(&self.out)?;
        let file = File::create(self.out.join("gpu-report.jsonl"))?;
        let mut journal = Journal { file, records: Vec::new() };
        journal.write(Record::Place(place.clone()))?;
        let several = place.several();
        if let Ok(several) = &several {
            journal.write(Record::Several(several.clone()))?;
        }
        let mut write = |record| journal.write(record);
        runner.cases(&self.cases, &several, &mut write)?;
        if !self.no_speed {
            let what = Measure::on(&place, self.python.clone());
            runner.measure(&what, &place, &several, &mut write)?;
        }
        Ok(journal.records)
    }
}

fn main() -> ExitCode {
    let outcome = match Part::from_env() {
        Ok(Some(part)) => play(&part, real).map(|()| true).map_err(Into::into),
        Ok(None) => Cli::parse().execute(),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nowhere is left to say that standard error is closed.
            drop(writeln!(stderr(), "gpu-check: {error}"));
            ExitCode::FAILURE
        }
    }
}
