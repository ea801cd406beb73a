//! Outer gradients that are sent as small integers.

use comm_core::Comm;
use comm_ddp::{BlockCodec, LocalOptions, LocalTraining, Parameter, ParameterSet, Scalar, Sgd};

use crate::{Replica, on_ranks, slices};

const CODECS: [BlockCodec; 2] = [BlockCodec::Int8, BlockCodec::Int4];

/// Trains for 30 steps. Returns the global parameters of all ranks.
fn globals<T: Scalar>(ranks: usize, options: LocalOptions) -> Vec<Vec<Vec<T>>> {
    on_ranks(ranks, |comm| {
        let mut replica = Replica::<T>::new(&comm, options).unwrap();
        for _ in 0..30 {
            replica.step().unwrap();
            replica.training.check_replicas().unwrap();
        }
        replica.training.synchronize(slices(&mut replica.values)).unwrap();
        assert_eq!(replica.values, replica.global());
        replica.values
    })
}

#[test]
fn replicas_have_the_same_bits_and_stay_near_those_of_exact_gradients() {
    for ranks in [1, 2, 3, 5, 8] {
        let streaming = LocalOptions::new(6).fragments(3).delay(2).alpha(0.5);
        for options in [LocalOptions::new(5), streaming] {
            let options = options.outer(Sgd::new(0.5).momentum(0.5).nesterov(true));
            let exact = globals::<f32>(ranks, options)[0].concat();
            for codec in CODECS {
                let rounded = globals::<f32>(ranks, options.codec(Some(codec)));
                assert!(rounded.iter().all(|global| *global == rounded[0]), "replicas differ");
                let near = if codec == BlockCodec::Int8 { 0.25 } else { 3.0 };
                for (rounded, exact) in rounded[0].concat().iter().zip(&exact) {
                    assert!((rounded - exact).abs() < near, "{codec:?}, {ranks}: {rounded} for {exact}");
                }
            }
        }
    }
}

#[test]
fn gradients_of_f64_are_encoded_as_those_of_f32() {
    for codec in CODECS {
        // All numbers are exact in both types.
        let options = LocalOptions::new(1).outer(Sgd::new(1.0)).codec(Some(codec));
        let (narrow, wide) = (globals::<f32>(2, options), globals::<f64>(2, options));
        let narrow = narrow[0].concat().into_iter().map(f64::from);
        let distance = narrow.zip(wide[0].concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(distance < 1e-4, "{codec:?}: {distance}");
    }
}

/// One parameter that an inner step moves by `gradient`.
fn one_parameter(comm: &Comm, options: LocalOptions, steps: usize, gradient: &[f32]) -> Vec<f32> {
    let parameters = ParameterSet::new([Parameter::new::<f32>("weight", [gradient.len()])]).unwrap();
    let mut weight = vec![0.0_f32; gradient.len()];
    let mut training = LocalTraining::new(comm, parameters, options, [&mut weight[..]]).unwrap();
    for _ in 0..steps {
        weight.iter_mut().zip(gradient).for_each(|(weight, slope)| *weight -= slope);
        training.step([&mut weight[..]]).unwrap();
    }
    weight
}

#[test]
fn integers_in_the_range_of_the_codec_are_exact() {
    for (codec, largest) in [(BlockCodec::Int8, 127), (BlockCodec::Int4, 7)] {
        for ranks in [1, 2, 3, 5, 8] {
            let gradient: Vec<f32> =
                (0..200).map(|at| if at % 64 == 0 { largest } else { at % largest } as f32).collect();
            let options = LocalOptions::new(1).outer(Sgd::new(1.0));
            let run = |options| on_ranks(ranks, |comm| one_parameter(&comm, options, 3, &gradient));
            assert_eq!(run(options.codec(Some(codec))), run(options), "{codec:?} on {ranks} ranks");
        }
    }
}

/// Next to 7, the smallest integer of 4 bits is 1; 0.25 is lost in every outer step unless the
/// rounding errors are added to the next one.
#[test]
fn small_differences_add_up_with_four_bits() {
    for ranks in [1, 2, 3] {
        let options = LocalOptions::new(1).outer(Sgd::new(1.0)).codec(Some(BlockCodec::Int4));
        for weight in on_ranks(ranks, |comm| one_parameter(&comm, options, 40, &[7.0, 0.25])) {
            assert!((weight[0] + 280.0).abs() < 2.0 && (weight[1] + 10.0).abs() < 2.0, "{weight:?}");
        }
    }
}
