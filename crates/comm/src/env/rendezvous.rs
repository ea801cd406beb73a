//! The variable that names the store through which ranks connect.

use std::path::{Path, PathBuf};

use comm_core::{Error, Result};

use super::environment::Environment;
use super::variables::RENDEZVOUS;

/// The location of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreLocation {
    /// A store at the address in the launcher's variables.
    Launcher,
    /// A store at this host and port.
    Address(String, u16),
    /// A folder that all ranks can access.
    Folder(PathBuf),
}

impl StoreLocation {
    /// Reads the variable, in the form of PyTorch's `init_method`.
    pub(super) fn read(environment: &Environment) -> Result<Self> {
        let Some(url) = environment.text(&RENDEZVOUS)? else { return Ok(Self::Launcher) };
        let refused = |reason: &str| Err(Error::setting(RENDEZVOUS.name, url, reason));
        match url.split_once("://") {
            Some(("env", "")) => Ok(Self::Launcher),
            Some(("tcp", address)) => match parse_address(address) {
                Some((host, port)) => Ok(Self::Address(host.to_owned(), port)),
                None => refused("it must be a host and a port from 1 to 65535, as in tcp://node1:29500"),
            },
            Some(("file", path)) if Path::new(path).is_absolute() => Ok(Self::Folder(path.into())),
            Some(("file", _)) => refused("the path must begin with a slash, as in file:///shared/job17"),
            _ => refused("it must be env://, tcp://HOST:PORT or file:///PATH"),
        }
    }
}

fn parse_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let is_host = !host.is_empty() && !host.contains(['/', '?', '@']);
    is_host.then_some((host, port))
}
