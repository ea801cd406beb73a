//! AES-256-GMAC, the message authentication code of NIST SP 800-38D, over data in pieces.

use std::fmt;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use comm_core::wire;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;

const BLOCK_BYTES: usize = 16;

pub(crate) const KEY_BYTES: usize = 32;
pub(crate) const NONCE_BYTES: usize = 12;
pub(crate) const MAC_BYTES: usize = 16;

/// A key. No two messages may have the same nonce.
pub(crate) struct GmacKey {
    cipher: Aes256,
    /// The hash of no data.
    hash: GHash,
}

/// The hash of the data so far.
#[derive(Clone)]
pub(crate) struct GmacState {
    hash: GHash,
    /// The first bytes of a block that is not complete yet.
    partial: [u8; BLOCK_BYTES],
    filled: usize,
    bytes: u64,
}

impl GmacKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let cipher = Aes256::new(key.into());
        let mut hash_key = Block::default();
        cipher.encrypt_block(&mut hash_key);
        Self { cipher, hash: GHash::new(&hash_key) }
    }

    pub(crate) fn begin(&self) -> GmacState {
        GmacState { hash: self.hash.clone(), partial: [0; BLOCK_BYTES], filled: 0, bytes: 0 }
    }

    /// Returns the code of the data.
    pub(crate) fn finish(&self, state: GmacState, nonce: [u8; NONCE_BYTES]) -> [u8; MAC_BYTES] {
        let mut mask = Block::default();
        mask[..NONCE_BYTES].copy_from_slice(&nonce);
        mask[BLOCK_BYTES - 1] = 1;
        self.cipher.encrypt_block(&mut mask);
        let hash = state.finish();
        std::array::from_fn(|at| mask[at] ^ hash[at])
    }
}

impl GmacState {
    pub(crate) fn update(&mut self, mut data: &[u8]) {
        self.bytes += data.len() as u64;
        if self.filled > 0 {
            let (first, rest) = data.split_at(data.len().min(BLOCK_BYTES - self.filled));
            self.partial[self.filled..self.filled + first.len()].copy_from_slice(first);
            self.filled += first.len();
            data = rest;
            if self.filled < BLOCK_BYTES {
                return;
            }
            self.hash.update(&[self.partial.into()]);
        }
        let (blocks, rest) = ghash::Block::slice_as_chunks(data);
        self.hash.update(blocks);
        self.partial[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    fn finish(mut self) -> Block {
        self.hash.update_padded(&self.partial[..self.filled]);
        // The numbers of bits of the data that is only authenticated, which is all, and of the
        // data that is also encrypted.
        let mut lengths = ghash::Block::default();
        let mut bits: [u8; 8] = wire::words([self.bytes * 8]);
        // The standard sends the most significant byte first.
        bits.reverse();
        lengths[..8].copy_from_slice(&bits);
        self.hash.update(&[lengths]);
        self.hash.finalize()
    }
}

/// Hides the key.
impl fmt::Debug for GmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GmacKey(..)")
    }
}

/// Hides the state, from which the key could be computed.
impl fmt::Debug for GmacState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GmacState(..)")
    }
}
