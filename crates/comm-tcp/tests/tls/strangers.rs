//! Strangers at the port of a store: what they send, how slowly, and how many they are.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use comm_core::{Refusal, Store};
use comm_tcp::{StoreConfig, TcpStore};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, RootCertStore, ServerConfig, ServerConnection,
};

use crate::common::SOON;
use crate::common::certificates::{Certified, NAME, RANK};
use crate::store::serve;
use crate::{authority, rank_certificates, secret, store_config, with_secret};

/// More connections than a store keeps before they are authenticated.
const STRANGERS: usize = 300;

/// Begins a connection of a client without a certificate.
fn client() -> ClientConnection {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority().pem.as_bytes()).unwrap()).unwrap();
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap().with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"comm".to_vec()];
    ClientConnection::new(Arc::new(config), NAME.try_into().unwrap()).unwrap()
}

/// Returns the first bytes of a connection in TLS.
fn client_hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client().write_tls(&mut bytes).unwrap();
    bytes
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket
}

/// Waits until the other side has closed the connection.
fn await_end(socket: &mut TcpStream) {
    // It ends with a reset if not all bytes were read.
    let _ = socket.read_to_end(&mut Vec::new()).map_err(|error| {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let config = store_config(None, rank_certificates());
    let server = serve(&config);
    let mut client = client();
    let mut socket = connect(server.local_addr());
    // In TLS 1.3 a client is done before the server has asked for its certificate in vain.
    client.complete_io(&mut socket).unwrap();
    let error = loop {
        assert_ne!(client.read_tls(&mut socket).unwrap(), 0, "it is closed without a reason");
        if let Err(error) = client.process_new_packets() {
            break error;
        }
    };
    assert_eq!(error, Error::AlertReceived(AlertDescription::CertificateRequired));
    TcpStore::connect(server.local_addr(), config, SOON).unwrap().set("k", b"v").unwrap();
}

#[test]
fn other_bytes_than_a_handshake_end_the_connection() {
    let config = store_config(secret("sesame"), with_secret());
    let server = serve(&config);
    let hello = client_hello();
    let mut altered = hello.clone();
    altered[9] ^= 1;
    let garbage: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x93comm\r\n\x1b",
        &[0x16; 100],
        &[0x16, 3, 1, 0xff, 0xff],
        &altered,
        &[&hello[..], b"GET /"].concat(),
    ];
    for bytes in garbage {
        let mut socket = connect(server.local_addr());
        socket.write_all(bytes).unwrap();
        await_end(&mut socket);
    }
    TcpStore::connect(server.local_addr(), config, SOON).unwrap().set("k", b"v").unwrap();
}

#[test]
fn a_handshake_that_does_not_continue_ends_at_its_deadline() {
    let mut config = store_config(secret("sesame"), with_secret());
    config.handshake_timeout = Duration::from_millis(200);
    let server = serve(&config);
    let hello = client_hello();
    for sent in [0, 1, 5, hello.len() - 1, hello.len()] {
        let mut socket = connect(server.local_addr());
        socket.write_all(&hello[..sent]).unwrap();
        await_end(&mut socket);
    }
}

#[test]
fn a_client_connects_past_strangers_in_the_middle_of_a_handshake() {
    let mut config: StoreConfig = store_config(secret("sesame"), with_secret());
    config.handshake_timeout = Duration::MAX;
    let server = serve(&config);
    let hello = client_hello();
    for sent in [1, hello.len() - 1, hello.len()] {
        let mut strangers: Vec<_> = (0..STRANGERS).map(|_| connect(server.local_addr())).collect();
        for stranger in &mut strangers {
            // The store closes the oldest in the meantime.
            let _ = stranger.write_all(&hello[..sent]);
        }
        let client = TcpStore::connect(server.local_addr(), config.clone(), SOON).unwrap();
        client.set("k", b"v").unwrap();
        await_end(&mut strangers[0]);
    }
}

/// Accepts one connection with a certificate, but with another private key.
fn serve_with_another_key(listener: &TcpListener, stolen: &Certified, other: &Certified) {
    let provider = Arc::new(ring::default_provider());
    let chain = CertificateDer::pem_slice_iter(stolen.cert.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(other.key.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let key = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(key));
    config.alpn_protocols = vec![b"comm".to_vec()];
    let (mut socket, _) = listener.accept().unwrap();
    // It fails when the other side refuses it.
    let _ = ServerConnection::new(Arc::new(config)).unwrap().complete_io(&mut socket);
}

#[test]
fn a_store_with_the_certificate_of_another_process_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [stolen, other] = [authority().issue(RANK), authority().issue(RANK)];
    thread::scope(|scope| {
        scope.spawn(|| serve_with_another_key(&listener, &stolen, &other));
        let outcome = TcpStore::connect(address, store_config(None, rank_certificates()), SOON);
        match outcome {
            Err(comm_core::Error::Handshake { refusal: Refusal::TlsFailed { reason }, .. }) => {
                assert!(reason.contains("BadSignature"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    });
}
