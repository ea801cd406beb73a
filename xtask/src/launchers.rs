//! Downloads a launcher of MPI for tests.

use std::io::Write;

use crate::error::Result;
use crate::places;
use crate::wheel::Wheel;

/// Open MPI is not here, because its launcher needs libraries, which pip does not unpack into a
/// folder of our choice.
const MPICH: Wheel = Wheel {
    package: "mpich",
    version: "5.0.2",
    sha256: &["8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4"],
    files: &["bin"],
};

/// Downloads the launcher if it is not there, and prints its path.
pub(crate) fn fetch(out: &mut impl Write) -> Result<()> {
    let folder = places::target().join("mpich").join(MPICH.version);
    MPICH.fetch(&folder)?;
    writeln!(out, "{}", folder.join("bin/mpiexec").display())?;
    Ok(())
}
