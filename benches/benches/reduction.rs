//! Benchmarks of the reduction kernels for every element type, in the L1 cache and beyond the L2
//! cache.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a macro makes what is public here")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

use std::hint::{self, black_box};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use comm_core::{DType, RecvBuf, ReduceOp, Reduction};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const SIZES: [usize; 3] = [4 << 10, 256 << 10, 16 << 20];
/// Every operator once, with one element type of each kind.
const CASES: [(ReduceOp, &[DType]); 4] = [
    (ReduceOp::Sum, &DType::ALL),
    (ReduceOp::Max, &DType::ALL),
    (ReduceOp::Prod, &[DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64]),
    (ReduceOp::BitXor, &[DType::U8, DType::U64]),
];

fn combine(criterion: &mut Criterion) {
    for ((op, dtypes), in_place) in CASES.into_iter().flat_map(|case| [(case, true), (case, false)]) {
        let form = if in_place { "in_place" } else { "with_addend" };
        let mut group = criterion.benchmark_group(format!("combine/{op}/{form}"));
        for reduction in dtypes.iter().filter_map(|dtype| Reduction::new(op, *dtype).ok()) {
            for bytes in SIZES {
                // Repeated sums of zeros never become subnormal or infinite, which take longer to
                // combine.
                let (mut dst, addend, from) = (vec![0; bytes], vec![0; bytes], vec![0; bytes]);
                let addend = (!in_place).then_some(addend);
                group.throughput(Throughput::Bytes(bytes as u64));
                group.bench_function(BenchmarkId::new(reduction.dtype().name(), bytes), |bencher| {
                    bencher.iter(|| {
                        let from = RecvBuf::from_slice(black_box(&from));
                        reduction.combine(black_box(&mut dst), black_box(addend.as_deref()), from)
                    });
                });
            }
        }
        group.finish();
    }
}

fn finish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("finish/avg");
    for reduction in [DType::F16, DType::BF16, DType::F32, DType::F64]
        .iter()
        .filter_map(|dtype| Reduction::new(ReduceOp::Avg, *dtype).ok())
    {
        let mut elements = vec![0; SIZES[1]];
        group.throughput(Throughput::Bytes(SIZES[1] as u64));
        group.bench_function(reduction.dtype().name(), |bencher| {
            bencher.iter(|| reduction.finish(black_box(&mut elements), 3));
        });
    }
    group.finish();
}

/// Combines into memory that another processor reads after each time, in both ways.
fn combine_into_shared(criterion: &mut Criterion) {
    let bytes = SIZES[1];
    let (addend, from) = (vec![0; bytes], vec![0; bytes]);
    let (dst, is_written, is_over) =
        (Mutex::new(vec![0; bytes]), AtomicBool::new(false), AtomicBool::new(false));
    let mut group = criterion.benchmark_group("combine_into_shared");
    group.throughput(Throughput::Bytes(bytes as u64));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if is_written.load(Ordering::Acquire) {
                    black_box(dst.lock().unwrap().iter().fold(0, |all, byte| all | byte));
                    is_written.store(false, Ordering::Release);
                }
                hint::spin_loop();
            }
        });
        for (name, in_blocks) in [("directly", false), ("in_blocks", true)] {
            let sum = Reduction::new(ReduceOp::Sum, DType::F32).unwrap().into_shared(in_blocks);
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|times| {
                    let mut total = Duration::ZERO;
                    for _ in 0..times {
                        let start = Instant::now();
                        sum.combine(&mut dst.lock().unwrap(), Some(&addend), RecvBuf::from_slice(&from));
                        total += start.elapsed();
                        is_written.store(true, Ordering::Release);
                        while is_written.load(Ordering::Acquire) {
                            hint::spin_loop();
                        }
                    }
                    total
                });
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    group.finish();
}

criterion_group!(benches, combine, combine_into_shared, finish);
criterion_main!(benches);
