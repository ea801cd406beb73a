use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use comm_core::{AbortHandle, CallOptions, Group, GroupId, Membership, RecvBuf, Source, TagMatch};

use super::*;
use crate::RingConfig;

/// A transport on which nothing ever arrives. Each look at its clock takes a millisecond.
struct SilentTransport {
    /// Whether the peer is connected. If it is not, it cannot be, and is ready to say so.
    is_open: bool,
    began: Instant,
    millis: AtomicU64,
    /// The sleeps that were asked for.
    sleeps: Arc<Mutex<Vec<Duration>>>,
    descriptor: std::fs::File,
}

struct NoAbort;

impl AbortHandle for NoAbort {
    fn abort(&self, _cause: Error) {}
}

impl Transport for SilentTransport {
    fn group(&self) -> Group {
        Group::new(GroupId::WORLD, Membership { rank: 0, size: 2 }).unwrap()
    }

    fn now(&self) -> Instant {
        self.began + Duration::from_millis(self.millis.fetch_add(1, Ordering::Relaxed))
    }

    fn is_open(&self, _peer: usize) -> bool {
        self.is_open
    }

    fn try_send(&mut self, _to: usize, _bytes: &[IoSlice<'_>]) -> Result<usize> {
        Ok(0)
    }

    fn released(&self, _to: usize) -> u64 {
        0
    }

    fn try_recv(&mut self, _from: usize, _into: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn fill_buf(&mut self, _from: usize, _at_most: usize) -> Result<RecvBuf<'_>> {
        Ok(RecvBuf::from_slice(&[]))
    }

    fn consume(&mut self, _from: usize, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn revoke(&mut self) {}

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        Ok(if self.is_open || interest.recv().is_empty() { Armed::Sleep } else { Armed::Ready })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn sleep(&self, _also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        self.sleeps.lock().unwrap().push(timeout);
        self.millis.fetch_add(u64::try_from(timeout.as_millis()).unwrap(), Ordering::Relaxed);
        Ok(())
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::new(NoAbort)
    }
}

/// Waits for a message of any source, and returns the sleeps.
fn sleeps_of_a_probe(is_open: bool, timeout: Duration) -> Vec<Duration> {
    let sleeps = Arc::new(Mutex::new(Vec::new()));
    let transport = SilentTransport {
        is_open,
        began: Instant::now(),
        millis: AtomicU64::new(0),
        sleeps: Arc::clone(&sleeps),
        descriptor: std::fs::File::open("/dev/null").unwrap(),
    };
    let messenger = Messenger::new(Box::new(transport), &RingConfig::default(), None);
    let options = CallOptions::default().timeout(timeout);
    let error = messenger.probe(Source::Any, TagMatch::Any, &options).unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }), "{timeout:?}: {error}");
    let slept = sleeps.lock().unwrap().clone();
    // Sleeps until its goodbye is sent.
    drop(messenger);
    slept
}

/// Whatever the thread does when the deadline passes, it does not sleep beyond it.
#[test]
fn a_wait_ends_whenever_its_deadline_passes() {
    for timeout in (1..60).map(Duration::from_millis) {
        let sleeps = sleeps_of_a_probe(true, timeout);
        assert!(sleeps.iter().all(|slept| *slept <= timeout), "{timeout:?}: {sleeps:?}");
    }
}

/// The next operation that needs the connection ends with its error.
#[test]
fn a_peer_that_cannot_be_connected_does_not_keep_a_rank_awake_that_waits_for_others() {
    let sleeps = sleeps_of_a_probe(false, Duration::from_secs(5));
    assert!(!sleeps.is_empty());
}
