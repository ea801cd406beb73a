//! The tool `commctl`.
fn main() {}
