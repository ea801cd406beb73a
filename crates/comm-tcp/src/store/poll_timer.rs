//! Waits between polls of a folder, which end early when a file appears there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use comm_mesh::{Backoff, deadline_after, wait_for};
use rustix::event::PollFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// The delays between polls of a folder, each twice as long as the one before.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(50);

/// Delays polls of a folder until a deadline.
///
/// inotify reports files of processes of this host, but not those of other hosts that share the
/// file system, so a wait also ends by itself.
#[derive(Debug)]
pub(super) struct PollTimer<'a> {
    delays: Backoff,
    deadline: Instant,
    changes: Changes<'a>,
}

/// The state of inotify.
#[derive(Debug)]
enum Changes<'a> {
    /// It is not started yet.
    NotStarted(&'a Path),
    /// Readable when a file has appeared in the folder.
    Watching(OwnedFd),
    Unwatched,
}

impl<'a> PollTimer<'a> {
    /// Creates a timer that does not watch a folder.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            delays: Backoff::new(DELAY_MIN, DELAY_MAX),
            deadline: deadline_after(timeout),
            changes: Changes::Unwatched,
        }
    }

    /// Creates a timer whose waits end early when a file appears in a folder.
    pub(super) fn watching(folder: &'a Path, timeout: Duration) -> Self {
        Self { changes: Changes::NotStarted(folder), ..Self::new(timeout) }
    }

    /// Waits, and returns whether to poll again. The caller polls once after the watch was started,
    /// and once at the deadline.
    pub(super) fn wait(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if let Changes::NotStarted(folder) = self.changes {
            self.changes = watch(folder).map_or_else(|error| unwatched(folder, &error), Changes::Watching);
            return true;
        }
        let delay = self.delays.next_delay().min(left);
        match &self.changes {
            Changes::Watching(changes) if await_change(changes, delay).is_ok() => {}
            _ => {
                // A folder that cannot be watched any more is only polled.
                self.changes = Changes::Unwatched;
                thread::sleep(delay);
            }
        }
        true
    }
}

fn unwatched<'a>(folder: &Path, error: &io::Error) -> Changes<'a> {
    tracing::debug!(%error, folder = %folder.display(), "cannot watch a folder, which is only polled");
    Changes::Unwatched
}

/// Watches for files that are renamed into a folder, as values are.
fn watch(folder: &Path) -> io::Result<OwnedFd> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, folder, WatchFlags::MOVED_TO)?;
    Ok(changes)
}

/// Waits until a file has appeared, at most for this time.
fn await_change(changes: &OwnedFd, at_most: Duration) -> io::Result<()> {
    wait_for(changes, PollFlags::IN, deadline_after(at_most))?;
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
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn a_file_that_appears_in_the_folder_ends_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut timer = PollTimer::watching(folder.path(), LONG);
        timer.delays = Backoff::new(LONG, LONG);
        assert!(timer.wait(), "files may have appeared before the watch was started");
        fs::write(folder.path().join(".draft"), "value").unwrap();
        fs::rename(folder.path().join(".draft"), folder.path().join("key")).unwrap();
        let began = Instant::now();
        assert!(timer.wait());
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
        assert!(matches!(timer.changes, Changes::Watching(_)));
    }

    #[test]
    fn a_wait_ends_by_itself_and_the_last_one_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        for place in [folder.path(), &missing] {
            let began = Instant::now();
            let mut timer = PollTimer::watching(place, DELAY_MAX);
            while timer.wait() {
                assert!(began.elapsed() < LONG / 2);
            }
            assert!(began.elapsed() >= DELAY_MAX);
        }
    }

    #[test]
    fn a_file_ends_one_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut timer = PollTimer::watching(folder.path(), LONG);
        assert!(timer.wait());
        fs::write(folder.path().join("a"), "").unwrap();
        for _ in 0..100 {
            fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
            fs::rename(folder.path().join("b"), folder.path().join("a")).unwrap();
        }
        timer.delays = Backoff::new(LONG, LONG);
        assert!(timer.wait());
        timer.delays = Backoff::new(SHORT, SHORT);
        let began = Instant::now();
        assert!(timer.wait());
        assert!(began.elapsed() >= SHORT);
    }
}
