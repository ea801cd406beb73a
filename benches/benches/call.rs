//! Benchmarks of call signatures: the fingerprint, which precedes every message, and the encoding,
//! which ranks exchange when one of them has waited for a long time. And of whole calls in a world
//! of one rank, which contain all costs of a call but messages.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a macro makes what is public here")]

use std::hint::black_box;

use comm::{Config, Membership};
use comm_core::{Collective, DType, GroupId, ReduceOp, Signature, wire};
use criterion::{Criterion, criterion_group, criterion_main};

fn description(criterion: &mut Criterion) {
    let mut call = Signature::new(GroupId::WORLD, Collective::AllReduce, "recursive_doubling");
    (call.op, call.dtype, call.count) = (Some(ReduceOp::Sum), Some(DType::F32), 1 << 20);
    let mut group = criterion.benchmark_group("call");
    group.bench_function("fingerprint", |bencher| bencher.iter(|| black_box(&call).fingerprint()));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| wire::encode(|to| black_box(&call).encode(to)));
    });
    let bytes = wire::encode(|to| call.encode(to));
    group.bench_function("decode", |bencher| {
        bencher.iter(|| wire::decode(black_box(&bytes), Signature::decode).map(|call| call.count));
    });
    group.finish();
}

fn alone(criterion: &mut Criterion) {
    let config = Config::new(Membership { rank: 0, size: 1 }, "", 0);
    let Ok(comm) = config.and_then(|config| comm::init_with(&config)) else { return };
    let mut group = criterion.benchmark_group("one rank");
    group.bench_function("barrier", |bencher| bencher.iter(|| comm.barrier().is_ok()));
    let mut buffer = [1.0_f32; 1];
    group.bench_function("all_reduce", |bencher| {
        bencher.iter(|| comm.all_reduce(black_box(&mut buffer), ReduceOp::Sum).is_ok());
    });
    group.bench_function("alternating", |bencher| {
        bencher.iter(|| comm.all_reduce(black_box(&mut buffer), ReduceOp::Sum).and(comm.barrier()).is_ok());
    });
    group.finish();
}

criterion_group!(benches, description, alone);
criterion_main!(benches);
