//! Reductions of 16-bit floats that compute in `f32`.

use std::time::Duration;

use comm_core::{Collective, Result, Transport, Widening};

use super::checked_call::{Bytes, CheckedCall};
use super::engine::Engine;

/// The buffers of a call as `f32`, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Wide {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<T: Transport> Engine<T> {
    /// Carries out a call on copies of its buffers in `f32`.
    #[cold]
    pub(super) fn widened(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: Bytes<'_>,
        widening: Widening,
        timeout: Duration,
    ) -> Result<()> {
        let Wide { mut input, mut output } = std::mem::take(&mut self.wide);
        widen(widening, bytes.input, &mut input);
        if bytes.in_place {
            widen(widening, bytes.output, &mut output);
        } else {
            output.resize(Widening::wide_bytes(bytes.output.len()), 0);
        }
        let mut wide = Bytes { input: &input, output: &mut output, in_place: bytes.in_place };
        let result = self.premultiply(call, &mut wide, timeout);
        // The first rank gets nothing from those before it.
        if result.is_ok() && !(call.signature.collective == Collective::ExScan && self.group.rank() == 0) {
            widening.narrow(&output, bytes.output);
        }
        self.wide = Wide { input, output };
        result
    }
}

fn widen(widening: Widening, halves: &[u8], wides: &mut Vec<u8>) {
    wides.resize(Widening::wide_bytes(halves.len()), 0);
    widening.widen(halves, wides);
}
