//! TCP transport, store and rendezvous of the comm collective communication library.
