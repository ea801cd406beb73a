//! Running statistics are made the same on all ranks, on request.

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use comm_burn::{DataParallel, sync_module};

use crate::ranks::{elements, flex, numbers, on_ranks, parameters};

#[derive(Module, Debug)]
struct Model {
    norm: BatchNorm,
    weight: Param<Tensor<1>>,
    frozen: Param<Tensor<1>>,
    seen: Param<Tensor<1, Int>>,
}

impl Model {
    fn new(rank: usize) -> Self {
        let device = flex();
        let seen = Tensor::from_data(TensorData::from([rank as i64]), &device);
        Self {
            // Statistics are those of the last batch.
            norm: BatchNormConfig::new(2).with_momentum(1.0).init(&device),
            weight: numbers(10 * rank, [3], &device),
            frozen: numbers(1 + 10 * rank, [3], &device).set_require_grad(false),
            seen: Param::initialized(ParamId::new(), seen),
        }
    }

    /// Computes statistics: means of `mean` and 10 more.
    fn see(&self, mean: f32) {
        let batch = [[mean - 1.0, mean + 9.0], [mean + 1.0, mean + 11.0]];
        drop(self.norm.forward(Tensor::<2>::from_data(TensorData::from(batch), &flex())));
    }

    /// The means as the next forward pass sees them.
    fn means(&self) -> Vec<f32> {
        self.norm.running_mean.value_sync().into_data().try_to_vec().unwrap()
    }
}

/// burn stores the update of the last forward pass separately until the next one.
#[test]
fn a_module_gets_the_newest_statistics_of_rank_0() {
    on_ranks(3, |comm| {
        let model = Model::new(comm.rank());
        let mean = 4.0 * comm.rank() as f32 + 1.0;
        model.see(50.0);
        model.see(mean);
        let model = sync_module(model, &comm).unwrap();
        assert_eq!(model.means(), [1.0, 11.0]);
        assert_eq!(parameters(&model)["norm.running_mean"].data.try_to_vec::<f32>().unwrap(), [1.0, 11.0]);
        model.see(mean);
        assert_eq!(model.means(), [mean, mean + 10.0], "the module can still be trained");
    });
}

fn buffers_only(
    change: impl Fn(&mut DataParallel, Model) -> comm_burn::Result<Model> + Sync,
    means: [f32; 2],
    seen: impl Fn(usize) -> f64 + Sync,
) {
    on_ranks(3, |comm| {
        let model = Model::new(comm.rank());
        let mut replicas = DataParallel::new(&model, &comm).unwrap();
        for step in 0..2 {
            model.see(4.0 * comm.rank() as f32 + 1.0 + step as f32);
        }
        let before = [elements(&model.weight), elements(&model.frozen)];
        let model = change(&mut replicas, model).unwrap();
        assert_eq!(model.means(), means);
        assert_eq!([elements(&model.weight), elements(&model.frozen)], before, "not a buffer");
        assert_eq!(elements(&model.seen), [seen(comm.rank())]);
        assert!(model.weight.is_require_grad());
        let variances = model.norm.running_var.value_sync().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(comm.all_gather_scalar(variances[0]).unwrap(), [variances[0]; 3]);
    });
}

#[test]
fn buffers_of_rank_0_are_copied_and_weights_are_not() {
    buffers_only(DataParallel::broadcast_buffers, [2.0, 12.0], |_| 0.0);
}

#[test]
fn statistics_are_averaged_and_integers_are_not() {
    buffers_only(DataParallel::average_buffers, [6.0, 16.0], |rank| rank as f64);
}

#[test]
fn a_module_outside_of_autodiff_gets_the_values_of_rank_0_too() {
    on_ranks(2, |comm| {
        let device = Device::flex();
        let mut weight = numbers::<1>(10 * comm.rank(), [3], &device);
        let mut replicas = DataParallel::new(&weight, &comm).unwrap();
        weight = replicas.sync_module(weight).unwrap();
        assert_eq!(elements(&weight), [0.0, 1.0, 2.0]);
        assert!(weight.train().is_require_grad(), "it can still be trained");
    });
}
