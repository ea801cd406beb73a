//! Compilation of kernels for several instruction sets, and the choice of one at run time.
//!
//! Kernels are plain loops. When they are inlined into a function that may use wider vectors, the
//! compiler vectorises them accordingly. AVX-512 is not used: measured on Zen 4, it is faster only
//! for a few types and only in cache, and slightly slower for the others.

/// A loop that is compiled for each instruction set. Implementations must be `#[inline(always)]`:
/// only inlined code is compiled again.
pub(super) trait Kernel {
    fn run(self);
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Isa(Level);

/// The level is private, so that an `Isa` proves that the machine has the instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// The default of the target: SSE2 on x86-64, NEON on AArch64.
    Baseline,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The instruction set that every machine of this target has.
    pub(super) const BASELINE: Self = Self(Level::Baseline);

    /// Returns the instruction set with the fastest loops.
    #[inline]
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            return Self(Level::Avx2);
        }
        Self::BASELINE
    }

    /// Returns every instruction set that this machine has.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let mut all = vec![Self::BASELINE];
        all.extend(Some(Self::best()).filter(|best| *best != Self::BASELINE));
        all
    }

    /// Returns whether the instruction set includes AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn has_f16c(self) -> bool {
        self.0 == Level::Avx2
    }

    #[inline]
    pub(super) fn run(self, kernel: impl Kernel) {
        match self.0 {
            Level::Baseline => kernel.run(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this level is created only after AVX2 and F16C were detected.
            Level::Avx2 => unsafe { run_avx2(kernel) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn run_avx2(kernel: impl Kernel) {
    kernel.run();
}
