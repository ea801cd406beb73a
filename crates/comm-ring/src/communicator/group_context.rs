//! Creates groups: connects their members and agrees on their settings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    Allocation, ChannelId, ChannelKind, Collective, Element, Error, GroupId, HostViewMut, LinkModel, Observe,
    Result, Scheduler, Signature, Transport, Until,
};

use super::checked_call::{Bytes, CheckedCall};
use super::dyn_fabric::DynFabric;
use super::engine::Engine;
use super::scratch::SharedBufferSource;
use crate::history::CallLog;
use crate::point_to_point::Messenger;
use crate::{RingConfig, Tuning};

/// A time that can be added to any instant.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// The channels of one group. No other group uses them, so groups neither wait for each other nor
/// fail together.
struct GroupChannels {
    control: Box<dyn Transport>,
    data: Box<dyn Transport>,
    messages: Box<dyn Transport>,
}

impl GroupChannels {
    /// Opens every channel of a group between these ranks of the world. That of messages is opened
    /// now, because opening it needs all members, but the first message may involve only two.
    fn open(fabric: &dyn DynFabric, group: GroupId, members: &[usize], until: Until<'_>) -> Result<Self> {
        let kinds = [ChannelKind::Control, ChannelKind::Collective, ChannelKind::PointToPoint];
        let opened = fabric.open_all(&kinds.map(|kind| ChannelId { group, kind }), members, until)?;
        let opened = <[_; 3]>::try_from(opened);
        let opened = opened.map_err(|_| Error::Internal("not every channel of a group was opened".into()));
        opened.map(|[control, data, messages]| Self { control, data, messages })
    }
}

/// A group whose members are connected and agree.
pub(super) struct Connected {
    pub(super) engine: Engine,
    pub(super) messenger: Arc<Messenger>,
}

/// The data from which every group of a world is created.
#[derive(Clone)]
pub(super) struct GroupContext {
    fabric: Arc<dyn DynFabric>,
    config: RingConfig,
    /// The links between all ranks of the world, on which they have agreed.
    links: LinkModel,
}

impl GroupContext {
    /// Connects all ranks of the world, and returns the context for further groups.
    pub(super) fn world(
        fabric: Arc<dyn DynFabric>,
        config: RingConfig,
        timeout: Duration,
    ) -> Result<(Self, Connected)> {
        let tuning = config.tuning(fabric.links());
        let mut context = Self { fabric, config, links: tuning.links };
        let deadline = context.deadline(timeout);
        let all: Vec<usize> = (0..context.fabric.size()).collect();
        let channels = GroupChannels::open(&*context.fabric, GroupId::WORLD, &all, deadline.into())?;
        let connected = context.start(channels, None, &tuning, deadline)?;
        context.links = connected.engine.tuning().links;
        Ok((context, connected))
    }

    /// Returns the settings of a group of some ranks of the world. Only the links differ from those
    /// of the parent.
    pub(super) fn settings(&self, parent: &Tuning, members: &[usize]) -> Tuning {
        Tuning { links: self.links.among(members), ..*parent }
    }

    /// Connects the members, which are given by their ranks in the world, and makes them agree on
    /// the proposal of their rank 0. Errors name them by their ranks in the group. While it waits
    /// for members, it checks that `alive` still succeeds.
    pub(super) fn connect(
        &self,
        group: GroupId,
        members: &[usize],
        proposal: &Tuning,
        deadline: Instant,
        alive: Option<&dyn Fn() -> Result<()>>,
    ) -> Result<Connected> {
        let until = alive.map_or(Until::from(deadline), |alive| Until::from(deadline).while_ok(alive));
        let channels = GroupChannels::open(&*self.fabric, group, members, until)?;
        self.start(channels, Some(members), proposal, deadline)
    }

    /// Makes the members of a group agree on the proposal of their rank 0. `members` are their
    /// ranks in the world, if it is not the group of all.
    fn start(
        &self,
        channels: GroupChannels,
        members: Option<&[usize]>,
        proposal: &Tuning,
        deadline: Instant,
    ) -> Result<Connected> {
        let GroupChannels { control, data, messages } = channels;
        let fabric = Arc::clone(&self.fabric);
        let stage = SharedBufferSource(Box::new(move |bytes| fabric.shared_buffer(bytes)));
        let mut engine = Engine::new((control, data), members, stage, self.config.clone());
        agree(&mut engine, proposal, deadline.saturating_duration_since(self.fabric.now()))?;
        let messenger = Arc::new(Messenger::new(messages, &self.config, self.scheduler()));
        Ok(Connected { engine, messenger })
    }

    /// Returns the time for which a rank that detected a failure waits for its cause.
    pub(super) const fn diagnosis(&self) -> Duration {
        self.config.diagnosis
    }

    /// Registers a group, if it is to be observed.
    pub(super) fn register(&self, log: &Arc<CallLog>) {
        if let Some(registry) = &self.config.registry {
            let log: Arc<dyn Observe> = Arc::clone(log) as _;
            registry.register(&log);
        }
    }

    /// Allocates memory that these channels transfer fastest.
    pub(super) fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.fabric.allocate(bytes)
    }

    /// Returns the scheduler of the threads of this rank, in a simulation.
    pub(super) fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.fabric.scheduler()
    }

    /// Returns the deadline of an operation that starts now.
    pub(super) fn deadline(&self, timeout: Duration) -> Instant {
        self.fabric.now() + timeout.min(FOREVER)
    }
}

/// Makes all members adopt the proposal of rank 0. This is call number 0, the first of every group.
fn agree(engine: &mut Engine, proposal: &Tuning, timeout: Duration) -> Result<()> {
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
            // The other members detect the same error once they have received the proposal, so this
            // rank must not leave before it has been sent.
            engine.session_mut().close(None);
            Err(error)
        }
    }
}
