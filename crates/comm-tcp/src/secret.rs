//! The shared secret, and proofs of its knowledge.

use std::fmt;

use comm_core::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::protection::KEY_BYTES;

/// The length of a proof in bytes.
pub(crate) const PROOF_BYTES: usize = 32;

/// A secret that all processes of a job share. A side with a secret refuses sides without the same
/// secret.
///
/// It authenticates both ends of a connection in the handshake, and all later bytes with message
/// authentication codes. It does not encrypt them.
/// A secret of at least 16 random bytes cannot be guessed from what an eavesdropper sees.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl Secret {
    /// Creates a secret from arbitrary bytes.
    ///
    /// # Errors
    /// [`comm_core::Invalid::Setting`] if there are no bytes, because a secret that is set but
    /// empty is a mistake.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Err(Error::setting("secret", "", "it is empty"));
        }
        let keyed = Hmac::new_from_slice(bytes).map_err(|e| Error::setting("secret", "...", e))?;
        Ok(Self(keyed))
    }

    /// Returns the proof that the side with this role knows the secret and these messages.
    pub(crate) fn prove(&self, role: &[u8], messages: &[u8]) -> [u8; PROOF_BYTES] {
        self.keyed(role, messages).finalize().into_bytes().into()
    }

    /// Whether this is the proof of that role over these messages. The check takes the same time
    /// for every wrong proof.
    pub(crate) fn verifies(&self, role: &[u8], messages: &[u8], proof: &[u8]) -> bool {
        self.keyed(role, messages).verify_slice(proof).is_ok()
    }

    /// Returns a key that cannot be computed from these messages without the secret.
    pub(crate) fn derive_key(&self, label: &[u8], messages: &[u8]) -> [u8; KEY_BYTES] {
        self.keyed(label, messages).finalize().into_bytes().into()
    }

    fn keyed(&self, role: &[u8], messages: &[u8]) -> Hmac<Sha256> {
        self.0.clone().chain_update(role).chain_update(messages)
    }
}

/// Hides the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_role_its_messages_and_its_secret_only() {
        let secret = Secret::new("sesame").unwrap();
        let proof = secret.prove(b"dialer", b"messages");
        assert!(secret.verifies(b"dialer", b"messages", &proof));
        assert!(!secret.verifies(b"acceptor", b"messages", &proof));
        assert!(!secret.verifies(b"dialer", b"messageS", &proof));
        assert!(!secret.verifies(b"dialer", b"messages", &proof[..31]));
        assert!(!secret.verifies(b"dialer", b"messages", &[0; 32]));
        assert!(!Secret::new("simsim").unwrap().verifies(b"dialer", b"messages", &proof));
    }

    #[test]
    fn the_secret_never_shows() {
        assert_eq!(format!("{:?}", Secret::new("sesame").unwrap()), "Secret(..)");
        assert!(Secret::new("").is_err());
    }
}
