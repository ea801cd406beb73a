//! Downloads oneCCL for comparisons.

use std::io::Write;
use std::path::PathBuf;

use crate::error::Result;
use crate::places;
use crate::wheel::{Part, Wheel};

/// The headers and the library for CPUs. The shared library of the wheel `oneccl` needs SYCL, and
/// crashes on a machine without an Intel GPU.
pub(crate) const ONECCL: Wheel = Wheel {
    package: "oneccl-devel",
    version: "2022.2.0",
    sha256: &["6df69cc33962e48f401041bd788991bd47f82d3b1be3ed788aa184293c581cf2"],
    part: Part::Prefix(&["include/oneapi", "lib/ccl/cpu/lib/libccl.a"]),
};

/// The hwloc that it needs.
pub(crate) const HWLOC: Wheel = Wheel {
    package: "tcmlib",
    version: "1.6.0",
    sha256: &["46c2491988bfd18c4733eeb08aca6a386706a497b92cc51d155f37ddea003c14"],
    part: Part::Prefix(&["lib/libhwloc.so.15"]),
};

/// The runtime of the compiler with which it was built.
pub(crate) const RUNTIME: Wheel = Wheel {
    package: "intel-cmplr-lib-rt",
    version: "2026.2.0",
    sha256: &["9f713083073a820d2496a6da8e8d4f3482aba6640f74521d25ea48dcebe72748"],
    part: Part::Prefix(&["lib/libintlc.so.5"]),
};

/// Returns the folder of a wheel, whether it was downloaded or not.
pub(crate) fn folder(wheel: &Wheel) -> PathBuf {
    places::target().join("oneccl").join(format!("{}-{}", wheel.package, wheel.version))
}

/// Downloads the missing packages, and prints the folders.
pub(crate) fn fetch(out: &mut impl Write) -> Result<()> {
    for wheel in [ONECCL, HWLOC, RUNTIME] {
        let folder = folder(&wheel);
        wheel.fetch(&folder)?;
        writeln!(out, "{}", folder.display())?;
    }
    Ok(())
}
