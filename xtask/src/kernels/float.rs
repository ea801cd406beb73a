//! The floating point types in PTX: how elements are loaded, widened, rounded and stored.

use super::text::lines;

/// A floating point type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Float {
    F16,
    Bf16,
    F32,
    F64,
}

impl Float {
    pub(super) const ALL: [Self; 4] = [Self::F16, Self::Bf16, Self::F32, Self::F64];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Returns the binary logarithm of the size in bytes.
    pub(super) const fn shift(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 1,
            Self::F32 => 2,
            Self::F64 => 3,
        }
    }

    /// Returns the type in which elements are computed.
    pub(super) const fn wide(self) -> &'static str {
        if matches!(self, Self::F64) { "f64" } else { "f32" }
    }

    /// Returns the name of a register of the type in which elements are computed.
    pub(super) fn register(self, number: u32) -> String {
        format!("%{}{number}", if self == Self::F64 { "d" } else { "x" })
    }

    /// Loads the element at an address into the register of this number. 16-bit floats are widened,
    /// which is exact.
    pub(super) fn load(self, address: &str, number: u32) -> Vec<String> {
        let to = self.register(number);
        match self {
            Self::F16 => lines(&format!("ld.global.b16 %h0, [{address}];\ncvt.f32.f16 {to}, %h0;")),
            Self::Bf16 => lines(&format!(
                "ld.global.u16 %r0, [{address}];
                 shl.b32 %r0, %r0, 16;
                 mov.b32 {to}, %r0;"
            )),
            Self::F32 | Self::F64 => vec![format!("ld.global.{} {to}, [{address}];", self.name())],
        }
    }

    /// Loads an element like [`Float::load`], and converts it to `f64` in `%d0`.
    pub(super) fn load_double(self, address: &str) -> Vec<String> {
        let mut code = self.load(address, 0);
        if self != Self::F64 {
            code.push("cvt.f64.f32 %d0, %x0;".into());
        }
        code
    }

    /// Rounds the register of this number to the type, to nearest and ties to even, and stores it.
    /// Every NaN becomes the positive quiet one without payload, as on the host.
    pub(super) fn store(self, address: &str, number: u32) -> Vec<String> {
        let from = self.register(number);
        lines(&match self {
            Self::F16 => format!(
                "setp.nan.f32 %p0, {from}, {from};
                 cvt.rn.f16.f32 %h0, {from};
                 selp.b16 %h0, 0x7e00, %h0, %p0;
                 st.global.b16 [{address}], %h0;"
            ),
            // Adds just under half of the last place, or half if the last place is odd. There are
            // instructions for bf16 from compute capability 8.0 on.
            Self::Bf16 => format!(
                "setp.nan.f32 %p0, {from}, {from};
                 mov.b32 %r0, {from};
                 shr.u32 %r1, %r0, 16;
                 and.b32 %r1, %r1, 1;
                 add.u32 %r1, %r1, 0x7fff;
                 add.u32 %r0, %r0, %r1;
                 shr.u32 %r0, %r0, 16;
                 selp.b32 %r0, 0x7fc0, %r0, %p0;
                 st.global.u16 [{address}], %r0;"
            ),
            Self::F32 => format!(
                "setp.nan.f32 %p0, {from}, {from};
                 selp.f32 {from}, 0f7fc00000, {from}, %p0;
                 st.global.f32 [{address}], {from};"
            ),
            Self::F64 => format!(
                "setp.nan.f64 %p0, {from}, {from};
                 selp.f64 {from}, 0d7ff8000000000000, {from}, %p0;
                 st.global.f64 [{address}], {from};"
            ),
        })
    }
}
