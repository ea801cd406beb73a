//! Averaging runs in the order of candle's stream: after the work that computes gradients, and
//! before the work that uses or frees them.

use candle_core::{DType, Device, Tensor};
use comm_candle::DataParallel;

use crate::ranks::{RankContext, on_cpu, on_ranks};
use crate::tensors::{elements, gradient, map, store};

/// A power of two, so that all numbers below are exact.
const SIDE: usize = 2048;
const PRODUCTS: usize = 20;
const ROUNDS: usize = 8;

/// Returns a tensor of this number, computed by work that takes the device tens of milliseconds.
fn slowly(number: f64, device: &Device) -> candle_core::Result<Tensor> {
    let factor = Tensor::full(1.0 / SIDE as f32, (SIDE, SIDE), device)?;
    let mut product = Tensor::full(number as f32, (SIDE, SIDE), device)?;
    for _ in 0..PRODUCTS {
        product = product.matmul(&factor)?;
    }
    Ok(product)
}

fn average_in_order(ctx: &RankContext, device: &Device) -> comm_candle::Result<()> {
    let variables = map(ctx.rank(), &[("w", Tensor::zeros((SIDE, SIDE), DType::F32, device)?)]);
    let mut replicas = DataParallel::new(&variables, ctx.cuda())?;
    for round in 0..ROUNDS {
        let mut gradients = store(&variables, &[("w", slowly((round * 4 + ctx.rank() * 2) as f64, device)?)]);
        replicas.sync_gradients(&mut gradients)?;
        let average = gradient(&variables, "w", &gradients).unwrap();
        let [double, whole] = [(average * 2.0)?, average.clone()];
        drop(gradients);
        let mean = (round * 4 + ctx.size() - 1) as f64;
        if round % 2 == 0 {
            // The memory of the average is free for the next tensor.
            drop(whole);
            let next = Tensor::full(-1_f32, (SIDE, SIDE), device)?;
            assert!(elements(&on_cpu(&next)).iter().all(|number| *number == -1.0), "round {round}");
        } else {
            assert!(elements(&on_cpu(&whole)).iter().all(|number| *number == mean), "round {round}");
        }
        assert!(elements(&on_cpu(&double)).iter().all(|number| *number == 2.0 * mean), "round {round}");
    }
    Ok(())
}

#[test]
fn gradients_are_averaged_in_the_order_of_the_streams_of_threads() {
    on_ranks("order::gradients_are_averaged_in_the_order_of_the_streams_of_threads", |ctx| {
        average_in_order(ctx, &ctx.device).unwrap();
    });
}

#[test]
fn gradients_are_averaged_in_the_order_of_created_streams() {
    on_ranks("order::gradients_are_averaged_in_the_order_of_created_streams", |ctx| {
        average_in_order(ctx, &Device::new_cuda_with_stream(ctx.ordinal).unwrap()).unwrap();
    });
}
