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

    fn arm(&mut self, _interest: &Interest) -> Result<Armed> {
        Ok(Armed::Sleep)
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

/// Whatever the thread does when the deadline passes, it does not sleep beyond it.
#[test]
fn a_wait_ends_whenever_its_deadline_passes() {
    for millis in 1..60 {
        let timeout = Duration::from_millis(millis);
        let sleeps = Arc::new(Mutex::new(Vec::new()));
        let transport = SilentTransport {
            began: Instant::now(),
            millis: AtomicU64::new(0),
            sleeps: Arc::clone(&sleeps),
            descriptor: std::fs::File::open("/dev/null").unwrap(),
        };
        let messenger = Messenger::new(transport, &RingConfig::default()).unwrap();
        let options = CallOptions::default().timeout(timeout);
        let error = messenger.probe(Source::Any, TagMatch::Any, &options).unwrap_err();
        assert!(matches!(&error, Error::Timeout { .. }), "{millis} ms: {error}");
        let sleeps = sleeps.lock().unwrap();
        assert!(sleeps.iter().all(|slept| *slept <= timeout), "{millis} ms: {sleeps:?}");
    }
}
