//! The programs of ranks, and their processes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use comm::{Comm, ReduceOp};

use crate::port::Port;
use crate::wait::wait_for;

/// The variable that selects the program of a rank.
pub(crate) const ROLE: &str = "FAULT_ROLE";
/// The folder in which ranks report their process ids.
pub(crate) const FOLDER: &str = "FAULT_FOLDER";
/// The time that a rank waits before each call.
pub(crate) const PAUSE_MS: &str = "FAULT_PAUSE_MS";

/// The process of a rank that a test starts. Its first line on standard error is the error.
#[test]
#[ignore = "started by the other tests"]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if let Err(error) = comm::init().and_then(|comm| play(&role, comm)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn play(role: &str, comm: Comm) -> comm::Result<()> {
    match role {
        "barrier" => comm.barrier()?,
        "calls" => make_calls(&comm)?,
        "nan" => {
            let value = if comm.rank() == 2 { f32::NAN } else { 1.0 };
            comm.all_reduce(&mut [1.0, value, 1.0_f32], ReduceOp::Sum)?;
        }
        deviation => deviate(&comm, deviation)?,
    }
    comm.finalize()
}

/// Makes a call in which rank 1 deviates from the others.
fn deviate(comm: &Comm, deviation: &str) -> comm::Result<()> {
    let is_deviant = comm.rank() == 1;
    if deviation == "root" {
        return comm.broadcast(usize::from(is_deviant), &mut [1.0_f32; 4]);
    }
    match if is_deviant { deviation } else { "" } {
        "" => comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Sum),
        "call" => comm.barrier(),
        "length" => comm.all_reduce(&mut [1.0_f32; 5], ReduceOp::Sum),
        "dtype" => comm.all_reduce(&mut [1_u32; 4], ReduceOp::Sum),
        "op" => comm.all_reduce(&mut [1.0_f32; 4], ReduceOp::Max),
        other => unreachable!("no such role: {other}"),
    }
}

/// Makes calls until one fails.
fn make_calls(comm: &Comm) -> comm::Result<()> {
    let pause = std::env::var(PAUSE_MS).map_or(1, |pause| pause.parse().unwrap());
    // In this algorithm every rank waits for every other one itself.
    let comm = comm.with_algorithm("one_shot");
    comm.barrier()?;
    let path = PathBuf::from(std::env::var_os(FOLDER).unwrap()).join(comm.rank().to_string());
    std::fs::write(path.with_extension("new"), std::process::id().to_string()).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
    loop {
        sleep(Duration::from_millis(pause));
        comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum)?;
    }
}

/// Waits until a rank makes calls, and returns its process.
pub(crate) fn pid_of(folder: &Path, rank: usize) -> u32 {
    let path = folder.join(rank.to_string());
    wait_for("a rank to make calls", || std::fs::read_to_string(&path).ok()?.parse().ok())
}

/// Appends the arguments with which this program is a rank.
pub(crate) fn as_rank<'a>(command: &'a mut Command, role: &str) -> &'a mut Command {
    let program = std::env::current_exe().unwrap();
    command.arg(program).args(["ranks::rank", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).stdout(Stdio::null())
}

/// Sets the variables with which a rank finds the others.
pub(crate) fn place(command: &mut Command, rank: usize, size: usize, (address, port): (&str, u16)) {
    command.env("COMM_RENDEZVOUS_TIMEOUT_S", "60");
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    command.env("MASTER_ADDR", address).env("MASTER_PORT", port.to_string());
    command.env_remove("COMM_SECRET");
}

/// Processes that a test has started. Dropping them kills them.
#[derive(Default)]
pub(crate) struct Processes(Vec<Child>);

impl Processes {
    /// Starts a process, and returns its number.
    pub(crate) fn start(&mut self, command: &mut Command) -> usize {
        self.0.push(command.spawn().unwrap());
        self.0.len() - 1
    }

    /// Returns the first line that a process writes to standard error.
    pub(crate) fn first_error(&mut self, at: usize) -> String {
        first_line(self.0[at].stderr.take().unwrap())
    }

    /// Returns the first line that a process writes to standard output.
    pub(crate) fn first_output(&mut self, at: usize) -> String {
        first_line(self.0[at].stdout.take().unwrap())
    }

    pub(crate) fn id(&self, at: usize) -> u32 {
        self.0[at].id()
    }
}

fn first_line(stream: impl Read) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Starts the ranks of a job on this host, each changed by the function, and returns the first
/// error line of one.
pub(crate) fn error_of(
    asked: usize,
    size: usize,
    role: &str,
    change: impl Fn(usize, &mut Command),
) -> String {
    errors_of(&[asked], size, role, change).remove(0)
}

/// The same for several ranks.
pub(crate) fn errors_of(
    asked: &[usize],
    size: usize,
    role: &str,
    change: impl Fn(usize, &mut Command),
) -> Vec<String> {
    let port = Port::reserve();
    let mut processes = Processes::default();
    for rank in 0..size {
        let mut command = Command::new("env");
        as_rank(&mut command, role).stderr(Stdio::piped());
        place(&mut command, rank, size, ("127.0.0.1", port.number));
        change(rank, &mut command);
        processes.start(&mut command);
    }
    asked.iter().map(|rank| processes.first_error(*rank)).collect()
}
