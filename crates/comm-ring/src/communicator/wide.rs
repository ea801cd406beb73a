//! Reductions of 16-bit floats that compute in `f32`.

use std::time::Duration;

use comm_core::{Collective, Result, Widening};

use super::checked_call::{Bytes, CheckedCall};
use super::engine::InputCopies;

/// The buffers of a call as `f32`, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Wide {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Wide {
    /// Runs a call on copies of its buffers in `f32`.
    #[cold]
    pub(super) fn run(
        &mut self,
        call: &CheckedCall<'_>,
        bytes: Bytes<'_>,
        widening: Widening,
        timeout: Duration,
        calls: &mut InputCopies,
    ) -> Result<()> {
        widen(widening, bytes.input, &mut self.input);
        if bytes.in_place {
            widen(widening, bytes.output, &mut self.output);
        } else {
            self.output.resize(Widening::wide_bytes(bytes.output.len()), 0);
        }
        let wide = Bytes { input: &self.input, output: &mut self.output, in_place: bytes.in_place };
        calls.run(call, wide, timeout)?;
        // Rank 0 of an exclusive scan gets no result.
        if call.signature.collective != Collective::Exscan || calls.rank() != 0 {
            widening.narrow(&self.output, bytes.output, 1.0);
        }
        Ok(())
    }
}

fn widen(widening: Widening, halves: &[u8], wides: &mut Vec<u8>) {
    wides.resize(Widening::wide_bytes(halves.len()), 0);
    widening.widen(halves, wides, 1.0);
}
