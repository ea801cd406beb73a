//! Collectives of tensors, and their backward.

use candle_core::{D, DType, Device, Tensor, Var};
use comm_candle::Error;
use comm_candle::collectives::{
    all_gather, all_reduce, broadcast, copy_to_group, reduce_from_group, reduce_scatter,
};
use comm_core::{Comm, ReduceOp};

use crate::ranks::{elements, numbers, on_ranks};

const WORLDS: [usize; 5] = [1, 2, 3, 5, 8];
const DTYPES: [DType; 9] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::F64,
];

/// The tensor of a rank, whose elements are small integers.
fn of_rank(rank: usize, shape: &[usize], dtype: DType) -> Tensor {
    numbers(rank, shape, dtype)
}

/// The sum of [`of_rank`] over ranks.
fn sum(size: usize, shape: &[usize], dtype: DType) -> Tensor {
    let ranks = (0..size).map(|rank| of_rank(rank, shape, dtype));
    ranks.reduce(|sum, next| (sum + next).unwrap()).unwrap()
}

#[track_caller]
fn assert_same(found: &Tensor, expected: &Tensor) {
    assert_eq!((found.dims(), found.dtype()), (expected.dims(), expected.dtype()));
    assert!(found.is_contiguous());
    assert_eq!(elements(found), elements(expected));
}

#[test]
fn all_types_and_shapes_are_exchanged() {
    let shapes: [&[usize]; 5] = [&[2, 3], &[], &[0, 4], &[1], &[3, 1, 2]];
    for size in WORLDS {
        on_ranks(size, |comm| {
            for (dtype, shape) in DTYPES.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
                let own = of_rank(comm.rank(), shape, dtype);
                assert_same(&all_reduce(&own, &comm, ReduceOp::Sum).unwrap(), &sum(size, shape, dtype));
                let root = size - 1;
                assert_same(&broadcast(&own, &comm, root).unwrap(), &of_rank(root, shape, dtype));
                assert_same(&own, &of_rank(comm.rank(), shape, dtype));
            }
        });
    }
}

#[test]
fn only_floats_can_be_averaged() {
    on_ranks(2, |comm| {
        for dtype in DTYPES {
            let own = of_rank(2 * comm.rank(), &[3], dtype);
            let average = all_reduce(&own, &comm, ReduceOp::Avg);
            if dtype.is_float() {
                assert_same(&average.unwrap(), &of_rank(1, &[3], dtype));
            } else {
                assert!(matches!(average, Err(Error::Ranks(_))));
            }
        }
    });
}

#[test]
fn dimensions_are_concatenated_and_divided_in_rank_order() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let shape = [2, 3 * size, 1];
            for dim in 0..3 {
                let own = of_rank(10 * comm.rank(), &shape, DType::F32);
                let all: Vec<Tensor> = (0..size).map(|rank| of_rank(10 * rank, &shape, DType::F32)).collect();
                let expected = Tensor::cat(&all, dim).unwrap();
                assert_same(&all_gather(&own, &comm, dim).unwrap(), &expected);
            }
            let own = of_rank(comm.rank(), &shape, DType::I64);
            let expected = sum(size, &shape, DType::I64).narrow(1, 3 * comm.rank(), 3).unwrap();
            let found = reduce_scatter(&own, &comm, ReduceOp::Sum, 1).unwrap();
            assert_same(&found, &expected.contiguous().unwrap());
            let first = of_rank(comm.rank(), &[size, 0], DType::F64);
            assert_eq!(reduce_scatter(&first, &comm, ReduceOp::Avg, 0).unwrap().dims(), [1, 0]);
            assert_eq!(all_gather(&first, &comm, D::Minus2).unwrap().dims(), [size * size, 0]);
        });
    }
}

