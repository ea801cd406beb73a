//! Wrappers for fabrics, transports and stores that replace one operation for a test.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comm_core::{
    AbortHandle, Allocation, Armed, ChannelId, Fabric, Group, Interest, LastWill, LinkModel, Presence,
    RecvBuf, RegistrationSizes, Result, Scheduler, Store, Transport, Until, Waiter,
};

/// A fabric whose [`Fabric::open_among`] is replaced with `open`, which is passed the inner fabric.
#[derive(Debug)]
pub struct AlteredFabric<L, F> {
    /// The inner fabric.
    pub fabric: L,
    /// Opens a channel.
    pub open: F,
}

impl<L, F, T> Fabric for AlteredFabric<L, F>
where
    L: Fabric,
    F: Fn(&L, ChannelId, &[usize], Until<'_>) -> Result<T> + Send + Sync,
    T: Transport + 'static,
{
    type Channel = T;

    fn group(&self) -> Group {
        self.fabric.group()
    }

    fn now(&self) -> Instant {
        self.fabric.now()
    }

    fn links(&self) -> LinkModel {
        self.fabric.links()
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<T> {
        (self.open)(&self.fabric, channel, members, until)
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.fabric.allocate(bytes)
    }

    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        self.fabric.shared_buffer(bytes)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.fabric.scheduler()
    }
}

/// A fabric whose [`Fabric::shared_buffer`] is replaced with `share`, which is passed the inner
/// fabric.
#[derive(Debug)]
pub struct SharingFabric<L, F> {
    /// The inner fabric.
    pub fabric: L,
    /// Allocates memory that other ranks read in place.
    pub share: F,
}

impl<L, F> Fabric for SharingFabric<L, F>
where
    L: Fabric,
    F: Fn(&L, usize) -> Option<Allocation> + Send + Sync,
{
    type Channel = L::Channel;

    fn group(&self) -> Group {
        self.fabric.group()
    }

    fn now(&self) -> Instant {
        self.fabric.now()
    }

    fn links(&self) -> LinkModel {
        self.fabric.links()
    }

    fn open_among(&self, channel: ChannelId, members: &[usize], until: Until<'_>) -> Result<L::Channel> {
        self.fabric.open_among(channel, members, until)
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        self.fabric.allocate(bytes)
    }

    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        (self.share)(&self.fabric, bytes)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        self.fabric.scheduler()
    }
}

/// The differences of an [`AlteredTransport`]. Each method is passed the inner transport, and calls
/// the method of the same name by default. A closure is one that replaces [`Transport::try_send`].
#[allow(clippy::missing_errors_doc, reason = "they are those of the replaced methods")]
pub trait Alteration<T: Transport>: Send {
    /// In place of [`Transport::try_send`].
    fn try_send(&mut self, inner: &mut T, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        inner.try_send(to, bytes)
    }

    /// In place of [`Transport::try_put`].
    fn try_put(
        &mut self,
        inner: &mut T,
        (to, call): (usize, u64),
        offset: usize,
        bytes: &[u8],
    ) -> Result<Option<usize>> {
        inner.try_put(to, call, offset, bytes)
    }

    /// In place of [`Transport::try_recv`].
    fn try_recv(&mut self, inner: &mut T, from: usize, into: &mut [u8]) -> Result<usize> {
        inner.try_recv(from, into)
    }

    /// In place of [`Transport::fill_buf`].
    fn fill_buf<'a>(&mut self, inner: &'a mut T, from: usize, at_most: usize) -> Result<RecvBuf<'a>> {
        inner.fill_buf(from, at_most)
    }

    /// In place of [`Transport::consume`].
    fn consume(&mut self, inner: &mut T, from: usize, bytes: usize) -> Result<()> {
        inner.consume(from, bytes)
    }

    /// In place of [`Transport::arm`].
    fn arm(&mut self, inner: &mut T, interest: &Interest) -> Result<Armed> {
        inner.arm(interest)
    }
}

