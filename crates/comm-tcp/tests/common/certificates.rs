//! Certificates of authorities that exist only while the tests run.

use std::fs;

use comm_core::Result;
use comm_tcp::{Tls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// The name in every certificate. No rank has it, because names do not matter.
pub(crate) const NAME: &str = "rank.invalid";
/// The purposes of a rank's certificate.
pub(crate) const RANK: &[ExtendedKeyUsagePurpose] =
    &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

/// An authority, with its certificate in PEM.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its private key, in PEM.
pub(crate) struct Certified {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Issues a certificate for these purposes.
    pub(crate) fn issue(&self, purposes: &[ExtendedKeyUsagePurpose]) -> Certified {
        self.sign(&params("rank", purposes))
    }

    /// Issues a certificate that is no longer valid.
    pub(crate) fn issue_expired(&self) -> Certified {
        let mut params = params("rank", RANK);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Certified {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certified { cert, key: key.serialize_pem() }
    }

    /// Returns the settings of a rank that trusts this authority.
    pub(crate) fn trusted_by(&self, rank: &Certified) -> Tls {
        tls(&self.pem, &rank.cert, &rank.key).unwrap()
    }
}

fn params(name: &str, purposes: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = purposes.to_vec();
    params
}

/// Reads the settings from files with these contents.
pub(crate) fn tls(ca: &str, cert: &str, key: &str) -> Result<Tls> {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let [ca, cert, key] = [file("ca", ca), file("cert", cert), file("key", key)];
    Tls::with_certificates(&TlsFiles { ca: &ca, cert: &cert, key: &key })
}
