//! Reductions of 16-bit floats that compute in `f32`.

use comm_core::{Collective, Result, Transport, Widening};

use super::engine::Engine;
use super::request::{Bytes, Request};

/// The buffers of a call as `f32`, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Wide {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<T: Transport> Engine<T> {
    /// Makes a call on these buffers; or, if it keeps partial sums in `f32`, on copies of them in that type.
    pub(super) fn with_sums(
        &mut self,
        request: &Request<'_>,
        bytes: Bytes<'_>,
        call: impl FnOnce(&mut Self, Bytes<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(widening) = request.widening() else { return call(self, bytes) };
        let Wide { mut input, mut output } = std::mem::take(&mut self.wide);
        widen(widening, bytes.input, &mut input);
        if bytes.in_place {
            widen(widening, bytes.output, &mut output);
        } else {
            output.resize(Widening::wide_bytes(bytes.output.len()), 0);
        }
        let result = call(self, Bytes { input: &input, output: &mut output, in_place: bytes.in_place });
        // The first rank gets nothing from those before it.
        if result.is_ok() && !(request.collective == Collective::ExScan && self.group.rank() == 0) {
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
