//! The settings of TLS, which all connections of a process share.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use comm_core::{Error, Result};
use comm_rendezvous::random_bytes;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::TlsSession;
use super::certificates::{AnyKey, AnyNameOfAuthority};
use crate::hello::Role;

/// The name of this protocol in TLS (ALPN).
const PROTOCOL: &[u8] = b"comm";

/// The names of the settings in errors.
const TLS: &str = "tls";
const CA: &str = "tls_ca";
const CERT: &str = "tls_cert";
const KEY: &str = "tls_key";

/// The bytes before the 32 of an Ed25519 key in its PKCS #8 encoding (RFC 8410).
const ED25519_PREFIX: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// TLS 1.3 for connections, which encrypts all their bytes. A side with TLS refuses a side without
/// it.
///
/// The two sides authenticate each other with the shared secret, with certificates, or with both.
/// The secret never protects the keys of the encryption: they are new for each connection, and who
/// learns the secret later cannot decrypt recorded bytes.
#[derive(Clone)]
pub struct Tls(Arc<Settings>);

struct Settings {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    has_certificates: bool,
}

/// The files of a rank's certificate, in PEM.
#[derive(Debug, Clone, Copy)]
pub struct TlsFiles<'a> {
    /// The certificate of the authority that has issued the certificates of all ranks, or several.
    /// The authority should issue certificates for the ranks of this job only.
    pub ca: &'a Path,
    /// The certificate of this rank, and then those between it and the authority, if there are any.
    pub cert: &'a Path,
    /// The private key of this rank's certificate.
    pub key: &'a Path,
}

impl Tls {
    /// Returns the settings for processes that authenticate each other with the shared secret only.
    /// It is an error to use them without one.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no random numbers, [`Error::Internal`] if the library for
    /// cryptography refuses them.
    pub fn with_secret() -> Result<Self> {
        let seed: [u8; 32] = random_bytes().map_err(|e| Error::io("draw a key for TLS", e))?;
        with_random_key(&seed).map_err(|error| Error::Internal(format!("a key for TLS: {error}")))
    }

    /// Returns the settings for processes that authenticate each other with certificates of one
    /// authority. If there is a secret, they need both.
    ///
    /// Each side verifies that the certificate of the other one was issued by the authority, is
    /// valid now, and may be used for the other side's role (`serverAuth`, `clientAuth`). Names and
    /// addresses in certificates are ignored, so any process with a certificate of the authority
    /// can be any rank. Revocation is not checked.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the file that cannot be used.
    pub fn with_certificates(files: &TlsFiles<'_>) -> Result<Self> {
        let roots = Arc::new(authorities(files.ca)?);
        let chain = certificates(CERT, files.cert)?;
        let refused = |error: &dyn fmt::Display| unusable(KEY, files.key, error);
        let key = PrivateKeyDer::from_pem_file(files.key).map_err(|error| refused(&error))?;
        with_certified_key(&roots, chain, &key).map_err(|error| refused(&error))
    }

    pub(crate) fn has_certificates(&self) -> bool {
        self.0.has_certificates
    }

    /// Begins a connection.
    pub(crate) fn begin(&self, role: Role) -> io::Result<TlsSession> {
        let Settings { client, server, .. } = &*self.0;
        match role {
            Role::Dialer => dial(Arc::clone(client)),
            Role::Acceptor => ServerConnection::new(Arc::clone(server)).map(TlsSession::new),
        }
        .map_err(io::Error::other)
    }

    /// Begins a connection of a dialer whose keys can be extracted.
    #[cfg(test)]
    pub(super) fn begin_with_keys(&self) -> std::result::Result<TlsSession, rustls::Error> {
        let mut client = (*self.0.client).clone();
        client.enable_secret_extraction = true;
        dial(client.into())
    }

    fn new(mut client: ClientConfig, mut server: ServerConfig, has_certificates: bool) -> Self {
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Tickets would be messages that nobody expects on an idle connection.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Self(Arc::new(Settings { client: Arc::new(client), server: Arc::new(server), has_certificates }))
    }
}

fn dial(client: Arc<ClientConfig>) -> std::result::Result<TlsSession, rustls::Error> {
    // Names are neither sent nor verified.
    let name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    ClientConnection::new(client, name).map(TlsSession::new)
}

/// Whether both are the same settings, and not only equal ones.
impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tls {}

/// Hides the keys.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_certificates() { "Tls(certificates)" } else { "Tls(secret)" })
    }
}

/// Returns the settings of a process with a raw public key (RFC 7250), which the other side does
/// not verify: the proofs of the secret, which cover the connection, authenticate both.
fn with_random_key(seed: &[u8; 32]) -> std::result::Result<Tls, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let key = PrivatePkcs8KeyDer::from([&ED25519_PREFIX[..], seed].concat());
    let key = provider.key_provider.load_private_key(key.into())?;
    let public = key.public_key().ok_or_else(|| rustls::Error::General("it has no public part".into()))?;
    let public = CertificateDer::from(public.as_ref().to_vec());
    let key = Arc::new(CertifiedKey::new(vec![public], key));
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
    let client = client(&provider)?.with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok(Tls::new(client, server, false))
}

fn with_certified_key(
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> std::result::Result<Tls, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())?;
    let algorithms = provider.signature_verification_algorithms;
    let verifier = Arc::new(AnyNameOfAuthority { roots: Arc::clone(roots), algorithms });
    let client = client(&provider)?
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key.clone_key())?;
    Ok(Tls::new(client, server, true))
}

type ClientBuilder = rustls::client::danger::DangerousClientConfigBuilder;

fn client(provider: &Arc<CryptoProvider>) -> std::result::Result<ClientBuilder, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    Ok(builder.with_protocol_versions(&[&TLS13])?.dangerous())
}

fn authorities(file: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA, file)? {
        roots.add(certificate).map_err(|error| unusable(CA, file, &error))?;
    }
    Ok(roots)
}

/// Returns the certificates of a file, at least one.
fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let refused = |error: &dyn fmt::Display| unusable(setting, file, error);
    let all = CertificateDer::pem_file_iter(file).map_err(|error| refused(&error))?;
    let all: Vec<_> = all.collect::<std::result::Result<_, _>>().map_err(|error| refused(&error))?;
    if all.is_empty() { Err(refused(&"it contains no certificate in PEM")) } else { Ok(all) }
}

fn unusable(setting: &str, file: &Path, error: &dyn fmt::Display) -> Error {
    Error::setting(setting, file.display().to_string(), error.to_string())
}

/// Returns the error for TLS without any authentication.
pub(crate) fn unauthenticated() -> Error {
    let reason =
        "TLS needs the shared secret or certificates: without either, anyone could be the other side";
    Error::setting(TLS, "1", reason)
}
