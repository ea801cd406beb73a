//! Runs the GPU suite on real devices, and writes its report.

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
use gpu_check::{CaseSpec, Outcome, loaded, report, run_rank};

/// Run the GPU suite on this machine, and write its report
///
/// Searches NCCL in COMM_NCCL_PATH, then in the library path. Fails if any case fails.
#[derive(Debug, Parser)]
#[command(name = "gpu-check")]
struct Cli {
    /// Run only cases with this prefix; may be given more than once
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,

    /// Skip the measurements
    #[arg(long)]
    no_speed: bool,

    /// Folder for gpu-report.jsonl and gpu-report.md
    #[arg(long, value_name = "FOLDER", default_value = "gpu-check")]
    out: PathBuf,

    /// Page to write instead of gpu-report.md in that folder
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Run nothing, and write the report of a journal; may be given more than once for a run in
    /// parts
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,

    /// Device of cases with one rank
    #[arg(long, default_value_t = 0)]
    device: usize,

    /// Python with PyTorch, to compare with
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,

    /// Maximum duration of a call in seconds
    #[arg(long, default_value_t = 60)]
    call_timeout: u64,

    /// Maximum duration of a case in seconds
    #[arg(long, default_value_t = 600)]
    limit: u64,
}

/// The prefix of the names of emulated devices.
const EMULATED: &str = "Emulated device";

/// Loads NCCL and the driver, and rejects the emulator.
fn real() -> Outcome<Library> {
    let library = Library::from_env()?;
    // This loads the driver.
    Device::count()?;
    loaded::reject_emulator()?;
    Ok(library)
}

fn myself() -> io::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// The records so far, in memory and in a file.
struct Journal {
    file: File,
    records: Vec<Record>,
}

impl Journal {
    fn write(&mut self, record: Record) -> Result<(), RunError> {
        let print_line = |line: String| writeln!(stdout(), "{line}");
        let written = serde_json::to_string(&record)
            .map_err(io::Error::from)
            .and_then(|line| writeln!(self.file, "{line}"))
            .and_then(|()| match &record {
                Record::Machine(machine) => print_line(format!(
                    "{} x {}\nCUDA {}, {}\nNCCL {}, {}",
                    machine.gpus,
                    machine.gpu,
                    machine.cuda,
                    machine.libcuda.display(),
                    machine.nccl(),
                    machine.libnccl.display()
                )),
                Record::Case(ended) => print_line(report::line(ended)),
                Record::NotMeasured(why) => print_line(format!("not measured: {why}")),
                Record::Placement(_) | Record::Speed(_) => Ok(()),
            });
        written.map_err(|source| RunError::Io { doing: "write the journal", source })?;
        self.records.push(record);
        Ok(())
    }
}

impl Cli {
    /// Returns whether all cases passed.
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
            return Err("this program is statically linked and cannot load CUDA and NCCL".into());
        }
        let (call_timeout, limit) = (Duration::from_secs(self.call_timeout), Duration::from_secs(self.limit));
        let runner = Runner { start: &myself, device: self.device, call_timeout, limit };
        let machine = runner.inspect()?;
        // This recognizes a copy of the emulator under another name.
        if machine.gpu.starts_with(EMULATED) {
            return Err(format!("{} is an emulator, not a GPU", machine.gpu).into());
        }
        std::fs::create_dir_all(&self.out)?;
        let file = File::create(self.out.join("gpu-report.jsonl"))?;
        let mut journal = Journal { file, records: Vec::new() };
        journal.write(Record::Machine(machine.clone()))?;
        let several = machine.placement();
        if let Ok(several) = &several {
            journal.write(Record::Placement(several.clone()))?;
        }
        let mut write = |record| journal.write(record);
        runner.cases(&self.cases, &several, &mut write)?;
        if !self.no_speed {
            let what = Measure::on(&machine, self.python.clone());
            runner.measure(&what, &machine, &several, &mut write)?;
        }
        Ok(journal.records)
    }
}

fn main() -> ExitCode {
    let outcome = match CaseSpec::from_env() {
        Ok(Some(spec)) => run_rank(&spec, real).map(|()| true).map_err(Into::into),
        Ok(None) => Cli::parse().execute(),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // If standard error is closed, the exit code still reports the error.
            drop(writeln!(stderr(), "gpu-check: {error}"));
            ExitCode::FAILURE
        }
    }
}
