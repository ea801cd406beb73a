//! Groups of those that are left.

use comm_core::{CallOptions, Error, GroupId, Invalid, Result, Signature};

use super::NcclCommunicator;
use super::control::renumbered;
use super::deadline::Deadline;
use super::survivors::{Hello, Rendezvous};
use crate::config::NcclConfig;
use crate::{Capabilities, UniqueId};

/// In which way a smaller group is made of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ShrinkMode {
    /// Of a communicator that works, and is as good as before: `ncclCommShrink`, from NCCL 2.27 on.
    #[default]
    Default,
    /// Of a communicator that failed on some rank, or hangs: it is aborted on every rank that
    /// calls, if it is not already. The remaining ranks tell each other over the communicator for
    /// the host that they go on, and NCCL connects them anew, whatever its version.
    ///
    /// NCCL's own way, `NCCL_SHRINK_ABORT`, needs communicators that hang and were not aborted.
    /// Here they are aborted as soon as they fail, as nothing else frees those that wait for the
    /// device.
    Abort,
}

impl NcclCommunicator {
    /// Makes a group of all ranks but those that `without` lists, in any order. These do not take
    /// part; all others call this, with the same list. They keep their order.
    /// [`CallOptions::timeout`] is the time for all of it.
    ///
    /// With [`ShrinkMode::Abort`], ranks in errors are those of this communicator, and after an
    /// error it can be called again, with the same list or another: if a rank dies meanwhile, the
    /// others are told, and then go on without it. A rank that the others leave out, and that is
    /// not dead, waits for them in vain.
    ///
    /// # Errors
    /// [`Error::Invalid`], before anything happens, for a list that cannot be or names this rank,
    /// and for [`ShrinkMode::Abort`] of a communicator that was made by
    /// [`NcclCommunicator::with_id`]; on every rank that takes part, if lists differ.
    /// [`Error::BackendUnavailable`] for [`ShrinkMode::Default`] if the library is older, which
    /// leaves the communicator usable; [`Error::Poisoned`] for it after a failure.
    /// [`Error::PeerLost`] or [`Error::Timeout`] with the ranks that are missing, and
    /// [`Error::Aborted`] on ranks that are told of it. Otherwise as [`NcclCommunicator::connect`].
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
        self.quiet(deadline)?;
        // Those that are left out count no further: the group is known by its members, and how
        // often they did this.
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
                let reason = "ranks that share nothing but an id cannot meet again; those that are left can share \
                              another id";
                return Err(Error::setting("shrink mode", "abort", reason));
            }
        };
        let cause = Error::Aborted { by: group.rank(), reason: "it goes on in a smaller group".into() };
        engine.fail(cause, None);
        let meet = |control| {
            let capabilities = Capabilities::of(library, device)?;
            let hello = Hello { attempt: engine.count_attempt(), without: sorted(without), capabilities };
            Rendezvous { control, group, members, deadline }.run(&hello, library)
        };
        let unique = control.map_or_else(|| UniqueId::generate(library), meet)?;
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