impl<T, F> Alteration<T> for F
where
    T: Transport,
    F: FnMut(&mut T, usize, &[IoSlice<'_>]) -> Result<usize> + Send,
{
    fn try_send(&mut self, inner: &mut T, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self(inner, to, bytes)
    }
}

/// A transport with some replaced methods.
#[derive(Debug)]
pub struct AlteredTransport<T, A> {
    /// The inner transport.
    pub transport: T,
    /// The replaced methods.
    pub alteration: A,
}

impl<T: Transport, A: Alteration<T>> Transport for AlteredTransport<T, A> {
    fn group(&self) -> Group {
        self.transport.group()
    }

    fn now(&self) -> Instant {
        self.transport.now()
    }

    fn is_open(&self, peer: usize) -> bool {
        self.transport.is_open(peer)
    }

    fn is_full_mesh(&self) -> bool {
        self.transport.is_full_mesh()
    }

    fn try_send(&mut self, to: usize, bytes: &[IoSlice<'_>]) -> Result<usize> {
        self.alteration.try_send(&mut self.transport, to, bytes)
    }

    fn released(&self, to: usize) -> u64 {
        self.transport.released(to)
    }

    fn register(&mut self, memory: &[&[u8]]) {
        self.transport.register(memory);
    }

    fn registration_sizes(&self) -> RegistrationSizes {
        self.transport.registration_sizes()
    }

    fn is_window(&self, memory: &[u8]) -> bool {
        self.transport.is_window(memory)
    }

    fn open_window(&mut self, memory: &mut [u8], call: u64) {
        self.transport.open_window(memory, call);
    }

    fn close_window(&mut self) {
        self.transport.close_window();
    }

    fn try_put(&mut self, to: usize, call: u64, offset: usize, bytes: &[u8]) -> Result<Option<usize>> {
        self.alteration.try_put(&mut self.transport, (to, call), offset, bytes)
    }

    fn is_read_in_place(&self, memory: &[u8]) -> bool {
        self.transport.is_read_in_place(memory)
    }

    fn cached_bytes(&self) -> usize {
        self.transport.cached_bytes()
    }

    fn try_recv(&mut self, from: usize, into: &mut [u8]) -> Result<usize> {
        self.alteration.try_recv(&mut self.transport, from, into)
    }

    fn fill_buf(&mut self, from: usize, at_most: usize) -> Result<RecvBuf<'_>> {
        self.alteration.fill_buf(&mut self.transport, from, at_most)
    }

    fn fill_buf_copies(&mut self, from: usize) -> bool {
        self.transport.fill_buf_copies(from)
    }

    fn consume(&mut self, from: usize, bytes: usize) -> Result<()> {
        self.alteration.consume(&mut self.transport, from, bytes)
    }

    fn revoke(&mut self) {
        self.transport.revoke();
    }

    fn arm(&mut self, interest: &Interest) -> Result<Armed> {
        self.alteration.arm(&mut self.transport, interest)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.transport.descriptor()
    }

    fn sleep(&self, also: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<()> {
        self.transport.sleep(also, timeout)
    }

    fn yield_now(&self) {
        self.transport.yield_now();
    }

    fn peers_run_elsewhere(&self) -> bool {
        self.transport.peers_run_elsewhere()
    }

    fn run_now(&self, peers: &[usize]) -> bool {
        self.transport.run_now(peers)
    }

    fn sends_by_system_call(&self, to: usize) -> bool {
        self.transport.sends_by_system_call(to)
    }

    fn waiter(&self, yield_max: Duration) -> Waiter {
        self.transport.waiter(yield_max)
    }

    fn abort_handle(&self) -> Arc<dyn AbortHandle> {
        self.transport.abort_handle()
    }
}

/// A store whose [`Store::get`] passes each value through `value`, with its key.
#[derive(Debug)]
pub struct AlteredStore<S, F> {
    /// The inner store.
    pub store: S,
    /// Returns the value to return in place of the stored one.
    pub value: F,
}

impl<S: Store, F: Fn(&str, Vec<u8>) -> Vec<u8> + Send + Sync> Store for AlteredStore<S, F> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.store.get(key, timeout).map(|value| (self.value)(key, value))
    }

    fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.store.add(key, amount)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>> {
        self.store.compare_set(key, expected, desired)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.store.wait(keys, timeout)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.store.delete(key)
    }

    fn check(&self, keys: &[&str]) -> Result<bool> {
        self.store.check(keys)
    }

    fn num_keys(&self) -> Result<u64> {
        self.store.num_keys()
    }

    fn register_last_will(
        &self,
        will: &LastWill<'_>,
        watch: &str,
        timeout: Duration,
    ) -> Result<Option<Box<dyn Presence>>> {
        self.store.register_last_will(will, watch, timeout)
    }
}
