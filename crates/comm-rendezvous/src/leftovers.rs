//! Keys in the store that no process needs any more.
//!
//! Every member of a group knows them, and not only the leader, which removes them: when a leader
//! dies, the next one removes what it left.

use std::mem;
use std::ops::Range;

use comm_core::{Result, Store};

use crate::elastic::ListId;
use crate::rendezvous::Rendezvous;
use crate::wait_list::WaitList;

/// The most admissions that are assumed to belong to leaders that died before they announced them,
/// and the most processes in them, so that no store can keep the leader busy.
const UNANNOUNCED_MAX: [u64; 2] = [4, 1000];

/// Keys that are removed together.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keys {
    /// The keys of the rendezvous of these admissions. The founders met in number 0.
    Rendezvous { admissions: Range<u64>, world_size: usize },
    /// The keys of processes with these numbers, which wait no more.
    Processes(Range<u64>),
}

/// An admission, as the leader announces it to the other members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) admission: u64,
    /// The number of ranks that meet.
    pub(crate) world_size: usize,
    /// The numbers of the first and the last process that was admitted.
    pub(crate) processes: [u64; 2],
}

/// The keys that a group leaves in the store.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// The last admission that was announced.
    admission: u64,
    /// The last process that an announcement contained, or `None` if this rank knows of none
    /// because it has joined the group.
    process: Option<u64>,
    /// The number of ranks in the last rendezvous that succeeded.
    world_size: usize,
    /// The admission in whose rendezvous the present group met, unless it met in an earlier store.
    present: Option<u64>,
    keys: Vec<Keys>,
    /// The number of the first elements of `keys` that the leader has removed, if it has not died.
    removed: usize,
}

impl Leftovers {
    /// Creates the account of a member of a group that has met after this admission.
    pub(crate) const fn new(admission: u64, world_size: usize) -> Self {
        let process = if admission == 0 { Some(0) } else { None };
        let present = Some(admission);
        Self { admission, process, world_size, present, keys: Vec::new(), removed: 0 }
    }

    /// Notes that the leader has announced an admission, which now either succeeds or fails.
    pub(crate) fn announce(&mut self, announced: &Announcement) {
        let Announcement { admission, processes: [first, last], .. } = *announced;
        if admission <= self.admission {
            // The numbers have begun anew, in the store of another rank.
            (self.admission, self.process, self.present) = (0, Some(0), None);
            (self.keys, self.removed) = (Vec::new(), 0);
        }
        let [admissions_max, processes_max] = UNANNOUNCED_MAX;
        let unannounced = |known: u64, next: u64, max| (known + 1).max(next.saturating_sub(max))..next;
        let admissions = unannounced(self.admission, admission, admissions_max);
        let processes =
            self.process.map_or(first..first, |process| unannounced(process, first, processes_max));
        if !admissions.is_empty() {
            // The group has lost at least one rank since then, and has not grown.
            let newcomers = processes.clone().count();
            self.keys.push(Keys::Rendezvous { admissions, world_size: self.world_size + newcomers });
        }
        self.keys.push(Keys::Processes(processes.start..last.saturating_add(1)));
        (self.admission, self.process) = (admission, Some(last));
    }

    /// Notes that the group has met after the admission that was announced.
    pub(crate) fn succeed(&mut self, announced: &Announcement) {
        let former = self.present.replace(announced.admission);
        let world_size = mem::replace(&mut self.world_size, announced.world_size);
        self.keys.extend(former.map(|admission| Keys::of(admission, world_size)));
    }

    /// Notes that the admission that was announced has failed. Others may still look for the cause,
    /// so the keys of its rendezvous are removed only after another one has succeeded.
    pub(crate) fn fail(&mut self, announced: &Announcement) {
        self.keys.push(Keys::of(announced.admission, announced.world_size));
    }

    /// Forgets the keys that the leader had removed after the growth before this one, on a member
    /// that is not the leader.
    pub(crate) fn forget_removed(&mut self) {
        self.keys.drain(..self.removed);
        self.removed = self.keys.len();
    }

    /// Removes all keys from the store, on the leader.
    ///
    /// # Errors
    /// The errors of the store; then some of the keys remain.
    pub(crate) fn remove(&mut self, store: &dyn Store, id: ListId, list: &WaitList<'_>) -> Result<()> {
        self.removed = 0;
        mem::take(&mut self.keys).into_iter().try_for_each(|keys| match keys {
            Keys::Rendezvous { mut admissions, world_size } => admissions.try_for_each(|admission| {
                Rendezvous::remove(store, id.job, id.round_of(admission), world_size)
            }),
            Keys::Processes(numbers) => list.remove(numbers),
        })
    }
}

impl Keys {
    const fn of(admission: u64, world_size: usize) -> Self {
        Self::Rendezvous { admissions: admission..admission + 1, world_size }
    }
}

#[cfg(test)]
mod tests;
