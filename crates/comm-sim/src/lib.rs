//! In-process transport, faulty network, schedule verifier and conformance suite of the comm library.
