//! One rank as a process: started so that it and its children can be ended, watched and reaped
//! without races.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{self, Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use super::error::Ending;

/// A started rank. Dropped before it was reaped, it is killed together with its process group.
///
/// Each rank leads a process group of its own: a signal to the group reaches its children too, and
/// Ctrl-C on a terminal reaches the launcher alone, which passes it on exactly once. Signals go to
/// the group by number, which is safe while the leader, even as a zombie, holds that number; so the
/// order at the end is: notice ([`RankProcess::ending`]), signal what is left of the group, then
/// [`RankProcess::reap`].
#[derive(Debug)]
pub(super) struct RankProcess {
    child: Child,
    group: Pid,
    pidfd: OwnedFd,
    reaped: bool,
}

impl RankProcess {
    /// Starts `command`. The calling thread must outlive the rank: the kernel kills the rank when
    /// it ends.
    pub(super) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.process_group(0);
        die_with_this_thread(command);
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

    /// The read end of the rank's standard output, if it was piped; only once.
    pub(super) fn take_stdout(&mut self) -> Option<OwnedFd> {
        self.child.stdout.take().map(OwnedFd::from)
    }

    /// The read end of the rank's standard error, if it was piped; only once.
    pub(super) fn take_stderr(&mut self) -> Option<OwnedFd> {
        self.child.stderr.take().map(OwnedFd::from)
    }

    /// How the rank ended, or `None` while it runs. Leaves it a zombie.
    pub(super) fn ending(&self) -> io::Result<Option<Ending>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?;
        Ok(status.and_then(|status| {
            status.exit_status().map(Ending::Code).or(status.terminating_signal().map(Ending::Signal))
        }))
    }

    /// Whether the rank has begun to end, so that nothing sent to it from now on is the cause. It
    /// begins before its files are closed, and so before a peer can have lost it.
    pub(super) fn is_ending(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.group)).unwrap_or_default();
        flags(&stat).is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// Sends a signal to the rank and all of its process group.
    pub(super) fn signal_group(&self, signal: Signal) {
        signal_group(self.group, signal);
    }

    /// Frees the process id of a rank that has ended.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.child.wait()?;
        self.reaped = true;
        Ok(())
    }

    /// Whether nobody of the process group is left. A zombie counts as left.
    ///
    /// After the rank was reaped its group's number stays taken while a member lives, but not
    /// longer; whoever signals the group then must have asked this just before.
    pub(super) fn group_is_empty(&self) -> bool {
        process::test_kill_process_group(self.group) == Err(rustix::io::Errno::SRCH)
    }
}

impl AsFd for RankProcess {
    /// Readable as soon as the rank has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal_group(Signal::KILL);
            // Nobody is left to tell: all that can fail is that somebody else has reaped it.
            drop(self.child.wait());
        }
    }
}

/// The kernel's mark of a process that has entered `exit` or was hit by a fatal signal; zombies
/// keep it.
const PF_EXITING: u32 = 4;

/// The kernel flags of a process: the ninth field of its line in `/proc`, where the second is its
/// name in parentheses and may hold anything.
fn flags(stat: &str) -> Option<u32> {
    let (_name, from_third) = stat.rsplit_once(')')?;
    from_third.split_ascii_whitespace().nth(6)?.parse().ok()
}

fn signal_group(group: Pid, signal: Signal) {
    // Fails when the group is empty, which is what was wanted, or when its members run as another
    // user, which nothing can be done about.
    let _: rustix::io::Result<()> = process::kill_process_group(group, signal);
}

/// Makes the kernel kill the child with SIGKILL when the thread that starts it ends, and so when
/// this process dies in whatever way: the only way to leave no rank behind after a SIGKILL, when no
/// code of ours runs any more. It covers the rank, not its children, and not a program that gains
/// privileges when executed.
fn die_with_this_thread(command: &mut Command) {
    let launcher = process::getpid();
    let in_child = move || {
        process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A launcher that died before the line above can no longer send that signal.
        if process::getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec the closure does two plain system calls on copied integers: it
    // allocates nothing, takes no lock, and cannot unwind.
    unsafe { command.pre_exec(in_child) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_found_behind_any_name() {
        assert_eq!(flags("71 (a) R 1) S 1 71 71 0 -1 4194564 104 0 0"), Some(4_194_564));
        assert_eq!(flags("71 (sh) S 1 71"), None);
        assert_eq!(flags(""), None);
    }
}
