//! Members whose buffers are in the memory of this process.

use comm_core::{Comm, Communicator, Element, Groups, Host, Result};

use super::{Features, Member};

/// A rank of a communicator for host memory.
pub struct HostMember {
    comm: Comm,
    features: Features,
}

impl HostMember {
    /// Creates a member with these features, whose calls use the options of the handle.
    #[must_use]
    pub fn new(comm: Comm, features: Features) -> Self {
        let options = comm.options().clone();
        Self { comm, features: Features { options, ..features } }
    }
}

impl std::fmt::Debug for HostMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMember").field("group", &self.comm.group()).finish_non_exhaustive()
    }
}

impl Member for HostMember {
    type Memory = Host;
    type Buffer<T: Element> = Vec<T>;

    fn communicator(&self) -> &dyn Communicator {
        self.comm.communicator()
    }

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(self.comm.communicator())
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Vec<T>> {
        Ok(elements.to_vec())
    }

    fn read<T: Element>(&self, buffer: &Vec<T>) -> Result<Vec<T>> {
        Ok(buffer.clone())
    }

    fn leave(self) -> Result<()> {
        self.comm.finalize()
    }
}
