//! Ranks and stores with TLS, over real sockets.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod ranks;
mod relay;
mod store;
mod strangers;

use std::sync::LazyLock;

use comm_tcp::{RendezvousConfig, Secret, StoreConfig, Tls};

use common::certificates::{Authority, RANK};
use common::config;

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text).unwrap())
}

fn with_secret() -> Tls {
    Tls::with_secret().unwrap()
}

/// The authority of the ranks.
fn authority() -> &'static Authority {
    static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("authority"));
    &AUTHORITY
}

/// Returns the settings of a rank with a certificate of its own.
fn rank_certificates() -> Tls {
    authority().trusted_by(&authority().issue(RANK))
}

fn protected(rank: usize, size: usize, secret: Option<Secret>, tls: Option<Tls>) -> RendezvousConfig {
    let mut config = config(rank, size);
    (config.secret, config.tcp.tls) = (secret, tls);
    config
}

fn store_config(secret: Option<Secret>, tls: Tls) -> StoreConfig {
    let mut config = StoreConfig::default().secret(secret);
    config.tls = Some(tls);
    config
}
