//! Refuses the clients of a store that cannot be served, so that they do not wait for their
//! deadlines.

use std::io;
use std::time::Duration;

use comm_core::{Refusal, simulation};
use rustix::event::PollFlags;
use rustix::io::Errno;
use socket2::Socket;

use super::StoreConfig;
use crate::handshake::{Handshake, Progress};
use crate::socket::{self, Options};

/// The time for which clients are answered. Later ones find the port closed.
const ANSWER_FOR: Duration = Duration::from_secs(1);
/// The maximum time for one handshake. Clients are answered one after another.
const HANDSHAKE_MAX: Duration = Duration::from_millis(50);

/// Refuses every client that connects within a second, with the error that kept the store from
/// being served.
pub(super) fn refuse_clients(listener: &Socket, options: &Options, config: &StoreConfig, cause: Errno) {
    let until = comm_mesh::deadline_after(ANSWER_FOR);
    while let Ok(true) = comm_mesh::wait_for(listener, PollFlags::IN, until) {
        match socket::accept(listener) {
            Ok(Some((client, address))) => {
                let prepared = options.apply_accepted(&client, listener);
                if let Err(error) = prepared.and_then(|()| refuse(&client, config, cause)) {
                    tracing::debug!(%address, %error, "cannot refuse a client of a store that cannot be served");
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot refuse the clients of a store that cannot be served");
                return;
            }
        }
    }
}

fn refuse(client: &Socket, config: &StoreConfig, cause: Errno) -> io::Result<()> {
    let until = simulation::now() + HANDSHAKE_MAX;
    let mut handshake = Handshake::accept(config.protection())?;
    loop {
        match handshake.advance(client)? {
            Progress::Authorize(hello) => {
                let unavailable = Refusal::StoreUnavailable { errno: cause.raw_os_error() };
                handshake.answer(config.authorize(&hello).and(Err(unavailable)));
            }
            Progress::Done | Progress::Refused(_) => return Ok(()),
            Progress::Pending => {
                let flags = if handshake.wants_write() { PollFlags::OUT } else { PollFlags::IN };
                if !comm_mesh::wait_for(client, flags, until)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
    }
}