#[test]
fn strided_tensors_are_exchanged_by_index() {
    on_ranks(3, |comm| {
        let base = numbers(6 * comm.rank(), &[3, 4], DType::F32);
        let strided = |base: &Tensor| {
            [base.t(), base.narrow(1, 1, 2), base.get(0).and_then(|row| row.broadcast_as((2, 4)))]
                .map(Result::unwrap)
        };
        let mean = strided(&numbers(6, &[3, 4], DType::F32));
        for (own, mean) in strided(&base).iter().zip(mean) {
            assert_same(&all_reduce(own, &comm, ReduceOp::Avg).unwrap(), &mean.contiguous().unwrap());
            let gathered = all_gather(own, &comm, 0).unwrap();
            let len = own.dims()[0];
            assert_same(
                &gathered.narrow(0, comm.rank() * len, len).unwrap().contiguous().unwrap(),
                &own.contiguous().unwrap(),
            );
        }
        assert_eq!(elements(&base), elements(&numbers(6 * comm.rank(), &[3, 4], DType::F32)));
    });
}

/// The gradient of this rank's input, if the losses of all ranks are summed. The loss of a rank is
/// its result times its weights.
fn gradient(comm: &Comm, shape: &[usize], call: impl Fn(&Tensor) -> comm_candle::Result<Tensor>) -> Tensor {
    let input = Var::from_tensor(&of_rank(comm.rank(), shape, DType::F64)).unwrap();
    // Strided, and not a leaf of the graph.
    let input_t = (input.t().unwrap() * 2.0).unwrap();
    let result = call(&input_t).unwrap();
    let weights = numbers(100 * comm.rank(), result.dims(), DType::F64);
    let gradients = (result * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let gradient = gradients.get(&input).unwrap();
    (gradient.t().unwrap().contiguous().unwrap() / 2.0).unwrap()
}

/// The weights of a rank for a result of this shape.
fn weights(rank: usize, shape: &[usize]) -> Tensor {
    numbers(100 * rank, shape, DType::F64)
}

fn total(tensors: impl Iterator<Item = Tensor>) -> Tensor {
    tensors.reduce(|sum, next| (sum + next).unwrap()).unwrap()
}

#[test]
fn gradients_are_those_of_the_sum_of_all_losses() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let rank = comm.rank();
            let shape = [4, 2 * size];
            let turned = [2 * size, 4];
            let sums = total((0..size).map(|rank| weights(rank, &turned)));
            let found = gradient(&comm, &shape, |tensor| all_reduce(tensor, &comm, ReduceOp::Sum));
            assert_same(&found, &sums);
            let found = gradient(&comm, &shape, |tensor| all_reduce(tensor, &comm, ReduceOp::Avg));
            let difference = (found - (&sums / size as f64).unwrap()).unwrap().abs().unwrap();
            assert!(elements(&difference).into_iter().all(|difference| difference < 1e-10));
            for root in [0, size - 1] {
                let found = gradient(&comm, &shape, |tensor| broadcast(tensor, &comm, root));
                assert_same(&found, &if rank == root { sums.clone() } else { sums.zeros_like().unwrap() });
            }
            for (dim, part) in [(0, 2 * size), (1, 4)] {
                let found = gradient(&comm, &shape, |tensor| all_gather(tensor, &comm, dim));
                let mut whole = turned;
                whole[dim] *= size;
                let sums = total((0..size).map(|rank| weights(rank, &whole)));
                assert_same(&found, &sums.narrow(dim, part * rank, part).unwrap().contiguous().unwrap());
            }
            let parts: Vec<Tensor> = (0..size).map(|rank| weights(rank, &[2, 4])).collect();
            let found = gradient(&comm, &shape, |tensor| reduce_scatter(tensor, &comm, ReduceOp::Sum, 0));
            assert_same(&found, &Tensor::cat(&parts, 0).unwrap());
            let found = gradient(&comm, &shape, |tensor| reduce_scatter(tensor, &comm, ReduceOp::Avg, 0));
            assert_same(&found, &(Tensor::cat(&parts, 0).unwrap() / size as f64).unwrap());
        });
    }
}

