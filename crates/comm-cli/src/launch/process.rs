//! The process of one rank, with its children in a process group.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{self, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::error::ProcessExit;

/// The process of a rank. Dropping it before it is reaped kills its process group.
///
/// Each rank leads its own process group: a signal to the group reaches its children too, and
/// Ctrl-C on a terminal reaches only the launcher, which forwards it. The id of the group is valid
/// until the leader is reaped, so the order at the end is: call [`RankProcess::exit`], signal the
/// group, call [`RankProcess::reap`].
#[derive(Debug)]
pub(super) struct RankProcess {
    child: Child,
    group: Pid,
    pidfd: OwnedFd,
    reaped: bool,
}

impl RankProcess {
    /// Starts `command`, if given bound to processors. The kernel kills the rank when the calling
    /// thread ends.
    pub(super) fn spawn(command: &mut Command, cpus: Option<CpuSet>) -> io::Result<Self> {
        command.process_group(0);
        prepare(command, cpus);
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        match process::pidfd_open(group, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { child, group, pidfd, reaped: false }),
            Err(error) => {
                signal_group(group, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.child.stdout.take().map(OwnedFd::from)
    }

    pub(super) fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.child.stderr.take().map(OwnedFd::from)
    }

    /// Returns the exit status, or `None` while the rank runs. The process stays a zombie.
    pub(super) fn exit(&self) -> io::Result<Option<ProcessExit>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
        Ok(status.and_then(|status| {
            status
                .exit_status()
                .map(ProcessExit::Code)
                .or(status.terminating_signal().map(ProcessExit::Signal))
        }))
    }

    /// Returns whether the rank has begun to exit, so that later signals are not the cause. The
    /// kernel sets this flag before it closes files, and so before a peer can detect the exit.
    pub(super) fn is_ending(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.group)).unwrap_or_default();
        flags(&stat).is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// Sends a signal to the rank and all of its process group.
    pub(super) fn signal_group(&self, signal: Signal) {
        signal_group(self.group, signal);
    }

    /// Reaps a rank that has exited, which frees its process id.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.child.wait()?;
        self.reaped = true;
        Ok(())
    }

    /// Returns whether the process group has no processes left. Zombies count as processes.
    ///
    /// After the rank has been reaped, the id of the group is valid only while the group has
    /// members; check this immediately before sending a signal.
    pub(super) fn group_is_empty(&self) -> bool {
        process::test_kill_process_group(self.group) == Err(rustix::io::Errno::SRCH)
    }
}

impl AsFd for RankProcess {
    /// Readable once the rank has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal_group(Signal::KILL);
            // This fails only if the process was already reaped.
            drop(self.child.wait());
        }
    }
}

/// The kernel flag of a process that has entered `exit` or received a fatal signal.
const PF_EXITING: u32 = 4;

/// Parses the kernel flags, which are field 9 of `/proc/PID/stat`. Field 2 is the name in
/// parentheses, which may contain any characters.
fn flags(stat: &str) -> Option<u32> {
    let (_name, from_third) = stat.rsplit_once(')')?;
    from_third.split_ascii_whitespace().nth(6)?.parse().ok()
}

fn signal_group(group: Pid, signal: Signal) {
    // This fails if the group is empty, or if its members run as another user.
    let _: rustix::io::Result<()> = process::kill_process_group(group, signal);
}

/// Binds the child to processors, and makes the kernel kill it with SIGKILL when the thread that
/// starts it ends, and thus when this process is killed. This covers neither the children of the
/// rank nor a program that gains privileges when executed.
fn prepare(command: &mut Command, cpus: Option<CpuSet>) {
    let launcher = process::getpid();
    let in_child = move || {
        if let Some(cpus) = &cpus {
            sched_setaffinity(None, cpus)?;
        }
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the launcher died before the line above, no signal will come.
        if process::getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes three system calls with copied values. It
    // does not allocate, lock or unwind.
    unsafe { command.pre_exec(in_child) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_after_any_name() {
        assert_eq!(flags("71 (a) R 1) S 1 71 71 0 -1 4194564 104 0 0"), Some(4_194_564));
        assert_eq!(flags("71 (sh) S 1 71"), None);
        assert_eq!(flags(""), None);
    }
}
