//! The conformance suite of communicators for NCCL on the emulator, with random delays.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Communicator, Element, Groups, Result};
use comm_nccl::{Cuda, DeviceBuffer};
use comm_sim::communicator_conformance::{Features, Member};
use gpu_emu::Setting;

use crate::common::{JITTERS, Rank, control, devices, faults_of, options, world};

impl Member for Rank {
    type Memory = Cuda;
    type Buffer<T: Element> = DeviceBuffer<T>;

    fn communicator(&self) -> &dyn Communicator<Cuda> {
        &self.comm
    }

    fn features(&self) -> Features {
        let mut features = Features::of_nccl();
        features.options = options();
        features.step = 5;
        features
    }

    fn groups(&self) -> Option<&dyn Groups<Cuda>> {
        Some(&self.comm)
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::from_host(&self.stream, elements)
    }

    fn read<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>> {
        buffer.to_vec()
    }

    fn synchronize(&self) -> Result<()> {
        self.comm.synchronize()?;
        assert_eq!(faults_of(&[self.device.ordinal()]), Vec::<String>::new());
        Ok(())
    }
}

fn create(ranks: usize) -> Vec<Rank> {
    control().set(Setting::JitterMicroseconds, JITTERS[1]);
    world(&DEVICES.with(|all| all[..ranks].to_vec()), |rank| rank)
}

std::thread_local! {
    /// The devices of the test that runs in this thread.
    static DEVICES: Vec<usize> = devices(5);
}

comm_sim::communicator_conformance!(nccl, [1, 2, 3, 5], create);
