//! Stands in for TLS without the feature `tls`. Its types have no values.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use comm_core::Corruption;

use super::Negotiation;
use crate::hello::Role;
use crate::protection::Read;

#[derive(Debug, Clone)]
pub(crate) enum NoTls {}

impl NoTls {
    pub(crate) const fn has_certificates(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn begin(&self, _role: Role) -> io::Result<NoTlsSession> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum NoTlsSession {}

impl NoTlsSession {
    pub(crate) const fn negotiate(&mut self, _socket: impl AsFd) -> io::Result<Negotiation> {
        match *self {}
    }

    pub(crate) const fn has_received_nothing(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn has_received_record(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn failure(&self) -> Option<String> {
        match *self {}
    }

    pub(crate) const fn is_ready(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn deliver(&mut self, _into: &mut [u8]) -> Result<usize, Corruption> {
        match *self {}
    }

    pub(crate) const fn corruption(&self) -> Option<Corruption> {
        match *self {}
    }

    pub(crate) const fn read(&mut self, _socket: impl AsFd) -> rustix::io::Result<Read> {
        match *self {}
    }

    pub(crate) const fn send(
        &mut self,
        _socket: impl AsFd,
        _pieces: &[IoSlice<'_>],
        _offered: usize,
    ) -> rustix::io::Result<usize> {
        match *self {}
    }

    pub(crate) const fn holds_bytes(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn flush(&mut self, _socket: impl AsFd) -> rustix::io::Result<bool> {
        match *self {}
    }

    pub(crate) const fn give_up(&mut self) {
        match *self {}
    }
}
