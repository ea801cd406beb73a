//! Benchmarks of the key-value store over loopback.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a macro makes what is public here")]
#![allow(clippy::expect_used, reason = "a benchmark panics on errors")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use comm_core::Store;
use comm_tcp::{StoreConfig, TcpStore, TcpStoreServer};
use criterion::{Criterion, criterion_group, criterion_main};

const TIMEOUT: Duration = Duration::from_secs(10);

fn operations(criterion: &mut Criterion) {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = TcpStoreServer::bind(any_port, StoreConfig::default()).expect("a server");
    let store = TcpStore::connect(server.local_addr(), StoreConfig::default(), TIMEOUT).expect("a client");
    let value = [7; 64];
    store.set("key", &value).expect("an operation");
    let mut group = criterion.benchmark_group("store");
    group.bench_function("set", |bencher| bencher.iter(|| store.set("key", &value)));
    group.bench_function("get", |bencher| bencher.iter(|| store.get("key", TIMEOUT)));
    group.bench_function("add", |bencher| bencher.iter(|| store.add("number", 1)));
    group.finish();
}

criterion_group!(benches, operations);
criterion_main!(benches);
