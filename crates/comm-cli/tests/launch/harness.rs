//! Starts `commctl` with shell scripts as ranks, and observes the processes.
//!
//! Scripts and tests communicate through files in a scratch folder, `$DIR` in scripts. Only times
//! with a documented limit are measured; for everything else, tests wait long enough for a busy
//! machine.

use std::fs::{self, File};
use std::io::PipeWriter;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) use crate::wait::wait_for;

/// The limit of the time between the failure of a rank and the end of the launch.
pub(crate) const PROMISED: Duration = Duration::from_secs(5);

/// The shell code that reports the start of a script with its process id.
pub(crate) const REPORT: &str = r#"report() { echo "$2" > "$DIR/$1.new"; mv "$DIR/$1.new" "$DIR/$1"; }
report "pid.$RANK" $$
"#;

/// Keeps a script busy until a signal.
pub(crate) const FOREVER: &str = "while :; do sleep 0.05; done";

/// A running `commctl`. Dropping it kills it with its ranks.
pub(crate) struct Launched {
    launcher: Child,
    dir: TempDir,
}

/// The result of a launch.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs `commctl run FLAGS -- sh -c SCRIPT`, with [`REPORT`] before the script.
pub(crate) fn launch(flags: &[&str], script: &str) -> Launched {
    start(|dir| {
        let mut command = commctl();
        command.arg("run").args(flags).args(["--", "sh", "-c", &format!("{REPORT}{script}")]);
        command.env("DIR", dir.path());
        command
    })
}

/// Returns a command without the variables of a launch and with default signals: `nohup` and
/// background jobs of a shell ignore some.
pub(crate) fn commctl() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_commctl")]);
    command.env_remove("COMM_SECRET");
    command
}

/// Starts a command that becomes `commctl`, with its output in files: other processes could keep
/// pipes open.
pub(crate) fn start(command: impl FnOnce(&TempDir) -> Command) -> Launched {
    start_into(None, command)
}

/// Starts a command with a given standard output.
pub(crate) fn start_into(stdout: Option<PipeWriter>, command: impl FnOnce(&TempDir) -> Command) -> Launched {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let file = |name| File::create(dir.path().join(name)).expect("a file for output");
    let mut command = command(&dir);
    command.stdout(stdout.map_or_else(|| file("stdout").into(), Stdio::from)).stderr(file("stderr"));
    let launcher = command.spawn().expect("commctl starts");
    Launched { launcher, dir }
}

impl Launched {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits for the report of a script.
    pub(crate) fn report(&self, name: &str) -> String {
        let path = self.path(name);
        let text = wait_for(name, || fs::read_to_string(&path).ok());
        text.trim().to_owned()
    }

    /// Waits for a process id that a script reports.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        let pid = self.report(name).parse().expect("a process id");
        Pid::from_raw(pid).expect("a process id is positive")
    }

    /// Waits until all ranks have started, and returns their process ids in order.
    pub(crate) fn pids(&self, ranks: usize) -> Vec<Pid> {
        (0..ranks).map(|rank| self.pid(&format!("pid.{rank}"))).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).expect("the launcher runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.launcher.try_wait().expect("our own child").is_none()
    }

    /// Waits until the launcher has written a text to its standard error.
    pub(crate) fn await_message(&self, text: &str) {
        let path = self.path("stderr");
        wait_for(text, || fs::read_to_string(&path).ok().filter(|written| written.contains(text)));
    }

    /// Waits for the end of the launcher.
    pub(crate) fn end(&mut self) -> Ended {
        let status = wait_for("the launcher's end", || self.launcher.try_wait().expect("our own child"));
        let stdout = fs::read(self.path("stdout")).unwrap_or_default();
        let stderr = fs::read(self.path("stderr")).expect("output");
        Ended { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

impl Ended {
    /// The last line of standard error, which is the launcher's: shells may write before it.
    pub(crate) fn message(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        drop(self.launcher.kill());
        drop(self.launcher.wait());
    }
}

/// The state letter of a process in `/proc`, or `None` once it is reaped.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses and may contain parentheses.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Waits until a process has exited.
pub(crate) fn wait_until_dead(pid: Pid) {
    wait_for("a process to die", || matches!(state(pid), None | Some('Z' | 'X')).then_some(()));
}

/// Waits until a process is a zombie, which its parent has not reaped.
pub(crate) fn wait_until_zombie(pid: Pid) {
    wait_for("a zombie", || (state(pid) == Some('Z')).then_some(()));
}

pub(crate) fn kill(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("a rank that runs");
}
