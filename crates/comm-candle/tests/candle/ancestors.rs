//! Programs written for earlier libraries.

use candle_core::{Device, Tensor};
use comm_candle::{sync_gradients, sync_model};

use crate::ranks::{elements, gradient, map, on_ranks, store, var};

fn tensor(numbers: &[f32]) -> Tensor {
    Tensor::from_slice(numbers, numbers.len(), &Device::Cpu).unwrap()
}

#[test]
fn two_ranks_get_the_means_of_their_gradients() {
    on_ranks(2, |comm| {
        let first = comm.rank() == 0;
        let variables = map(comm.rank(), &[("a", tensor(&[0.0; 3])), ("b", tensor(&[0.0; 2]))]);
        let a = tensor(if first { &[1.0, 2.0, 3.0] } else { &[4.0, 5.0, 6.0] });
        let b = tensor(if first { &[2.0, 4.0] } else { &[6.0, 8.0] });
        let mut gradients = store(&variables, &[("a", a), ("b", b)]);
        sync_gradients(&variables, &mut gradients, &comm).unwrap();
        assert_eq!(elements(gradient(&variables, "a", &gradients).unwrap()), [2.5, 3.5, 4.5]);
        assert_eq!(elements(gradient(&variables, "b", &gradients).unwrap()), [4.0, 6.0]);
    });
}

#[test]
fn a_broadcast_keeps_the_shape() {
    on_ranks(2, |comm| {
        let value = if comm.rank() == 0 { [[42.0, 99.0, 1.0], [2.0, 3.0, 4.0]] } else { [[0.0_f32; 3]; 2] };
        let variables = map(comm.rank(), &[("w", Tensor::new(&value, &Device::Cpu).unwrap())]);
        sync_model(&variables, &comm).unwrap();
        let found = var(&variables, "w").to_vec2::<f32>().unwrap();
        assert_eq!(found, [[42.0, 99.0, 1.0], [2.0, 3.0, 4.0]]);
    });
}

#[test]
fn collectives_of_a_single_rank_return_the_input() {
    on_ranks(1, |comm| {
        let variables = map(0, &[("w", tensor(&[7.0, -7.0])), ("unused", tensor(&[1.0]))]);
        let mut gradients = store(&variables, &[("w", tensor(&[0.1, -0.3]))]);
        sync_model(&variables, &comm).unwrap();
        let report = sync_gradients(&variables, &mut gradients, &comm).unwrap();
        let found = gradient(&variables, "w", &gradients).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(found, [0.1, -0.3]);
        assert_eq!(var(&variables, "w").to_vec1::<f32>().unwrap(), [7.0, -7.0]);
        assert_eq!(report.without_gradient(), ["unused"]);
        assert!(gradient(&variables, "unused", &gradients).is_none());
    });
}

/// Accumulation is candle's own: none of the micro-batches may be lost.
#[test]
fn gradients_of_several_backward_passes_are_summed_and_averaged_once() {
    on_ranks(3, |comm| {
        let variables = map(comm.rank(), &[("w", tensor(&[1.0, 1.0]))]);
        let weight = var(&variables, "w");
        let backward = |factor: f64| {
            let product = (weight.as_tensor() * factor).unwrap();
            product.sum_all().unwrap().backward().unwrap()
        };
        let mut gradients = backward(3.0 * comm.rank() as f64);
        gradients.extend(backward(6.0)).unwrap();
        gradients.extend(backward(9.0)).unwrap();
        sync_gradients(&variables, &mut gradients, &comm).unwrap();
        assert_eq!(elements(gradients.get(&weight).unwrap()), [18.0, 18.0]);
    });
}
