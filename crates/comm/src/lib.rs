//! The facade of the comm library.
