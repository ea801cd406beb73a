//! Benchmarks of call signatures: the fingerprint, which precedes every message, and the encoding,
//! which ranks exchange when one of them has waited for a long time.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a macro makes what is public here")]

use std::hint::black_box;

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

criterion_group!(benches, description);
criterion_main!(benches);
