//! Pauses between looks at a folder, which end as soon as something changes there.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use comm_mesh::deadline_after;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// How often a folder is looked at, more seldom with every look.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Pauses until the time is over, each longer than the last.
///
/// The system tells of files that come into a folder from processes of this host, and of those alone: from other hosts that share it,
/// nothing is heard. So a pause ends by itself too.
#[derive(Debug)]
pub(super) struct Pause<'a> {
    next: Duration,
    deadline: Instant,
    changes: Changes<'a>,
}

/// Whether the system tells of changes.
#[derive(Debug)]
enum Changes<'a> {
    /// It was not asked yet.
    Of(&'a Path),
    /// This is readable when something has come into the folder.
    Told(OwnedFd),
    Untold,
}

impl<'a> Pause<'a> {
    /// Pauses that nothing ends before their time.
    pub(super) fn until(timeout: Duration) -> Self {
        Self { next: PAUSE_MIN, deadline: deadline_after(timeout), changes: Changes::Untold }
    }

    /// Pauses that end when a file comes into a folder.
    pub(super) fn in_folder(folder: &'a Path, timeout: Duration) -> Self {
        Self { changes: Changes::Of(folder), ..Self::until(timeout) }
    }

    /// Waits, and returns whether another look is worth it: there is always one at the deadline, and one when changes
    /// begin to be told of.
    pub(super) fn wait(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if let Changes::Of(folder) = self.changes {
            self.changes = watch(folder).map_or_else(|error| untold(folder, &error), Changes::Told);
            return true;
        }
        let pause = self.next.min(left);
        self.next = (self.next * 2).min(PAUSE_MAX);
        match &self.changes {
            Changes::Told(changes) if await_change(changes, pause).is_ok() => {}
            _ => {
                // A folder that cannot be watched any more is looked at as if it never could.
                self.changes = Changes::Untold;
                thread::sleep(pause);
            }
        }
        true
    }
}

fn untold<'a>(folder: &Path, error: &io::Error) -> Changes<'a> {
    tracing::debug!(%error, folder = %folder.display(), "nobody tells of changes in a folder");
    Changes::Untold
}

/// Has the system tell of files that get their names in a folder, which is how values appear.
fn watch(folder: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, folder, WatchFlags::MOVED_TO)?;
    Ok(changes)
}

/// Waits until something has changed, or for so long.
fn await_change(changes: &OwnedFd, at_most: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(&mut [PollFd::from_borrowed_fd(changes.as_fd(), PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut events = [0_u8; 4096];
    loop {
        match rustix::io::read(changes, &mut events) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_file_that_comes_into_the_folder_ends_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let mut pause = Pause::in_folder(folder.path(), LONG);
        pause.next = LONG;
        assert!(pause.wait(), "there may have been changes before they were told of");
        fs::write(folder.path().join(".draft"), "value").unwrap();
        fs::rename(folder.path().join(".draft"), folder.path().join("key")).unwrap();
        let began = Instant::now();
        assert!(pause.wait());
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
        assert!(matches!(pause.changes, Changes::Told(_)));
    }

    #[test]
    fn a_pause_ends_by_itself_and_the_last_one_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        for place in [folder.path(), &missing] {
            let began = Instant::now();
            let mut pause = Pause::in_folder(place, PAUSE_MAX);
            while pause.wait() {
                assert!(began.elapsed() < LONG / 2);
            }
            assert!(began.elapsed() >= PAUSE_MAX);
        }
    }

    /// What was heard of is not heard of again.
    #[test]
    fn a_change_ends_one_pause() {
        let folder = tempfile::tempdir().unwrap();
        let mut pause = Pause::in_folder(folder.path(), LONG);
        assert!(pause.wait());
        fs::write(folder.path().join("a"), "").unwrap();
        for _ in 0..100 {
            fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
            fs::rename(folder.path().join("b"), folder.path().join("a")).unwrap();
        }
        pause.next = LONG;
        assert!(pause.wait());
        pause.next = Duration::from_millis(30);
        let began = Instant::now();
        assert!(pause.wait());
        assert!(began.elapsed() >= Duration::from_millis(30));
    }
}
