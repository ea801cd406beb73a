//! Fabrics with channels of one type, so that communicators are compiled once, in this crate, and
//! not for every transport.

use std::sync::Arc;
use std::time::Instant;

use comm_core::{Allocation, ChannelId, Fabric, LinkModel, Result, Scheduler, Transport, Until};

/// A [`Fabric`] of any transport.
pub(super) trait DynFabric: Send + Sync {
    fn now(&self) -> Instant;
    fn links(&self) -> LinkModel;
    fn size(&self) -> usize;
    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<Box<dyn Transport>>>;
    fn allocate(&self, bytes: usize) -> Result<Allocation>;
    fn shared_buffer(&self, bytes: usize) -> Option<Allocation>;
    fn scheduler(&self) -> Option<Arc<dyn Scheduler>>;
}

impl<F: Fabric> DynFabric for F {
    fn now(&self) -> Instant {
        Fabric::now(self)
    }

    fn links(&self) -> LinkModel {
        Fabric::links(self)
    }

    fn size(&self) -> usize {
        self.group().size()
    }

    fn open_all(
        &self,
        channels: &[ChannelId],
        members: &[usize],
        until: Until<'_>,
    ) -> Result<Vec<Box<dyn Transport>>> {
        let opened = Fabric::open_all(self, channels, members, until)?;
        Ok(opened.into_iter().map(|channel| Box::new(channel) as Box<dyn Transport>).collect())
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
