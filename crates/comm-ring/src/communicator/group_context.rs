//! What groups are made of: how their members are connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Allocation, ChannelId, ChannelKind, Collective, Element, Fabric, GroupId, HostViewMut, LinkModel, Result,
    Signature, Transport, Until,
};

use super::checked_call::{Bytes, CheckedCall};
use super::engine::Engine;
use super::scratch::Stage;
use crate::point_to_point::Messenger;
use crate::{RingConfig, Tuning};

/// A time that can be added to any instant.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// The channels of one group, which has all of them to itself: what flows in one group waits for no other, and ends with
/// none.
struct GroupChannels<T> {
    control: T,
    data: T,
    messages: T,
}

impl<T: Transport + 'static> GroupChannels<T> {
    /// Opens every channel that a group has, between these ranks of the world.
    fn open(
        fabric: &dyn Fabric<Channel = T>,
        group: GroupId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Self> {
        let channel = |kind| fabric.open_among(ChannelId { group, kind }, members, until);
        let (control, data) = (channel(ChannelKind::Control)?, channel(ChannelKind::Collective)?);
        // A first message may concern two ranks alone, and opening a channel takes all.
        Ok(Self { control, data, messages: channel(ChannelKind::PointToPoint)? })
    }
}

/// A group whose members are connected and agree.
pub(super) struct Connected<T: Transport> {
    /// The members' ranks in the world, in the order of their ranks in the group.
    pub(super) members: Vec<usize>,
    pub(super) engine: Engine<T>,
    pub(super) messenger: Messenger<T>,
}

/// What every group of a world is made with.
pub(super) struct GroupContext<T> {
    fabric: Arc<dyn Fabric<Channel = T>>,
    config: RingConfig,
    /// The links between all ranks of the world, as these agreed on them.
    links: LinkModel,
}

impl<T> Clone for GroupContext<T> {
    fn clone(&self) -> Self {
        Self { fabric: Arc::clone(&self.fabric), config: self.config.clone(), links: self.links }
    }
}

impl<T: Transport + 'static> GroupContext<T> {
    /// Connects all ranks of the world. Returns what further groups are made with, too.
    pub(super) fn world(
        fabric: Arc<dyn Fabric<Channel = T>>,
        config: RingConfig,
        timeout: Duration,
    ) -> Result<(Self, Connected<T>)> {
        let tuning = config.tuning(fabric.links());
        let mut context = Self { fabric, config, links: tuning.links };
        let everybody = (0..context.fabric.group().size()).collect();
        let deadline = context.deadline(timeout);
        let connected = context.connect(GroupId::WORLD, everybody, &tuning, deadline, None)?;
        context.links = connected.engine.tuning().links;
        Ok((context, connected))
    }

    /// The settings of a group of some ranks of the world, which differ from those of another group in where the
    /// members are.
    pub(super) fn settings(&self, parent: &Tuning, members: &[usize]) -> Tuning {
        Tuning { links: self.links.among(members), ..*parent }
    }

    /// Connects members, which are ranks of the world, and has them agree on what rank 0 of them proposes. Errors name
    /// them by their ranks of the group. While it waits for members it checks whether `alive` still succeeds.
    pub(super) fn connect(
        &self,
        group: GroupId,
        members: Vec<usize>,
        proposal: &Tuning,
        deadline: Instant,
        alive: Option<&dyn Fn() -> Result<()>>,
    ) -> Result<Connected<T>> {
        let until = alive.map_or(Until::from(deadline), |alive| Until::from(deadline).while_ok(alive));
        let GroupChannels { control, data, messages } =
            GroupChannels::open(&*self.fabric, group, &members, until)?;
        let fabric = Arc::clone(&self.fabric);
        let stage = Stage(Box::new(move |bytes| fabric.shared_buffer(bytes)));
        let mut engine = Engine::new(control, data, stage, self.config.clone());
        agree(&mut engine, proposal, deadline.saturating_duration_since(self.fabric.now()))?;
        Ok(Connected { members, engine, messenger: Messenger::new(messages, &self.config)? })
    }

    /// How long a rank that found a failure listens for its cause.
    pub(super) const fn diagnosis(&self) -> Duration {
        self.config.diagnosis
    }

    /// Memory that these channels move best.
    pub(super) fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.fabric.allocate(bytes)
    }

    /// When something that starts now and may take this long must have ended.
    pub(super) fn deadline(&self, timeout: Duration) -> Instant {
        self.fabric.now() + timeout.min(FOREVER)
    }
}

/// Has all members take what rank 0 proposes. This is call number 0, the first of every group.
fn agree<T: Transport>(engine: &mut Engine<T>, proposal: &Tuning, timeout: Duration) -> Result<()> {
    let mut bytes = proposal.encode();
    let mut signature = Signature::new(engine.session().group.id(), Collective::Broadcast, "binomial");
    (signature.dtype, signature.root) = (Some(u8::DTYPE), Some(0));
    signature.count = bytes.len() as u64;
    let buffer = Bytes::in_place(HostViewMut::new(&mut bytes));
    engine.execute(&CheckedCall::equal(&signature), buffer, timeout)?;
    match Tuning::decode(&bytes) {
        Ok(tuning) => {
            engine.adopt(tuning);
            Ok(())
        }
        Err(error) => {
            // The others find the same, once they have received it: this rank's end shall not come before.
            engine.session_mut().close();
            Err(error)
        }
    }
}