#[test]
fn the_entry_and_the_exit_of_a_group_are_adjoint() {
    for size in WORLDS {
        on_ranks(size, |comm| {
            let sums = total((0..size).map(|rank| weights(rank, &[2, 3])));
            assert_same(&gradient(&comm, &[3, 2], |tensor| copy_to_group(tensor, &comm)), &sums);
            let own = weights(comm.rank(), &[2, 3]);
            assert_same(&gradient(&comm, &[3, 2], |tensor| reduce_from_group(tensor, &comm)), &own);
            let tensor = of_rank(comm.rank(), &[3], DType::F32);
            assert_same(&copy_to_group(&tensor, &comm).unwrap(), &tensor);
            assert_same(&reduce_from_group(&tensor, &comm).unwrap(), &sum(size, &[3], DType::F32));
        });
    }
}

#[test]
fn tensors_without_variables_record_nothing() {
    on_ranks(2, |comm| {
        let own = of_rank(comm.rank(), &[2], DType::F32);
        assert!(!all_reduce(&own, &comm, ReduceOp::Sum).unwrap().track_op());
        let own = Var::from_tensor(&own).unwrap();
        assert!(all_reduce(&own, &comm, ReduceOp::Sum).unwrap().track_op());
    });
}

#[test]
fn an_operator_without_backward_says_so_in_backward() {
    on_ranks(2, |comm| {
        let own = Var::from_tensor(&of_rank(comm.rank(), &[2], DType::F32)).unwrap();
        let largest = all_reduce(&own, &comm, ReduceOp::Max).unwrap();
        assert_eq!(elements(&largest), [1.0, 2.0]);
        let failed = largest.sum_all().unwrap().backward().unwrap_err();
        assert!(failed.to_string().contains("all_reduce"), "{failed}");
    });
}

#[test]
fn mismatched_tensors_are_typed_errors() {
    on_ranks(3, |comm| {
        let narrow = Tensor::ones(3, DType::F8E4M3, &Device::Cpu).unwrap();
        assert!(matches!(all_reduce(&narrow, &comm, ReduceOp::Sum), Err(Error::Tensor { .. })));
        let four = of_rank(0, &[2, 4], DType::F32);
        match reduce_scatter(&four, &comm, ReduceOp::Sum, 1) {
            Err(Error::Indivisible { len: 4, ranks: 3, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(matches!(all_gather(&four, &comm, 2), Err(Error::Candle(_))));
        assert!(matches!(broadcast(&four, &comm, 3), Err(Error::Ranks(_))));
        // Nothing was sent, and the communicator is as before.
        assert_eq!(elements(&all_reduce(&four, &comm, ReduceOp::Max).unwrap()), elements(&four));
    });
}

/// The lengths are equal, but the elements would be added in another order.
#[test]
fn a_different_shape_on_one_rank_fails_on_every_rank() {
    on_ranks(3, |comm| {
        let shape: &[usize] = if comm.rank() == 1 { &[3, 2] } else { &[2, 3] };
        let failed = all_reduce(&of_rank(0, shape, DType::F32), &comm, ReduceOp::Sum).unwrap_err();
        assert!(matches!(failed, Error::Ranks(comm_ddp::Error::Comm(_))), "{failed}");
    });
}

#[test]
fn a_failure_in_backward_keeps_its_type() {
    on_ranks(2, |comm| {
        let own = Var::from_tensor(&of_rank(comm.rank(), &[2], DType::F32)).unwrap();
        let sum = all_reduce(&own, &comm, ReduceOp::Sum).unwrap();
        if comm.rank() == 1 {
            return;
        }
        match sum.sum_all().unwrap().backward().unwrap_err() {
            candle_core::Error::WrappedContext { wrapped, .. } => {
                let error = wrapped.downcast_ref::<Error>();
                assert!(matches!(error, Some(Error::Ranks(comm_ddp::Error::Comm(_)))), "{wrapped}");
            }
            other => panic!("{other}"),
        }
    });
}
