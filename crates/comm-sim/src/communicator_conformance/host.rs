//! Members whose buffers are in the memory of this process.

use std::sync::Arc;

use comm_core::{Communicator, Element, Groups, Host, HostCommunicator, Result};

use super::{Features, Member};

/// A rank of a communicator for host memory.
pub struct HostMember {
    communicator: Arc<dyn HostCommunicator>,
    features: Features,
}

impl HostMember {
    /// Creates a member that offers everything, without names of algorithms.
    #[must_use]
    pub fn new(communicator: impl HostCommunicator + 'static) -> Self {
        Self::with_features(communicator, Features::default())
    }

    /// Creates a member with these features.
    #[must_use]
    pub fn with_features(communicator: impl HostCommunicator + 'static, features: Features) -> Self {
        Self { communicator: Arc::new(communicator), features }
    }
}

impl std::fmt::Debug for HostMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMember").field("group", &self.communicator.group()).finish_non_exhaustive()
    }
}

impl Member for HostMember {
    type Memory = Host;
    type Buffer<T: Element> = Vec<T>;

    fn communicator(&self) -> &dyn Communicator {
        &*self.communicator
    }

    fn features(&self) -> Features {
        self.features.clone()
    }

    fn groups(&self) -> Option<&dyn Groups> {
        Some(&*self.communicator)
    }

    fn buffer<T: Element>(&self, elements: &[T]) -> Result<Vec<T>> {
        Ok(elements.to_vec())
    }

    fn read<T: Element>(&self, buffer: &Vec<T>) -> Result<Vec<T>> {
        Ok(buffer.clone())
    }
}
