//! A barrier that names the ranks that did not arrive: all ranks send a message to rank 0, which
//! answers all that arrived.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use comm_core::{Error, Result, wire};

use crate::pause::Pause;
use crate::raw::Operation;
use crate::session::{CallContext, Session, Tag};

/// The longest time after its deadline for which a rank waits for the answer of rank 0.
const GRACE_MAX: Duration = Duration::from_millis(200);
/// The largest number of missing ranks in an answer.
const MISSING_MAX: usize = 64;

/// A message to rank 0.
const ARRIVED: u8 = 0;
/// A message of a rank whose deadline has passed.
const EXPIRED: u8 = 1;

impl Session {
    /// Waits for all ranks.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the ranks that did not arrive; the failure of the communicator.
    pub(crate) fn monitored_barrier(&self, context: &CallContext<'_>) -> Result<()> {
        let missing = if self.group.rank() == 0 { self.await_all(context)? } else { self.report(context)? };
        if missing.is_empty() { Ok(()) } else { Err(timeout(missing, context)) }
    }

    /// Waits for the messages of all other ranks, and answers them. Returns the missing ranks.
    fn await_all(&self, context: &CallContext<'_>) -> Result<Vec<usize>> {
        let mut missing: BTreeSet<usize> = self.group.peers().collect();
        let mut pause = Pause::new();
        let mut is_over = false;
        while !missing.is_empty() && !is_over {
            while let Some((from, bytes)) = self.recv_short(Tag::ARRIVAL)? {
                missing.remove(&from);
                is_over |= bytes.first() == Some(&EXPIRED);
            }
            if let Some(now) = pause.after_poll() {
                self.check_waiting(context)?;
                is_over |= context.deadline.is_over(now);
            }
        }
        let named: Vec<usize> = missing.iter().copied().take(MISSING_MAX).collect();
        let answer = wire::encode(|to| _ = to.list::<u32, _>(&named, |to, rank| _ = to.size::<u32>(*rank)));
        let arrived = self.group.peers().filter(|peer| !missing.contains(peer));
        let sent: Result<Vec<_>> = arrived.map(|peer| self.send_short(peer, Tag::ANSWER, &answer)).collect();
        for operation in sent? {
            self.flush(operation, context)?;
        }
        Ok(missing.into_iter().collect())
    }

    /// Sends a message to rank 0, and waits for its answer. Returns the missing ranks.
    fn report(&self, context: &CallContext<'_>) -> Result<Vec<usize>> {
        self.flush(self.send_short(0, Tag::ARRIVAL, &[ARRIVED])?, context)?;
        let grace = GRACE_MAX.min(context.deadline.after / 4);
        let mut expired: Option<Instant> = None;
        let mut pause = Pause::new();
        loop {
            if let Some(missing) = self.recv_answer()? {
                return Ok(missing);
            }
            let Some(now) = pause.after_poll() else { continue };
            if let Err(error) = self.check_waiting(context) {
                // Rank 0 sends its answer before the notice of its failure.
                return self.recv_answer()?.ok_or(error);
            }
            match expired {
                None if context.deadline.is_over(now) => {
                    expired = Some(now);
                    self.flush(self.send_short(0, Tag::ARRIVAL, &[EXPIRED])?, context)?;
                }
                Some(since) if now.duration_since(since) > grace => return Ok(vec![0]),
                _ => {}
            }
        }
    }

    /// Returns the missing ranks, if rank 0 has answered.
    fn recv_answer(&self) -> Result<Option<Vec<usize>>> {
        let Some((_, answer)) = self.recv_short(Tag::ANSWER)? else { return Ok(None) };
        let ranks = wire::decode(&answer, |r| r.list::<u32, _>(MISSING_MAX, |r| r.size::<u32>()));
        ranks.map(Some).map_err(|error| Error::malformed("the answer of rank 0", error))
    }

    /// Waits until a short message has been sent, for as long as the deadline and the grace allow.
    fn flush(&self, mut operation: Operation<Vec<u8>>, context: &CallContext<'_>) -> Result<()> {
        let mut pause = Pause::new();
        while !operation.test()? {
            if let Some(now) = pause.after_poll() {
                self.check_waiting(context)?;
                if context.deadline.is_over(now - GRACE_MAX) {
                    self.abandon();
                    return Err(self.timeout(context));
                }
            }
        }
        Ok(())
    }

    fn check_waiting(&self, context: &CallContext<'_>) -> Result<()> {
        self.poll_notices()?;
        self.check_call(context)
    }
}

fn timeout(waiting_for: Vec<usize>, context: &CallContext<'_>) -> Error {
    Error::Timeout { waiting_for, after: context.deadline.after, during: context.during() }
}
