//! The conformance suite of communicators for device buffers that are staged through the host.
#![allow(clippy::unwrap_used, clippy::panic)]

use comm_core::{Collective, Communicator, Element, Groups, Result};
use comm_nccl::{Cuda, DeviceBuffer};
use comm_sim::communicator_conformance::{Features, Member};
use gpu_emu::Setting;

use crate::device::{JITTERS, Rank, control, devices, faults_of, options, staged};

/// The bytes of a piece of a buffer that is one block.
const PIECE: usize = 64;

impl Member for Rank {
    type Memory = Cuda;
    type Buffer<T: Element> = DeviceBuffer<T>;

    fn communicator(&self) -> &dyn Communicator<Cuda> {
        &*self.communicator
    }

    fn features(&self) -> Features {
        let mut features = Features::default();
        features.options = options();
        features.has = |collective| !matches!(collective, Collective::Scan | Collective::Exscan);
        // Around the boundaries of blocks, and of pieces of every type.
        features.lengths = |ranks| vec![0, 1, ranks + 1, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 193, 257];
        features.step = 31;
        features
    }

    fn groups(&self) -> Option<&dyn Groups<Cuda>> {
        Some(&*self.communicator)
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::from_host(&self.stream, elements)
    }

    fn read<T: Element>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>> {
        buffer.to_vec()
    }

    fn synchronize(&self) -> Result<()> {
        self.communicator.synchronize()?;
        assert_eq!(faults_of(&[self.device.ordinal()]), Vec::<String>::new());
        Ok(())
    }
}

fn create(ranks: usize) -> Vec<Rank> {
    control().set(Setting::JitterMicroseconds, JITTERS[1]);
    staged(&DEVICES.with(|all| all[..ranks].to_vec()), PIECE, |rank| rank)
}

std::thread_local! {
    /// The devices of the test that runs in this thread.
    static DEVICES: Vec<usize> = devices(5);
}

comm_sim::communicator_conformance!(staging, [1, 2, 3, 5], create);
