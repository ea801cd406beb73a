//! Starts `commctl` with shell scripts as ranks and watches processes from outside.
//!
//! Scripts and tests meet in files of a scratch folder, `$DIR` to the scripts. Nothing is timed but
//! what has a promised limit; everything else is waited for, long enough for a busy machine.

use std::fs::{self, File};
use std::io::PipeWriter;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// After this a test has failed, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// All is over within this time after a rank has failed.
pub(crate) const PROMISED: Duration = Duration::from_secs(5);

/// What a shell script says to report that it has started, with its process id.
pub(crate) const REPORT: &str = r#"report() { echo "$2" > "$DIR/$1.new"; mv "$DIR/$1.new" "$DIR/$1"; }
report "pid.$RANK" $$
"#;

/// Keeps a script busy without an end; a signal interrupts it soon.
pub(crate) const FOREVER: &str = "while :; do sleep 0.05; done";

/// A running `commctl`. Killed when dropped, and its ranks with it.
pub(crate) struct Launched {
    launcher: Child,
    dir: TempDir,
}

/// How a launch ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// `commctl run FLAGS -- sh -c SCRIPT`, where the script starts with [`REPORT`].
pub(crate) fn launch(flags: &[&str], script: &str) -> Launched {
    start(|dir| {
        let mut command = commctl();
        command.arg("run").args(flags).args(["--", "sh", "-c", &format!("{REPORT}{script}")]);
        command.env("DIR", dir.path());
        command
    })
}

/// The tool itself, without the variables of a launch and the ignored signals that the tests may
/// run under: with `nohup`, and in the background of a shell, some are ignored from the start.
pub(crate) fn commctl() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_commctl")]);
    command.env_remove("COMM_SECRET");
    command
}

/// Starts any command that becomes `commctl`, with its output in files: pipes would hide the
/// launcher's end from a test while somebody else keeps them open.
pub(crate) fn start(command: impl FnOnce(&TempDir) -> Command) -> Launched {
    start_into(None, command)
}

/// Like [`start`], with a given standard output.
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

    /// What a script has reported under this name, once it has.
    pub(crate) fn report(&self, name: &str) -> String {
        let path = self.path(name);
        let text = wait_for(name, || fs::read_to_string(&path).ok());
        text.trim().to_owned()
    }

    /// A process id that a script has reported.
    pub(crate) fn pid(&self, name: &str) -> Pid {
        let pid = self.report(name).parse().expect("a process id");
        Pid::from_raw(pid).expect("a process id is positive")
    }

    /// The process ids of all ranks, in order, once all have started.
    pub(crate) fn pids(&self, ranks: usize) -> Vec<Pid> {
        (0..ranks).map(|rank| self.pid(&format!("pid.{rank}"))).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).expect("the launcher runs");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.launcher.try_wait().expect("our own child").is_none()
    }

    /// Waits for the launcher's end.
    pub(crate) fn end(&mut self) -> Ended {
        let status = wait_for("the launcher's end", || self.launcher.try_wait().expect("our own child"));
        let stdout = fs::read(self.path("stdout")).unwrap_or_default();
        let stderr = fs::read(self.path("stderr")).expect("output");
        Ended { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

impl Ended {
    /// The last line on standard error: the launcher's own, if it said anything. Shells may have
    /// spoken before.
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

/// Polls until there is something.
pub(crate) fn wait_for<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The state letter of a process in `/proc`, or `None` once it is reaped.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses and may itself contain some.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Waits until a process has ended; a zombie has.
pub(crate) fn wait_until_dead(pid: Pid) {
    wait_for("a process to die", || matches!(state(pid), None | Some('Z' | 'X')).then_some(()));
}

/// Waits until a process is a zombie: it has ended, and its parent has not yet noticed.
pub(crate) fn wait_until_zombie(pid: Pid) {
    wait_for("a zombie", || (state(pid) == Some('Z')).then_some(()));
}

pub(crate) fn kill(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("a rank that runs");
}
