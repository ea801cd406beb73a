//! Messages between two ranks, which are independent of collectives.

use comm_core::{
    CallOptions, HostView, HostViewMut, Incoming, Outgoing, PointToPoint, Received, RecvFrom, Result, SendTo,
    Source, TagMatch, Transport,
};

use super::RingCommunicator;

impl<T: Transport + 'static> PointToPoint for RingCommunicator<T> {
    fn send(&self, to: usize, tag: u64, message: HostView<'_>, options: &CallOptions) -> Result<()> {
        self.process.check()?;
        self.messenger.send(to, tag, message, options)
    }

    fn recv(
        &self,
        from: Source,
        tag: TagMatch,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.process.check()?;
        self.messenger.recv(from, tag, buffer, options)
    }

    fn send_recv(
        &self,
        to: SendTo,
        message: HostView<'_>,
        from: RecvFrom,
        buffer: HostViewMut<'_>,
        options: &CallOptions,
    ) -> Result<Received> {
        self.process.check()?;
        self.messenger.send_recv(to, message, from, buffer, options)
    }

    fn probe(&self, from: Source, tag: TagMatch, options: &CallOptions) -> Result<Received> {
        self.process.check()?;
        self.messenger.probe(from, tag, options)
    }

    fn try_probe(&self, from: Source, tag: TagMatch) -> Result<Option<Received>> {
        self.process.check()?;
        self.messenger.try_probe(from, tag)
    }

    fn post_send(&self, to: usize, tag: u64, message: Box<dyn Outgoing>, options: &CallOptions) {
        if let Err(error) = self.process.check() {
            return message.complete(Err(error));
        }
        self.messenger.post_send(to, tag, message, options);
    }

    fn post_recv(&self, from: Source, tag: TagMatch, buffer: Box<dyn Incoming>, options: &CallOptions) {
        if let Err(error) = self.process.check() {
            return buffer.complete(Err(error));
        }
        self.messenger.post_recv(from, tag, buffer, options);
    }

    fn drive(&self) {
        if self.process.is_current() {
            self.messenger.drive();
        }
    }

    fn cancel_recvs(&self) {
        if self.process.is_current() {
            self.messenger.cancel_recvs();
        }
    }
}
