//! Collectives over any transport.

mod absence;
mod audit;
mod engine;
mod exposure;
mod failure;
mod ground;
mod groups;
mod messages;
mod program;
mod request;
mod scan;
mod scratch;
mod wide;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comm_core::{
    AbortHandle, Allocate, Allocation, CallOptions, Collective, Communicator, Error, Exchange, Group, Host,
    HostViewMut, Lanes, LinkModel, Process, ReduceOp, Result, Shares, Transport, is_unwinding,
};

use crate::choose::{self, Question};
use crate::point_to_point::Messenger;
use crate::{RingConfig, Tuning};
use engine::Engine;
use ground::{Connected, Ground};
use request::Request;

/// Runs collectives as schedules over two lanes, one for data, one for control, and sends messages over a third.
///
/// What holds for its calls is written at [`Communicator`], and for the groups that are made of it at
/// [`Groups`](comm_core::Groups); each of these has lanes of its own. Dropped in order, it tells the other ranks, so
/// that a rank that finishes first is not mistaken for one that died.
///
/// It belongs to the process that made it. In a child that is made by `fork`, every call is
/// [`Invalid::Forked`](comm_core::Invalid::Forked), [`Communicator::abort`] does nothing, and dropping it only closes the
/// child's copies of the descriptors.
pub struct RingCommunicator<T: Transport + 'static> {
    group: Group,
    /// What the members agreed on.
    tuning: Tuning,
    /// The members' ranks in the world, in the order of their ranks in the group.
    members: Vec<usize>,
    ground: Ground<T>,
    engine: Mutex<Engine<T>>,
    abort: Arc<dyn AbortHandle>,
    messenger: Messenger<T>,
    /// The process whose streams these are.
    process: Process,
}

impl<T: Transport + 'static> RingCommunicator<T> {
    /// Opens the lanes of the group of all ranks, and has them agree on rank 0's settings. Every rank calls this, and
    /// waits for the others for at most `timeout`. The lanes live as long as any group that is made of this one.
    ///
    /// # Errors
    /// As [`Lanes::open`]; [`Error::Invalid`] on every rank if rank 0 has settings that cannot be used,
    /// [`Error::Handshake`] if it tells them in another version.
    pub fn new(lanes: impl Lanes<Lane = T> + 'static, config: RingConfig, timeout: Duration) -> Result<Self> {
        let (ground, connected) = Ground::world(Arc::new(lanes), config, timeout)?;
        Ok(Self::over(ground, connected))
    }

    /// The communicator of ranks that are connected.
    fn over(ground: Ground<T>, connected: Connected<T>) -> Self {
        let Connected { members, engine, messenger } = connected;
        let (group, tuning, abort) = (engine.group, *engine.tuning(), engine.data.abort_handle());
        let (engine, process) = (Mutex::new(engine), Process::current());
        Self { group, tuning, members, ground, engine, abort, messenger, process }
    }

    /// The engine for a call, if the call can be made: what is refused here has touched nothing.
    ///
    /// A panic in a call leaves the engine with a call half done: nothing may run on it any more.
    fn engine(&self, collective: Collective, options: &CallOptions) -> Result<MutexGuard<'_, Engine<T>>> {
        // Before the lock, which a thread may hold that does not exist here.
        self.process.check()?;
        if let Some(name) = &options.algorithm {
            let (ranks, order) = (self.group.size(), options.order);
            choose::check(&Question { collective, ranks, bytes: 0, order }, name)?;
        }
        let engine = match self.engine.lock() {
            Ok(engine) => engine,
            Err(poisoned) => {
                let mut engine = poisoned.into_inner();
                engine.poison(&Error::Internal("a call panicked".into()));
                engine
            }
        };
        engine.usable()?;
        Ok(engine)
    }
}

