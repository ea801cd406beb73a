//! Parameters and gradients that are arrays of ndarray.

use comm_core::Invalid;
use comm_ddp::{AdamW, DataParallel, Error, Options, Parameter, ParameterSet, ZeroOptimizer};
use ndarray::{Array1, Array2, ArrayViewMutD, s};

use crate::on_ranks;

fn parameters() -> ParameterSet {
    let parameters = [Parameter::new::<f64>("weight", [3, 4]), Parameter::new::<f64>("bias", [4])];
    ParameterSet::new(parameters).unwrap()
}

#[test]
fn gradients_and_parameters_may_be_arrays() {
    for size in [1, 2, 3] {
        on_ranks(size, |comm| {
            let rank = comm.rank() as f64;
            let (mut weight, mut bias) =
                (Array2::from_elem((3, 4), rank + 1.0), Array1::from_elem(4, rank + 2.0));
            let mut replicas = DataParallel::new(&comm, parameters(), Options::default()).unwrap();
            let views: [ArrayViewMutD<'_, f64>; 2] =
                [weight.view_mut().into_dyn(), bias.view_mut().into_dyn()];
            replicas.broadcast_parameters(views).unwrap();
            assert!(weight.iter().all(|value| *value == 1.0) && bias.iter().all(|value| *value == 2.0));

            let gradient = Array2::from_shape_fn((3, 4), |(row, column)| rank + (4 * row + column) as f64);
            let wide = Array2::from_elem((2, 4), 2.0 * rank);
            let mut step = replicas.step().unwrap();
            step.accumulate(0, &gradient).unwrap();
            step.ready(0, &gradient.view()).unwrap();
            step.ready(1, &wide.row(1)).unwrap();
            let averaged = step.finish().unwrap();
            let mean = (size - 1) as f64 / 2.0;
            let got = averaged.get::<f64>(0).unwrap();
            assert!(got.iter().enumerate().all(|(at, value)| *value == 2.0 * (mean + at as f64)));
            assert_eq!(averaged.get::<f64>(1).unwrap(), [2.0 * mean; 4]);
        });
    }
}

#[test]
fn arrays_that_are_not_contiguous_are_refused_and_nothing_is_sent() {
    on_ranks(2, |comm| {
        let is_refused = |outcome: Result<(), Error>| {
            matches!(outcome, Err(Error::Comm(comm_core::Error::Invalid(Invalid::NotContiguous { .. }))))
        };
        let mut replicas = DataParallel::new(&comm, parameters(), Options::default()).unwrap();
        let gradient = Array2::<f64>::ones((4, 3));
        let wide = Array2::<f64>::ones((3, 8));
        let mut step = replicas.step().unwrap();
        assert!(is_refused(step.ready(0, &gradient.t())), "the elements are in another order");
        assert!(is_refused(step.ready(0, &wide.slice(s![.., ..4]))));
        assert!(is_refused(step.ready(1, &wide.slice(s![0, ..;2]))));
        step.ready(0, &gradient.t().as_standard_layout()).unwrap();
        assert_eq!(step.finish().unwrap().get::<f64>(0).unwrap(), [1.0; 12]);
        let mut transposed = Array2::<f64>::ones((4, 3));
        let mut bias = Array1::<f64>::ones(4);
        let views = [transposed.view_mut().reversed_axes().into_dyn(), bias.view_mut().into_dyn()];
        assert!(is_refused(replicas.broadcast_parameters(views)));
        replicas.step().unwrap().finish().unwrap();
    });
}

#[test]
fn a_sharded_optimizer_updates_arrays() {
    on_ranks(2, |comm| {
        let mut zero =
            ZeroOptimizer::<f64, _>::new(&comm, parameters(), Options::default(), |_| AdamW::new(0.1))
                .unwrap();
        let (mut weight, mut bias) = (Array2::<f64>::ones((3, 4)), Array1::<f64>::ones(4));
        let mut step = zero.step().unwrap();
        step.ready(0, &Array2::<f64>::ones((3, 4))).unwrap();
        step.ready(1, &Array1::<f64>::ones(4)).unwrap();
        let views = [weight.view_mut().into_dyn(), bias.view_mut().into_dyn()];
        step.finish().unwrap().update(views).unwrap();
        // The first step of AdamW is the learning rate, after the decay.
        assert!(weight.iter().chain(&bias).all(|value| (value - 0.899).abs() < 1e-6));
    });
}
