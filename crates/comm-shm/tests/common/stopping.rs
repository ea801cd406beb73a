//! A buffer whose receiver stops in the middle of a message.

use std::sync::mpsc::{Receiver, Sender};

/// A buffer of zeros. When the first bytes have arrived, and its receiver wants to write more, it
/// reports that, and waits until it may go on.
pub(crate) struct Stopping {
    bytes: Vec<u8>,
    pauses: Option<(Sender<()>, Receiver<()>)>,
}

impl Stopping {
    pub(crate) const fn new(bytes: Vec<u8>, stopped: Sender<()>, may_go_on: Receiver<()>) -> Self {
        Self { bytes, pauses: Some((stopped, may_go_on)) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Stopping {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.bytes.iter().take(100).any(|byte| *byte != 0)
            && let Some((stopped, may_go_on)) = self.pauses.take()
        {
            stopped.send(()).unwrap();
            may_go_on.recv().unwrap();
        }
        &mut self.bytes
    }
}
