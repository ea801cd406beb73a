//! Messages between two ranks, which own their tensors until they are sent or received.

use comm::{HostView, HostViewMut, Incoming, Outgoing, Received, Result};

use crate::operation::Completion;
use crate::pending::Pending;
use crate::request::TensorMemory;

/// A message, and the operation that ends with it.
pub(crate) struct Message {
    pub(crate) memory: TensorMemory,
    pub(crate) completion: Completion,
    pub(crate) pending: Pending,
}

impl Outgoing for Message {
    fn view(&self) -> Result<HostView<'_>> {
        self.memory.view()
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        let Self { completion, pending, .. } = *self;
        drop(pending);
        completion.complete(outcome.map(|()| None), None);
    }
}

impl Incoming for Message {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        self.memory.view_mut()
    }

    fn complete(self: Box<Self>, outcome: Result<Received>) {
        let Self { memory, completion, pending } = *self;
        drop(pending);
        let expected = memory.len();
        let outcome = outcome.and_then(|received| received.exactly(expected).map(|()| Some(received.source)));
        completion.complete(outcome, None);
    }
}
