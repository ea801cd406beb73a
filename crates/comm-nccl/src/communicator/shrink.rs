//! Groups of the remaining ranks.

use comm_core::{CallOptions, Error, GroupId, Invalid, Result, Signature};

use super::NcclCommunicator;
use super::control::renumbered;
use super::deadline::Deadline;
use super::survivors::{Hello, Rendezvous};
use crate::config::NcclConfig;
use crate::{Capabilities, UniqueId};

/// The way in which a smaller group is created from a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ShrinkMode {
    /// From a working communicator, which stays usable, by `ncclCommShrink` of NCCL 2.27 or later.
    #[default]
    Default,
    /// From a communicator that hangs or failed on some rank. It is aborted on every rank that
    /// calls this. The remaining ranks find each other over the host communicator, and NCCL
    /// connects them anew. This works with every version.
    ///
    /// `NCCL_SHRINK_ABORT` is not used: it needs communicators that were not aborted, and ours are
    /// aborted as soon as they fail, because nothing else frees ranks that wait for the device.
    Abort,
}

impl NcclCommunicator {
    /// Creates a group of all ranks except those in `without`, which may be in any order. Those do
    /// not take part; all others call this with the same list. The members keep their order.
    /// [`CallOptions::timeout`] applies to the whole operation.
    ///
    /// With [`ShrinkMode::Abort`], ranks in errors are those of this communicator, and after an
    /// error it can be called again, with the same list or another: if a rank dies in the meantime,
    /// the others get an error, and can then continue without it. A living rank that the others
    /// leave out waits for them until its deadline.
    ///
    /// # Errors
    /// [`Error::Invalid`], before anything is sent, for an invalid list or one that contains this
    /// rank, and for [`ShrinkMode::Abort`] of a communicator that was created by
    /// [`NcclCommunicator::with_id`]; on every rank that takes part, if lists differ.
    /// [`Error::BackendUnavailable`] for [`ShrinkMode::Default`] if the library is older, and the
    /// communicator stays usable; [`Error::Poisoned`] for it after a failure. [`Error::PeerLost`]
    /// or [`Error::Timeout`] with the missing ranks, and [`Error::Aborted`] on ranks to which such
    /// a failure is reported. Otherwise as [`NcclCommunicator::connect`].
    pub fn shrink(&self, without: &[usize], mode: ShrinkMode, options: &CallOptions) -> Result<Self> {
        let group = self.engine.group;
        if group.check_members(without)?.is_some() {
            return Err(Invalid::Absent { rank: group.rank() }.into());
        }
        let deadline = Deadline::after(options.timeout);
        let members: Vec<usize> = (0..group.size()).filter(|rank| !without.contains(rank)).collect();
        match mode {
            ShrinkMode::Default => self.shrink_by_nccl(without, &members, deadline),
            ShrinkMode::Abort => self.reconnect(without, &members, deadline),
        }
    }

    fn shrink_by_nccl(&self, without: &[usize], members: &[usize], deadline: Deadline) -> Result<Self> {
        let engine = &self.engine;
        engine.library.nccl().require("ncclCommShrink").map_err(crate::error::missing)?;
        let turn = engine.turn()?;
        self.wait_idle(deadline)?;
        // Excluded ranks do not count this shrink, so the group is identified by its members and
        // their own count.
        let count = engine.count_shrunk(members);
        let number = Signature::fingerprint_of(members.iter().map(|&rank| rank as u64).chain([count]));
        let setup = engine.setup.clone();
        let child = self.divide(&turn, deadline, |handle| handle.shrink(without, setup))?;
        let child = child.ok_or_else(|| Invalid::Absent { rank: engine.group.rank() })?;
        self.member(child, members, [number, 0])
    }

    fn reconnect(&self, without: &[usize], members: &[usize], deadline: Deadline) -> Result<Self> {
        let engine = &self.engine;
        let (group, library, device) = (engine.group, &engine.library, &engine.device);
        let control = match (&engine.control, members.len()) {
            (_, 0..=1) => None,
            (Some(control), _) => Some(control),
            (None, _) => {
                let reason = "ranks that share nothing but an id cannot find each other again; the remaining ranks \
                              can share a new id";
                return Err(Error::setting("shrink mode", "abort", reason));
            }
        };
        let cause = Error::Aborted { by: group.rank(), reason: "it continues in a smaller group".into() };
        engine.fail(cause, None);
        let exchange = |control| {
            let capabilities = Capabilities::of(library, device)?;
            let hello = Hello { attempt: engine.count_attempt(), without: sorted(without), capabilities };
            Rendezvous { control, group, members, deadline }.run(&hello, library)
        };
        let unique = control.map_or_else(|| UniqueId::generate(library), exchange)?;
        let id = GroupId(Signature::fingerprint_of([group.id().0, unique.fingerprint()]));
        let config = NcclConfig { group: group.subgroup(id, members)?, ..engine.config.clone() };
        let control = control.and_then(|control| control.of_group(config.group, members));
        let before = |rank| members.get(rank).copied().unwrap_or(rank);
        Self::join((library, device), &unique, (config, deadline), control)
            .map_err(|error| renumbered(error, before))
    }
}

fn sorted(ranks: &[usize]) -> Vec<usize> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks
}
