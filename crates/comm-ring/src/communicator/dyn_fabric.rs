//! Fabrics with channels of one type, so that communicators are compiled once, in this crate, and
//! not for every transport.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{Allocation, ChannelId, Fabric, Group, LinkModel, Result, Scheduler, Transport, Until};

/// A [`Fabric`] of any transport.
pub(super) trait DynFabric: Send + Sync {
    fn group(&self) -> Group;
    fn now(&self) -> Instant;
    fn links(&self) -> LinkModel;
    fn open_among(
        &self,
        channel: ChannelId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Box<dyn Transport>>;
    fn allocate(&self, bytes: usize) -> Result<Allocation>;
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation>;
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>>;
}

impl<F: Fabric> DynFabric for F {
    fn group(&self) -> Group {
        Fabric::group(self)
    }

    fn now(&self) -> Instant {
        Fabric::now(self)
    }

    fn links(&self) -> LinkModel {
        Fabric::links(self)
    }

    fn open_among(
        &self,
        channel: ChannelId,
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Box<dyn Transport>> {
        Ok(Box::new(Fabric::open_among(self, channel, members, until)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation> {
        Fabric::allocate(self, bytes)
    }

    fn shared_buffer(&self, bytes: usize) -> Option<Allocation> {
        Fabric::shared_buffer(self, bytes)
    }

    fn scheduler(&self) -> Option<Arc<dyn Scheduler>> {
        Fabric::scheduler(self)
    }
}
