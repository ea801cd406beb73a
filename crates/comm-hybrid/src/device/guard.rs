//! The host communicator of a group, whose failures are failures of the group.

use std::sync::{Arc, Weak};

use comm_core::{
    Allocate, Allocation, Call, CallOptions, Communicator, FlightRecord, Group, Groups, HostCommunicator,
    HostView, HostViewMut, Incoming, LinkModel, Metrics, PointToPoint, Progress, Received, RecvFrom, Result,
    SendTo, ShrinkOptions, Shrunk, Source, StartedSend, TagMatch, Unsent,
};

use super::failure_link::FailureLink;

/// A host communicator that reports failures to its link. As always, messages fail separately from
/// collectives. Groups created from it have no link.
pub(super) struct Guarded {
    host: Arc<dyn HostCommunicator>,
    link: Arc<FailureLink>,
}

impl Guarded {
    pub(super) fn new(host: Arc<dyn HostCommunicator>, link: Arc<FailureLink>) -> Self {
        Self { host, link }
    }

    /// Makes a call on the host communicator, unless the group has failed.
    fn call<T>(&self, call: impl FnOnce(&dyn HostCommunicator) -> Result<T>) -> Result<T> {
        self.link.usable()?;
        call(&*self.host).map_err(|error| if error.is_fatal() { self.link.explain(error) } else { error })
    }
}

impl Communicator for Guarded {
    fn group(&self) -> Group {
        self.host.group()
    }

    fn links(&self) -> Option<LinkModel> {
        self.host.links()
    }

    fn flight_record(&self) -> Option<FlightRecord> {
        self.host.flight_record()
    }

    fn metrics(&self) -> Option<Metrics> {
        self.host.metrics()
    }

    fn check(&self) -> Result<()> {
        self.call(|host| host.check())
    }

    fn departed(&self) -> Vec<usize> {
        self.host.departed()
    }

    fn leave(&self) {
        self.host.leave();
    }

    fn run(&self, call: Call<'_>, options: &CallOptions) -> Result<()> {
        self.call(|host| host.run(call, options))
    }

    fn abort(&self, reason: &str) {
        // Fails the link first, so that its cause names the rank that aborted.
        self.link.aborted(reason);
        self.host.abort(reason);
    }
}

impl Groups for Guarded {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn HostCommunicator>>> {
        self.call(|host| host.split(color, key, options))
    }

    fn new_group(&self, ranks: &[usize], options: &CallOptions) -> Result<Option<Box<dyn HostCommunicator>>> {
        self.call(|host| host.new_group(ranks, options))
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn HostCommunicator>> {
        self.call(|host| host.duplicate(options))
    }

    /// Also works after a failure, and ends the device communicator.
    fn shrink(&self, options: &ShrinkOptions) -> Result<Shrunk<Box<dyn HostCommunicator>>> {
        self.link.aborted("the group is shrunk");
        self.host.shrink(options)
    }
}

impl Allocate for Guarded {
    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.host.allocate(bytes)
    }
}

impl PointToPoint for Guarded {
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()> {
        self.host.send(to, tag, message, options)
    }

    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.host.recv(from, tag, buffer, options)
    }

    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.host.send_recv(to, message, from, buffer, options)
    }

    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        self.host.probe(from, tag, options)
    }

    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        self.host.try_probe(from, tag)
    }

    fn start_send(
        &self,
        to: usize,
        tag: u64,
        message: &mut dyn Unsent,
        options: &CallOptions,
    ) -> StartedSend {
        self.host.start_send(to, tag, message, options)
    }

    fn post_recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: Box<dyn Incoming>,
        options: &CallOptions,
    ) -> bool {
        self.host.post_recv(from, tag, buffer, options)
    }

    fn progress(&self) -> Option<Weak<dyn Progress>> {
        self.host.progress()
    }

    fn drive(&self) {
        self.host.drive();
    }

    fn cancel_recvs(&self) {
        self.host.cancel_recvs();
    }
}
