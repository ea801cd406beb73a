//! Tests of the launcher with shells as ranks.

// Clippy lets tests panic, but not the helpers of an integration test.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod binding;
mod collectives;
mod elastic;
mod elastic_nodes;
mod environment;
mod failure;
mod harness;
#[path = "../../../comm/tests/common/hosts.rs"]
mod hosts;
mod namespaces;
mod nodes;
mod output;
#[path = "../../../comm/tests/common/port.rs"]
mod port;
mod signals;
mod steps;
#[path = "../common/wait.rs"]
mod wait;
