//! The supported releases of NCCL on PyPI.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::wheel::{Part, Wheel};

const HEADER: &str = "nvidia/nccl/include/nccl.h";
const LIBRARY: &str = "nvidia/nccl/lib/libnccl.so.2";

/// A release of NCCL.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) version: &'static str,
    package: &'static str,
    /// The hashes for x86-64, and for AArch64 if there is one.
    sha256: &'static [&'static str],
}

/// The release of the header of the bindings.
pub(super) const BINDINGS: Release = Release {
    version: "2.32.3",
    package: "nvidia-nccl-cu13",
    sha256: &[
        "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
        "a5bee92b2f4af218c109f8d221c3c9adcc752b94ae0ffcb0ed5abf9341a7724c",
    ],
};

/// The oldest supported release, releases that PyTorch depends on, and the newest.
const RELEASES: [Release; 4] = [
    Release {
        version: "2.18.3",
        package: "nvidia-nccl-cu12",
        sha256: &["89cf220910c43e53df992f54f7aa2a35c6d606b077c9ae95b1f17c544d3ad3f3"],
    },
    Release {
        version: "2.28.9",
        package: "nvidia-nccl-cu13",
        sha256: &[
            "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
            "01c873ba1626b54caa12272ed228dc5b2781545e0ae8ba3f432a8ef1c6d78643",
        ],
    },
    Release {
        version: "2.30.7",
        package: "nvidia-nccl-cu13",
        sha256: &[
            "cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50",
            "ca786ffa5a647c75d4d1f5cc72a6c4f537947e2ba8823d7c8aaf768e7a7b9f77",
        ],
    },
    BINDINGS,
];

/// The local files of a release.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) header: PathBuf,
    pub(super) library: PathBuf,
}

pub(super) fn versions() -> [&'static str; RELEASES.len()] {
    RELEASES.each_ref().map(|release| release.version)
}

impl Release {
    pub(super) fn named(version: &str) -> Option<&'static Self> {
        const { &RELEASES }.iter().find(|release| release.version == version)
    }

    /// Downloads the header and the library unless they are already there.
    pub(super) fn fetch(&self, target: &Path) -> Result<Files> {
        let folder = target.join("nccl").join(self.version);
        let Self { version, package, sha256 } = *self;
        let wheel = Wheel { package, version, sha256, part: Part::Files(&[HEADER, LIBRARY]) };
        wheel.fetch(&folder)?;
        Ok(Files { header: folder.join("nccl.h"), library: folder.join("libnccl.so.2") })
    }
}