impl<T: Transport + 'static> Communicator for RingCommunicator<T> {
    fn group(&self) -> Group {
        self.group
    }

    fn links(&self) -> Option<LinkModel> {
        Some(self.tuning.links)
    }

    fn all_reduce(&self, buffers: Exchange<'_>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        let count = buffers.check_all_reduce(op)?;
        let request = Request::new(Collective::AllReduce, count).of(&buffers).op(op).accumulate(options);
        self.engine(Collective::AllReduce, options)?.reduce_everywhere(request, buffers, options)
    }

    fn reduce(&self, root: usize, buffers: Exchange<'_>, op: ReduceOp, options: &CallOptions) -> Result<()> {
        let count = buffers.check_reduce(self.group, root, op)?;
        let request =
            Request::new(Collective::Reduce, count).of(&buffers).op(op).accumulate(options).root(root);
        self.engine(Collective::Reduce, options)?.reduce_to_root(request, buffers, options)
    }

    fn broadcast(&self, root: usize, buffer: HostViewMut<'_>, options: &CallOptions) -> Result<()> {
        self.group.check_root(root)?;
        let buffers: Exchange<'_, Host> = Exchange::InPlace(buffer);
        let request = Request::new(Collective::Broadcast, request::len(&buffers)).of(&buffers).root(root);
        self.engine(Collective::Broadcast, options)?.as_it_is(request, buffers, options)
    }

    fn all_gather(&self, buffers: Exchange<'_>, shares: Shares<'_>, options: &CallOptions) -> Result<()> {
        let count = buffers.check_all_gather(self.group, shares)?;
        let request = Request::new(Collective::AllGather, count).of(&buffers).shares(shares);
        self.engine(request.collective, options)?.as_it_is(request, buffers, options)
    }

    fn reduce_scatter(
        &self,
        buffers: Exchange<'_>,
        shares: Shares<'_>,
        op: ReduceOp,
        options: &CallOptions,
    ) -> Result<()> {
        let count = buffers.check_reduce_scatter(self.group, shares, op)?;
        let request = Request::new(Collective::ReduceScatter, count)
            .of(&buffers)
            .op(op)
            .accumulate(options)
            .shares(shares);
        self.engine(request.collective, options)?.reduce_scatter(request, buffers, options)
    }

    fn gather(
        &self,
        root: usize,
        buffers: Exchange<'_>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let count = buffers.check_gather(self.group, root, shares)?;
        let request = Request::new(Collective::Gather, count).of(&buffers).root(root).shares(shares);
        self.engine(request.collective, options)?.gather(request, buffers, options)
    }

    fn scatter(
        &self,
        root: usize,
        buffers: Exchange<'_>,
        shares: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let count = buffers.check_scatter(self.group, root, shares)?;
        let request = Request::new(Collective::Scatter, count).of(&buffers).root(root).shares(shares);
        self.engine(request.collective, options)?.scatter(request, buffers, options)
    }

    fn all_to_all(
        &self,
        buffers: Exchange<'_>,
        send: Shares<'_>,
        recv: Shares<'_>,
        options: &CallOptions,
    ) -> Result<()> {
        let count = buffers.check_all_to_all(self.group, send, recv)?;
        let request = Request::new(Collective::AllToAll, count).of(&buffers).exchange(send, recv);
        self.engine(request.collective, options)?.all_to_all(request, buffers, options)
    }

    fn barrier(&self, options: &CallOptions) -> Result<()> {
        self.engine(Collective::Barrier, options)?.barrier(Request::new(Collective::Barrier, 0), options)
    }

    fn finalize(&self, options: &CallOptions) -> Result<()> {
        self.engine(Collective::Barrier, &CallOptions::default())?.finalize(options.timeout)
    }

    fn abort(&self, reason: &str) {
        if let Err(error) = self.process.check() {
            tracing::warn!(%error, reason, "not aborted");
            return;
        }
        let cause = Error::Aborted { by: self.group.rank(), reason: reason.into() };
        self.abort.abort(cause.clone());
        self.messenger.abort(cause.clone());
        // Whoever holds the lock now ends at once, finds the cause and spreads it; if nobody does, it is done here.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if engine.usable().is_ok() {
            engine.give_up_idle(cause);
        }
    }
}

/// Memory from the lanes, for every group that is made over them.
impl<T: Transport + 'static> Allocate for RingCommunicator<T> {
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.ground.allocate(bytes)
    }
}

impl<T: Transport + 'static> Drop for RingCommunicator<T> {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The streams are the parent's: nothing may be said on them here.
            return;
        }
        let engine = self.engine.get_mut().unwrap_or_else(PoisonError::into_inner);
        if is_unwinding() && engine.usable().is_ok() {
            let (by, reason) = (self.group.rank(), "its thread panicked".into());
            engine.give_up_idle(Error::Aborted { by, reason });
        }
        engine.say_goodbye();
        if let Some(Error::PeerLost { peer, loss, .. }) = engine.poison.as_deref() {
            self.messenger.report_death(*peer, loss);
        }
    }
}

impl<T: Transport + 'static> std::fmt::Debug for RingCommunicator<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingCommunicator").field("group", &self.group).finish_non_exhaustive()
    }
}
