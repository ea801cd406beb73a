//! TLS of the connections over TCP.

#[cfg(feature = "tls")]
use std::path::Path;

use comm_core::{Result, VariableFault};
#[cfg(feature = "tls")]
use comm_tcp::{Tls, TlsFiles};

use super::environment::{Environment, fault};
use super::variables::{TLS, TLS_CA, TLS_CERT, TLS_KEY};
use crate::Config;

/// The authentication of ranks in TLS.
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "there is no TLS"))]
enum Authentication<'a> {
    Secret,
    /// The files of a rank's certificate.
    Certificates {
        ca: &'a str,
        cert: &'a str,
        key: &'a str,
    },
}

/// Sets TLS as the environment describes it. If this program was built without it, a request for it
/// is an error.
pub(super) fn set(config: &mut Config, environment: &Environment) -> Result<()> {
    match read(environment)? {
        Some(authentication) => enable(config, &authentication),
        None => Ok(()),
    }
}

/// Returns `None` for connections without TLS.
fn read(environment: &Environment) -> Result<Option<Authentication<'_>>> {
    let is_on = environment.number(&TLS)?;
    let variables = [&TLS_CA, &TLS_CERT, &TLS_KEY];
    let mut files = [None; 3];
    for (file, variable) in files.iter_mut().zip(variables) {
        *file = environment.text(variable)?;
    }
    match (is_on, files) {
        (Some(0), _) | (None, [None, None, None]) => Ok(None),
        (None, _) => {
            let advice = "set it to 1 to use the certificate, or to 0 for connections without TLS";
            Err(fault(TLS.name, VariableFault::NotSet, advice))
        }
        (Some(_), [None, None, None]) => Ok(Some(Authentication::Secret)),
        (Some(_), [Some(ca), Some(cert), Some(key)]) => {
            Ok(Some(Authentication::Certificates { ca, cert, key }))
        }
        (Some(_), files) => {
            let mut missing = variables.iter().zip(files).filter(|(_, file)| file.is_none());
            let name = missing.next().map_or(TLS_KEY.name, |(variable, _)| variable.name);
            let advice = "a certificate needs COMM_TLS_CA, COMM_TLS_CERT and COMM_TLS_KEY; the secret alone needs none";
            Err(fault(name, VariableFault::NotSet, advice))
        }
    }
}

#[cfg(feature = "tls")]
fn enable(config: &mut Config, authentication: &Authentication<'_>) -> Result<()> {
    let tls = match *authentication {
        Authentication::Secret => Tls::with_secret(),
        Authentication::Certificates { ca, cert, key } => {
            let [ca, cert, key] = [ca, cert, key].map(Path::new);
            Tls::with_certificates(&TlsFiles { ca, cert, key })
        }
    };
    config.tcp.tls = Some(tls.map_err(super::name_variable)?);
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn enable(_: &mut Config, _: &Authentication<'_>) -> Result<()> {
    let reason = "this program was built without the feature `tls`; enable it, or unset the variable";
    Err(comm_core::Error::setting(TLS.name, "1", reason))
}

#[cfg(test)]
mod tests {
    use comm_core::{Error, Invalid};

    use super::super::table_tests::{fault_of, from};
    use super::*;

    #[test]
    fn certificates_need_all_files_and_tls() {
        for missing in ["COMM_TLS", "COMM_TLS_CA", "COMM_TLS_CERT", "COMM_TLS_KEY"] {
            let all =
                [("COMM_TLS", "1"), ("COMM_TLS_CA", "/a"), ("COMM_TLS_CERT", "/b"), ("COMM_TLS_KEY", "/c")];
            let rest: Vec<_> = all.into_iter().filter(|(name, _)| *name != missing).collect();
            assert_eq!(fault_of(from(&rest)), (missing.into(), VariableFault::NotSet));
        }
        from(&[("COMM_TLS", "0"), ("COMM_TLS_CA", "/a")]).unwrap();
    }

    #[cfg(feature = "tls")]
    #[test]
    fn connections_use_tls_if_configured() {
        assert_eq!(from(&[]).unwrap().tcp.tls, None);
        assert!(from(&[("COMM_TLS", "1"), ("COMM_SECRET", "sesame")]).unwrap().tcp.tls.is_some());
        let all = [("COMM_TLS", "1"), ("COMM_TLS_CA", "/a"), ("COMM_TLS_CERT", "/b"), ("COMM_TLS_KEY", "/c")];
        match from(&all) {
            Err(Error::Invalid(Invalid::Setting { name, value, .. })) => {
                assert_eq!((name.as_str(), value.as_str()), ("COMM_TLS_CA", "/a"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_is_an_error_in_a_program_without_it() {
        for variables in [
            &[("COMM_TLS", "1")][..],
            &[("COMM_TLS", "1"), ("COMM_TLS_CA", "/a"), ("COMM_TLS_CERT", "/b"), ("COMM_TLS_KEY", "/c")],
        ] {
            match from(variables) {
                Err(Error::Invalid(Invalid::Setting { name, reason, .. })) => {
                    assert!(name == "COMM_TLS" && reason.contains("without the feature `tls`"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
