//! Functions that work only in host memory return a typed error for tensors on a device.

use candle_core::{DType, Device, Tensor};
use comm_candle::{
    DataParallel, Error, ReplicatedOptimizer, ZeroOptimizer, check_replicas, collectives, sync_model,
};
use comm_core::ReduceOp;
use comm_ddp::AdamW;

use crate::ranks::on_ranks;
use crate::tensors::map;

#[test]
fn tensors_in_the_other_memory_are_refused_on_every_rank() {
    on_ranks("host_only::tensors_in_the_other_memory_are_refused_on_every_rank", |ctx| {
        let tensor = Tensor::zeros(4, DType::F32, &ctx.device).unwrap();
        let [there, here] =
            [&ctx.device, &Device::Cpu].map(|device| map(0, &[("w", tensor.to_device(device).unwrap())]));
        let adam = |_: &comm_ddp::Parameter| AdamW::new(1e-3);
        let errors = [
            DataParallel::new(&there, ctx.host()).map(drop),
            DataParallel::new(&here, ctx.cuda()).map(drop),
            sync_model(&there, ctx.host()),
            sync_model(&here, ctx.cuda()),
            check_replicas(&there, ctx.host()),
            ReplicatedOptimizer::new(&there, adam).map(drop),
            ZeroOptimizer::new(&there, ctx.host(), adam).map(drop),
        ];
        for (at, outcome) in errors.into_iter().enumerate() {
            assert!(matches!(outcome, Err(Error::Place { .. })), "{at}: {outcome:?}");
        }
        let sum = collectives::all_reduce(&tensor, ctx.host(), ReduceOp::Sum);
        assert!(matches!(sum, Err(Error::Tensor { .. })), "{sum:?}");
        // The communicators can still be used.
        sync_model(&there, ctx.cuda()).unwrap();
        check_replicas(&here, ctx.host()).unwrap();
    });
}
