//! Groups created from a group: groups of the host communicator, combined with the device of each
//! rank.

use std::sync::Arc;

use comm_core::{CallOptions, Groups, HostCommunicator, Result};
use comm_nccl::{Cuda, DeviceCommunicator};

use super::StagedCommunicator;

impl Groups<Cuda> for StagedCommunicator {
    fn split(
        &self,
        color: Option<u64>,
        key: i64,
        options: &CallOptions,
    ) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        let _turn = self.turn()?;
        let group = self.ended(self.host.0.split(color, key, options))?;
        group.map(|group| self.member(group)).transpose()
    }

    fn new_group(
        &self,
        ranks: &[usize],
        options: &CallOptions,
    ) -> Result<Option<Box<dyn DeviceCommunicator>>> {
        let _turn = self.turn()?;
        let group = self.ended(self.host.0.new_group(ranks, options))?;
        group.map(|group| self.member(group)).transpose()
    }

    fn duplicate(&self, options: &CallOptions) -> Result<Box<dyn DeviceCommunicator>> {
        let _turn = self.turn()?;
        let group = self.ended(self.host.0.duplicate(options))?;
        self.member(group)
    }
}

impl StagedCommunicator {
    fn member(&self, host: Box<dyn HostCommunicator>) -> Result<Box<dyn DeviceCommunicator>> {
        Ok(Box::new(Self::over(Arc::from(host), &self.device, self.piece_bytes)?))
    }
}
