//! Ranks that connect in TLS, and the errors of those that do not.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{Error, Fabric, Invalid, Refusal, Result, Store};
use comm_sim::MemoryStore;
use comm_tcp::{RendezvousConfig, Secret, TcpFabric, TcpStore, TcpStoreServer, Tls, TlsFiles};
use rcgen::ExtendedKeyUsagePurpose;

use crate::common::certificates::{Authority, Certified, RANK, tls};
use crate::common::{SOON, WORLD, stream};
use crate::{authority, protected, rank_certificates, secret, store_config, with_secret};

/// Meets through a store without TLS, which has the same settings everywhere, and runs collectives
/// and messages.
fn compute(configs: Vec<RendezvousConfig>, store: &dyn Store) -> Vec<Result<()>> {
    let run = |config: &RendezvousConfig| stream::compute(TcpFabric::rendezvous(store, config)?, SOON);
    thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = configs.iter().map(|config| scope.spawn(move || run(config))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn ranks_with_a_secret_or_certificates_or_both_compute_exact_results() {
    let cases = [
        (secret("sesame"), with_secret()),
        (None, rank_certificates()),
        (secret("sesame"), rank_certificates()),
    ];
    for (secret, tls) in cases {
        for size in [2, 3] {
            let configs = (0..size).map(|rank| protected(rank, size, secret.clone(), Some(tls.clone())));
            let outcomes = compute(configs.collect(), &MemoryStore::default());
            assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        }
    }
}

/// Opens a channel between two ranks that cannot connect, and returns the errors. The ranks do not
/// compare their settings of TLS before.
fn open_refused(configs: [(Option<Secret>, Option<Tls>); 2]) -> [Error; 2] {
    let store = MemoryStore::default();
    let open = |mut config: RendezvousConfig| {
        config.member.settings.add("tls", "not compared");
        let fabric = TcpFabric::rendezvous(&store, &config)?;
        fabric.open(WORLD, Instant::now() + Duration::from_secs(2)).map(drop)
    };
    let configs: Vec<_> = configs.into_iter().zip(0..).collect();
    thread::scope(|scope| {
        let open = &open;
        let rank = |((secret, tls), rank)| scope.spawn(move || open(protected(rank, 2, secret, tls)));
        let ranks: Vec<_> = configs.into_iter().map(rank).collect();
        let errors: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap_err()).collect();
        errors.try_into().unwrap()
    })
}

/// Returns the refusal of the rank that dials, which names the other one.
fn refusal([_, dialer]: [Error; 2]) -> Refusal {
    match dialer {
        Error::Handshake { with, refusal } => {
            assert!(with.starts_with("rank 0 at "), "{with}");
            refusal
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_rank_with_another_secret_is_refused() {
    let errors =
        open_refused([(secret("sesame"), Some(with_secret())), (secret("simsim"), Some(with_secret()))]);
    assert_eq!(refusal(errors), Refusal::Authentication);
    let tls = rank_certificates();
    let errors = open_refused([(secret("sesame"), Some(tls.clone())), (secret("simsim"), Some(tls.clone()))]);
    assert_eq!(refusal(errors), Refusal::Authentication);
    let errors = open_refused([(secret("sesame"), Some(tls.clone())), (None, Some(tls))]);
    assert!(matches!(errors, [Error::Handshake { refusal: Refusal::Setting { .. }, .. }, _]), "{errors:?}");
}

#[test]
fn a_rank_with_tls_and_one_without_refuse_each_other_at_once() {
    for (here, tls) in [(false, [Some(with_secret()), None]), (true, [None, Some(with_secret())])] {
        let began = Instant::now();
        let errors = open_refused(tls.map(|tls| (secret("sesame"), tls)));
        assert_eq!(refusal(errors), Refusal::TlsRequired { here });
        // The rank that accepts waits for two seconds.
        assert!(began.elapsed() < SOON / 4);
    }
}

#[test]
fn ranks_compare_their_settings_before_they_connect() {
    let configs = [(with_secret(), "secret"), (rank_certificates(), "certificates")];
    for (tls, name) in configs {
        let configs = vec![protected(0, 2, secret("s"), Some(tls)), protected(1, 2, secret("s"), None)];
        for (rank, outcome) in compute(configs, &MemoryStore::default()).into_iter().enumerate() {
            let Err(Error::Handshake {
                refusal: Refusal::Setting { name: setting, ours, theirs, .. }, ..
            }) = outcome
            else {
                panic!("{outcome:?}")
            };
            let values = if rank == 0 { [ours, theirs] } else { [theirs, ours] };
            assert_eq!((setting.as_str(), values), ("tls", [name.to_owned(), "none".to_owned()]));
        }
    }
}

#[test]
fn a_rank_with_a_certificate_of_another_authority_or_none_is_refused() {
    let (other, rank) = (Authority::new("other authority"), authority().issue(RANK));
    let stranger = authority().trusted_by(&other.issue(RANK));
    let impostor = authority().trusted_by(&Authority::new("authority").issue(RANK));
    let distrusting = other.trusted_by(&rank);
    let expired = authority().trusted_by(&authority().issue_expired());
    let server_only = authority().trusted_by(&authority().issue(&[ExtendedKeyUsagePurpose::ServerAuth]));
    let client_only = authority().trusted_by(&authority().issue(&[ExtendedKeyUsagePurpose::ClientAuth]));
    // The rank that accepts, the one that dials, and the reason of the latter.
    let cases = [
        (rank_certificates(), stranger.clone(), "received fatal alert: UnknownCA"),
        (stranger, rank_certificates(), "invalid peer certificate: UnknownIssuer"),
        (rank_certificates(), impostor.clone(), "received fatal alert: DecryptError"),
        (impostor, rank_certificates(), "invalid peer certificate: BadSignature"),
        (rank_certificates(), distrusting, "invalid peer certificate: UnknownIssuer"),
        (rank_certificates(), expired.clone(), "received fatal alert: CertificateExpired"),
        (expired, rank_certificates(), "invalid peer certificate: certificate expired"),
        (rank_certificates(), server_only.clone(), "received fatal alert"),
        (
            client_only,
            rank_certificates(),
            "invalid peer certificate: certificate does not allow extended key usage",
        ),
        (rank_certificates(), with_secret(), "TLS"),
        (with_secret(), rank_certificates(), "TLS"),
    ];
    for (acceptor, dialer, expected) in cases {
        let errors = open_refused([acceptor, dialer].map(|tls| (secret("sesame"), Some(tls))));
        let Refusal::TlsFailed { reason } = refusal(errors) else { panic!("{expected}") };
        assert!(expected == "TLS" || reason.contains(expected), "{reason}");
    }
    // Its certificate is good for the side that accepts.
    let outcome = open_refused([secret("a"), secret("b")].map(|secret| (secret, Some(server_only.clone()))));
    assert!(matches!(outcome[1], Error::Handshake { refusal: Refusal::TlsFailed { .. }, .. }), "{outcome:?}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (ca, Certified { cert, key }) = (&authority().pem, authority().issue(RANK));
    let other = authority().issue(RANK).key;
    let cases = [
        (tls("", &cert, &key), "tls_ca", "ca"),
        (tls(&key, &cert, &key), "tls_ca", "ca"),
        (tls(ca, "", &key), "tls_cert", "cert"),
        (tls(ca, &key, &key), "tls_cert", "cert"),
        (tls(ca, &cert, &cert), "tls_key", "key"),
        (tls(ca, &cert, &other), "tls_key", "key"),
    ];
    for (outcome, setting, file) in cases {
        let error = outcome.unwrap_err();
        let Error::Invalid(Invalid::Setting { name, value, .. }) = &error else { panic!("{error}") };
        assert!(name == setting && value.ends_with(file), "{error}");
    }
    let missing = Path::new("/missing");
    let error = Tls::with_certificates(&TlsFiles { ca: missing, cert: missing, key: missing }).unwrap_err();
    assert!(error.to_string().contains("tls_ca = \"/missing\""), "{error}");
}

#[test]
fn tls_without_a_secret_or_certificates_is_an_invalid_setting() {
    let invalid = |error: Error| {
        let Error::Invalid(Invalid::Setting { name, reason, .. }) = &error else { panic!("{error}") };
        assert!(name == "tls" && reason.contains("secret"), "{error}");
    };
    for size in [1, 2] {
        let config = protected(0, size, None, Some(with_secret()));
        invalid(TcpFabric::rendezvous(&MemoryStore::default(), &config).unwrap_err());
    }
    let store = store_config(None, with_secret());
    invalid(TcpStoreServer::bind("127.0.0.1:0".parse().unwrap(), store.clone()).unwrap_err());
    invalid(TcpStore::connect("127.0.0.1:9".parse().unwrap(), store, SOON).unwrap_err());
}
