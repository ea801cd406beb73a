//! The address of the store of rank 0, exchanged through a process manager of MPI.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use comm_core::{During, Error, Result};
use comm_pmi::{Introduction, ProcessManager, pmix};
use comm_tcp::{TcpStoreServer, own_addresses};

use crate::init::store_config;
use crate::master::Master;
use crate::{Config, StoreHost};

/// The key of the addresses, separated by commas.
const KEY: &str = "comm-store";
const PMIX_KEY: &CStr = c"comm-store";
/// The largest number of addresses, which fit into a text of PMI.
const ADDRESSES_MAX: usize = 16;

/// The master that this process has found. A process can use its process manager once, so every
/// later store of rank 0 has the same address.
static FOUND: Mutex<Option<Master>> = Mutex::new(None);

/// Returns the master and, in the first rendezvous of rank 0, the store that it serves.
///
/// # Errors
/// The errors of [`ProcessManager`] and [`pmix::exchange`], and [`Error::Timeout`] if other ranks
/// have not come to the exchange in time; on rank 0, the errors of [`Master::serve`].
pub(crate) fn find_master(config: &Config, timeout: Duration) -> Result<(Master, Option<TcpStoreServer>)> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(master) = &*found {
        return Ok((master.clone(), None));
    }
    let (server, own) = if config.rank == 0 {
        let (server, addresses) = serve(config)?;
        (Some(server), Some(addresses))
    } else {
        (None, None)
    };
    let addresses = match config.store {
        StoreHost::ProcessManager { descriptor } => exchange(descriptor, own, timeout),
        _ => pmix::exchange(PMIX_KEY, own, timeout),
    };
    let addresses = addresses.map_err(|error| absent(error, config))?;
    let addresses = addresses.ok_or_else(|| Error::malformed(KEY, "rank 0 has put no address"))?;
    let parsed: std::result::Result<Vec<SocketAddr>, _> = addresses.split(',').map(str::parse).collect();
    let master = Master::at(parsed.map_err(|_| Error::malformed(KEY, addresses))?);
    *found = Some(master.clone());
    Ok((master, server))
}

/// Exchanges the addresses of rank 0, which passes them, through PMI-1.
fn exchange(descriptor: RawFd, own: Option<String>, timeout: Duration) -> Result<Option<String>> {
    let mut manager = ProcessManager::over(descriptor, timeout)?;
    if let Some(own) = own {
        manager.put(KEY, &own)?;
    }
    manager.fence()?;
    let addresses = manager.get(KEY)?;
    manager.finalize()?;
    Ok(addresses)
}

/// The connection to the port of a process manager, which lives as long as the process.
static INTRODUCED: Mutex<Option<Introduction>> = Mutex::new(None);

/// Returns the rank, the size and the descriptor that the process manager at a port gives this
/// process. It is asked once.
///
/// # Errors
/// The errors of [`Introduction::request`].
pub(crate) fn introduce(address: &str, id: u64, timeout: Duration) -> Result<(usize, usize, RawFd)> {
    let mut introduced = INTRODUCED.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = match introduced.take() {
        Some(ours) => ours,
        None => Introduction::request(address, id, timeout)?,
    };
    let ours = introduced.insert(ours);
    Ok((ours.rank, ours.size, ours.descriptor()))
}

/// Serves the store at a free port, and returns its addresses as a text.
fn serve(config: &Config) -> Result<(TcpStoreServer, String)> {
    let mut own = reachable(config)?;
    own.truncate(ADDRESSES_MAX);
    let listen_on = match (config.bind, config.advertise) {
        (Some(ip), _) => vec![ip],
        // The address may be that of a router.
        (None, Some(_)) => vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()],
        (None, None) => own.clone(),
    };
    let server = Master::at(with_port(listen_on, 0)).serve(&store_config(config))?;
    let addresses = with_port(own, server.local_addr().port());
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Ok((server, texts.join(",")))
}

fn with_port(ips: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Returns the addresses at which the other ranks may reach this one.
fn reachable(config: &Config) -> Result<Vec<IpAddr>> {
    let all = match config.advertise.or(config.bind) {
        Some(ip) => vec![ip],
        None if config.local_world_size == config.world_size && config.interface.is_none() => Vec::new(),
        None => own_addresses(config.interface.as_deref())?,
    };
    Ok(if all.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { all })
}

/// The error of a fence that other ranks have not entered.
fn absent(error: Error, config: &Config) -> Error {
    match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
            let waiting_for = (0..config.world_size).filter(|rank| *rank != config.rank).collect();
            Error::Timeout { waiting_for, after: config.rendezvous_timeout, during: During::Rendezvous }
        }
        other => other,
    }
}
