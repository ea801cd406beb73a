//! The introduction of a process to a process manager that listens on a port.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use comm_core::{Error, Result};

use crate::wire::{Reply, Wire};

/// A connection to a process manager that gives its processes a port instead of a socket, as with
/// `mpiexec -pmi-port` of MPICH. It has told this process its rank.
///
/// The connection lives as long as this value.
#[derive(Debug)]
#[non_exhaustive]
pub struct Introduction {
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes of the job.
    pub size: usize,
    socket: TcpStream,
}

impl Introduction {
    /// Connects to the process manager at `address`, the value of `PMI_PORT`, and names this
    /// process with `id`, the value of `PMI_ID`.
    ///
    /// # Errors
    /// [`Error::Io`] if the process manager cannot be reached or does not answer in time, and
    /// [`Error::Malformed`] if it does not know this process, or its answer cannot be understood.
    pub fn request(address: &str, id: u64, timeout: Duration) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::io(format!("connect to the process manager at PMI_PORT = {address:?}"), error)
        };
        let socket = connect(address, timeout).map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        let mut wire = Wire::connected(socket.try_clone().map_err(failed)?.into(), timeout);
        wire.ask(&format!("initack pmiid={id}"), "initack")?;
        let [size, rank, _debug] = ["size", "rank", "debug"].map(|name| number(&wire.receive("set")?, name));
        let (size, rank) = (size?, rank?);
        if rank >= size {
            return Err(Error::malformed(
                "the rank in an answer of the process manager",
                format!("{rank} of {size}"),
            ));
        }
        Ok(Self { rank, size, socket })
    }

    /// Returns the descriptor for [`ProcessManager::over`](crate::ProcessManager::over).
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn number(reply: &Reply, name: &str) -> Result<usize> {
    let text = reply.field(name)?;
    text.parse().map_err(|_| Error::malformed(format!("{name:?} in an answer of the process manager"), text))
}

/// Connects to the first address of a host that answers.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
