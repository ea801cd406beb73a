//! The transport of one rank on a channel.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

use comm_core::{
    AbortHandle, Armed, During, Error, Group, Interest, Invalid, Loss, RecvBuf, Result, Transport,
};

use super::fabric::Channel;
use super::pipe::Pipe;
use crate::endpoint::Endpoint;
use crate::random::{Random, mix};

/// Byte queues to and from every other thread of a channel. Dropping it ends the streams: the
/// others receive what was sent, then [`Error::PeerLost`].
#[derive(Debug)]
pub struct InProcessTransport {
    group: Group,
    channel: Arc<Channel>,
    endpoint: Arc<Endpoint>,
    dribble: Option<Random>,
    breaks_seen: u64,
    /// The bytes that `fill_buf` returns: a copy, because it cannot return a reference into a
    /// locked queue.
    filled: Vec<u8>,
}

impl InProcessTransport {
    pub(super) fn new(group: Group, channel: Arc<Channel>) -> Self {
        let stream = mix(group.rank() as u64) ^ mix(channel.id.group.0 << 8 | channel.id.kind as u64);
        Self {
            group,
            endpoint: Arc::clone(&channel.endpoints[group.rank()]),
            dribble: channel.config.dribble.map(|seed| Random::new(seed, stream)),
            breaks_seen: 0,
            filled: Vec::new(),
            channel,
        }
    }

    fn check(&self, peer: usize) -> Result<()> {
        self.endpoint.check()?;
        if peer < self.group.size() && peer != self.group.rank() {
            Ok(())
        } else {
            Err(Invalid::Rank { rank: peer, size: self.group.size() }.into())
        }
    }

    fn outgoing(&self, to: usize) -> MutexGuard<'_, Pipe> {
        self.channel.pipe(self.group.rank(), to)
    }

    fn incoming(&self, from: usize) -> MutexGuard<'_, Pipe> {
        self.channel.pipe(from, self.group.rank())
    }

    /// Consumes bytes of a queue and wakes its sender.
    fn consume_from(&self, mut pipe: MutexGuard<'_, Pipe>, from: usize, bytes: usize) {
        pipe.consume(bytes);
        if bytes > 0 && pipe.should_wake_sender() {
            drop(pipe);
            self.channel.endpoints[from].wake();
        }
    }

    /// Wakes every rank, because a stream broke.
    fn announce_break(&self) {
        self.channel.breaks.fetch_add(1, Ordering::SeqCst);
        for endpoint in &self.channel.endpoints {
            endpoint.wake();
        }
    }
}

/// Returns the number of bytes to move now, at most `most`.
fn portion(dribble: &mut Option<Random>, most: usize) -> usize {
    dribble.as_mut().map_or(most, |random| random.short(most))
}

fn lost(peer: usize, loss: Loss, during: During) -> Error {
    Error::PeerLost { peer, during, loss }
}

impl Transport for InProcessTransport {
    fn group(&self) -> Group {
        self.group
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.check(to)?;
        let mut pipe = self.channel.pipe(self.group.rank(), to);
        if let Some(loss) = pipe.send_loss() {
            return Err(lost(to, loss, During::Sending));
        }
        let offered = bytes.iter().map(|part| part.len()).sum::<usize>();
        let space = pipe.space(self.channel.config.capacity).min(offered);
        let sent = portion(&mut self.dribble, space);
        pipe.accept(bytes, offered, sent);
        if sent > 0 && pipe.should_wake_receiver() {
            drop(pipe);
            self.channel.endpoints[to].wake();
        }
        Ok(sent)
    }

    fn cached_bytes(&self) -> usize {
        self.channel.config.cached_bytes
    }

    fn released(&self, to: usize) -> u64 {
        if to >= self.group.size() {
            return 0;
        }
        self.outgoing(to).released(self.channel.config.release)
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.check(from)?;
        let mut pipe = self.channel.pipe(from, self.group.rank());
        if let Some(loss) = pipe.recv_loss() {
            return Err(lost(from, loss, During::Receiving));
        }
        let received = pipe.bytes().show(|hidden| portion(&mut self.dribble, hidden)).min(into.len());
        pipe.bytes().peek(&mut into[..received]);
        self.consume_from(pipe, from, received);
        Ok(received)
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        self.check(from)?;
        let mut pipe = self.channel.pipe(from, self.group.rank());
        if let Some(loss) = pipe.recv_loss() {
            return Err(lost(from, loss, During::Receiving));
        }
        let shown = pipe.bytes().show(|hidden| portion(&mut self.dribble, hidden)).min(at_most);
        self.filled.resize(shown, 0);
        pipe.bytes().peek(&mut self.filled);
        drop(pipe);
        Ok(RecvBuf::from_slice(&self.filled))
    }

    fn fill_buf_copies(&mut self, _from: usize) -> bool {
        self.dribble.as_mut().is_some_and(|random| random.one_in(2))
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.check(from)?;
        let mut pipe = self.incoming(from);
        if let Some(loss) = pipe.recv_loss() {
            return Err(lost(from, loss, During::Receiving));
        }
        let shown = pipe.bytes().shown();
        if bytes > shown {
            return Err(Error::Internal(format!("consumed {bytes} of {shown} bytes from rank {from}")));
        }
        self.consume_from(pipe, from, bytes);
        Ok(())
    }

    fn revoke(&mut self) {
        let release = self.channel.config.release;
        let revoked = self.group.peers().filter(|&to| self.outgoing(to).revoke(release)).count();
        if revoked > 0 {
            self.announce_break();
        }
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        for &peer in interest.recv().iter().chain(interest.send()) {
            self.check(peer)?;
        }
        self.endpoint.drain()?;
        self.endpoint.check()?;
        let config = &self.channel.config;
        let mut ready = false;
        for &from in interest.recv() {
            ready |= self.incoming(from).arm_receiver();
        }
        for &to in interest.send() {
            ready |= self.outgoing(to).arm_sender(config.capacity, config.release);
        }
        let breaks = self.channel.breaks.load(Ordering::SeqCst);
        ready |= std::mem::replace(&mut self.breaks_seen, breaks) != breaks;
        Ok(if ready { Armed::Ready } else { Armed::Sleep })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.descriptor()
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        Arc::<Endpoint>::clone(&self.endpoint)
    }
}

impl Drop for InProcessTransport {
    fn drop(&mut self) {
        for peer in self.group.peers() {
            self.outgoing(peer).sender_gone = true;
            self.incoming(peer).receiver_gone = true;
        }
        self.announce_break();
    }
}
