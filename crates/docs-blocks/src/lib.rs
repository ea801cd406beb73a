//! Compiles and runs the Rust examples of the README and of the pages in `docs`.
//!
//! Published packages cannot do this, because these files are outside of them. The examples in
//! `burn.md` and `candle.md` are excerpts, and are not compiled here: these frameworks take longer
//! to build than all else. The documentation of `comm-burn` and `comm-candle` has complete ones.

#![forbid(unsafe_code)]

/// Includes a document as documentation, in which rustdoc finds the examples.
macro_rules! documents {
    ($($name:ident: $path:literal),* $(,)?) => {
        $(#[cfg(doctest)] #[doc = include_str!(concat!("../../../", $path))] pub struct $name;)*
    };
}

documents! {
    Readme: "README.md",
    Choosing: "docs/choosing.md",
    Concepts: "docs/concepts.md",
    Debugging: "docs/debugging.md",
    Diloco: "docs/diloco.md",
    Elasticity: "docs/elasticity.md",
    Failures: "docs/failures.md",
    Heap: "docs/heap.md",
    Nccl: "docs/nccl.md",
    SimulatedFaults: "docs/simulated-faults.md",
    Start: "docs/start.md",
}
