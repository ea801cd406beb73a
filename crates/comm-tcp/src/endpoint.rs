//! What a rank has before it meets the others: a listener, and a record that says where it is.

use std::net::{IpAddr, SocketAddr};

use comm_core::{Error, Group, Result};
use socket2::Socket;

use crate::config::TcpConfig;
use crate::handshake::fill_random;
use crate::identity::Identity;
use crate::interface;
use crate::lanes::TcpLanes;
use crate::reception::Reception;
use crate::record::Member;
use crate::rendezvous::{self, RendezvousConfig};
use crate::secret::Secret;
use crate::socket::{self, Options};

/// A listener for the lanes of one rank, whose address the other ranks are still to be told.
#[derive(Debug)]
pub struct TcpEndpoint {
    group: Group,
    config: TcpConfig,
    listener: Socket,
    job: u64,
    secret: Option<Secret>,
    own: Member,
}

impl TcpEndpoint {
    /// Listens on a port that the system chooses.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting that cannot be used, [`Error::Io`] if a port cannot be had.
    pub fn bind(config: &RendezvousConfig) -> Result<Self> {
        let group = config.check()?;
        let stripes = config.tcp.stripes()?;
        let (listen, tell) = addresses(config)?;
        let listener = socket::listen(SocketAddr::new(listen, 0), &Options::lane(&config.tcp, false))?;
        let address = SocketAddr::new(tell, socket::local_address(&listener)?.port());
        let own = Member { process: random_number()?, address, stripes };
        let (job, secret) = (config.job, config.secret.clone());
        Ok(Self { group, config: config.tcp.clone(), listener, job, secret, own })
    }

    /// What the other ranks must know of this one, as a line of text.
    #[must_use]
    pub fn record(&self) -> String {
        self.own.to_string()
    }

    /// The lanes between ranks that have these records, in the order of ranks.
    ///
    /// # Errors
    /// [`Error::PeerLost`] for a rank whose address others cannot reach, [`Error::Internal`] for text that is no record,
    /// [`Error::Io`] if the system has no descriptors left.
    pub fn connect(self, records: &[String]) -> Result<TcpLanes> {
        let Self { group, config, listener, job, secret, .. } = self;
        let identity = Identity { rank: group.rank(), job, secret, members: rendezvous::read(records)? };
        Ok(TcpLanes::new(group, config, identity, Reception::new(listener)?))
    }
}

/// The address to listen on and the address to tell the others.
fn addresses(config: &RendezvousConfig) -> Result<(IpAddr, IpAddr)> {
    if let Some(bind) = config.bind.filter(|bind| !bind.is_unspecified()) {
        return Ok((bind, bind));
    }
    let tell = interface::choose(config.interface.as_deref(), config.store)?;
    Ok((config.bind.unwrap_or(tell), tell))
}

fn random_number() -> Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes).map_err(|e| Error::io("draw a random number", e))?;
    Ok(u64::from_le_bytes(bytes))
}
