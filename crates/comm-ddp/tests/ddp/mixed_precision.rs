//! 16-bit parameters with values of 32 bits that the optimizer updates, and a scale of the loss.

use comm_core::{Comm, Element, HostViewMut, ReduceOrder};
use comm_ddp::{
    AdamW, BucketLimits, DataParallel, Error, LossScaler, Optimizer, Options, Parameter, ParameterSet, Sgd,
    ZeroOptimizer,
};
use half::{bf16, f16};

use crate::on_ranks;

const LENGTHS: [usize; 3] = [37, 5, 130];

fn parameters<T: Element>() -> ParameterSet {
    let named = |(index, len): (usize, &usize)| Parameter::new::<T>(format!("p{index}"), [*len]);
    ParameterSet::new(LENGTHS.iter().enumerate().map(named)).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(32).bytes(100)).check_finite(true)
}

fn values<T: Half>(seed: usize) -> Vec<Vec<T>> {
    let number = |index: usize, at: usize| ((seed * 31 + index * 7 + at) as f32 * 0.618).sin();
    (0..3).map(|index| (0..LENGTHS[index]).map(|at| T::of(number(index, at))).collect()).collect()
}

trait Half: Element + Copy + PartialEq + std::fmt::Debug {
    fn of(number: f32) -> Self;
    fn wide(self) -> f32;
}

impl Half for bf16 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Half for f16 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// The steps in which rank 1 has an infinite gradient, in an element that only one rank updates.
const OVERFLOWS: [usize; 2] = [0, 3];

/// The gradients of the scaled loss.
fn gradients<T: Half>(comm: &Comm, step: usize, scale: f64) -> Vec<Vec<T>> {
    let scaled = |value: &mut T| *value = T::of(value.wide() * scale as f32);
    let mut gradients = values::<T>(100 + 10 * step + comm.rank());
    gradients.iter_mut().flatten().for_each(scaled);
    if comm.rank() == comm.size() / 2 && OVERFLOWS.contains(&step) {
        gradients[2][129] = T::of(f32::INFINITY);
    }
    gradients
}

/// Trains with whole 32-bit values on every rank. Returns the parameters and the scale.
fn whole<T: Half>(comm: &Comm) -> (Vec<Vec<T>>, f64) {
    let mut replicas = DataParallel::new(comm, parameters::<T>(), options()).unwrap();
    let mut scaler = LossScaler::new(8.0).growth_interval(2);
    let mut tensors = values::<T>(0);
    let mut masters: Vec<Vec<f32>> =
        tensors.iter().map(|tensor| tensor.iter().map(|value| value.wide()).collect()).collect();
    let mut states: Vec<[Vec<f32>; 2]> = LENGTHS.map(|len| [vec![0.0; len], vec![0.0; len]]).into();
    let mut updates = 0;
    for number in 0..8 {
        let mut step = replicas.step().unwrap();
        for (index, gradient) in gradients::<T>(comm, number, scaler.scale()).iter().enumerate() {
            step.ready(index, gradient).unwrap();
        }
        let mut averaged = step.finish().unwrap();
        let scale = scaler.scale();
        if !scaler.update(averaged.is_finite().unwrap()) {
            continue;
        }
        averaged.scale(1.0 / scale).unwrap();
        updates += 1;
        for index in 0..3 {
            let mut wide = vec![0.0_f32; LENGTHS[index]];
            averaged.copy_to(index, HostViewMut::new(&mut wide)).unwrap();
            let mut states: Vec<&mut [f32]> = states[index].iter_mut().map(|state| &mut state[..]).collect();
            AdamW::new(1e-3).update(updates, &mut masters[index], &wide, &mut states);
            let narrow = masters[index].iter().map(|value| T::of(*value));
            tensors[index].iter_mut().zip(narrow).for_each(|(value, narrow)| *value = narrow);
        }
    }
    assert_eq!(updates, 6);
    (tensors, scaler.scale())
}

/// Does the same with 32-bit values divided among the ranks.
fn sharded<T: Half>(comm: &Comm) -> (Vec<Vec<T>>, f64) {
    let optimizer = |_: &Parameter| AdamW::new(1e-3);
    let mut zero = ZeroOptimizer::<f32, _>::new(comm, parameters::<T>(), options(), optimizer).unwrap();
    let mut scaler = LossScaler::new(8.0).growth_interval(2);
    let mut tensors = values::<T>(0);
    for number in 0..8 {
        let mut step = zero.step().unwrap();
        for (index, gradient) in gradients::<T>(comm, number, scaler.scale()).iter().enumerate() {
            step.ready(index, gradient).unwrap();
        }
        let mut averages = step.finish().unwrap();
        let scale = scaler.scale();
        let is_finite = averages.is_finite().unwrap();
        assert_eq!(is_finite, !OVERFLOWS.contains(&number), "step {number}");
        if scaler.update(is_finite) {
            averages.scale(1.0 / scale).unwrap();
            averages.update(tensors.iter_mut()).unwrap();
        }
    }
    assert_eq!(zero.steps(), 6);
    (tensors, scaler.scale())
}

#[test]
fn sharded_master_weights_are_bit_identical_to_unsharded_ones() {
    fn check<T: Half>(size: usize) {
        let results = on_ranks(size, |comm| {
            let comm = comm.with_reduce_order(ReduceOrder::Deterministic);
            (whole::<T>(&comm), sharded::<T>(&comm))
        });
        for (whole, sharded) in &results {
            assert_eq!(whole.1, sharded.1);
            assert!(whole.0 == sharded.0 && sharded.0 == results[0].1.0, "{size} ranks");
        }
    }
    for size in [1, 2, 3, 4, 5, 8] {
        check::<bf16>(size);
        check::<f16>(size);
    }
}

#[test]
fn updates_too_small_for_16_bits_accumulate() {
    for size in [1, 2, 3] {
        on_ranks(size, |comm| {
            let set = ParameterSet::new([Parameter::new::<bf16>("weight", [4])]).unwrap();
            let optimizer = |_: &Parameter| Sgd::new(1.0);
            let mut zero = ZeroOptimizer::<f32, _>::new(&comm, set, options(), optimizer).unwrap();
            let mut weight = [bf16::from_f32(1.0); 4];
            // Next to 1, numbers of this type are 1/256 apart: a single update would be lost.
            for _ in 0..64 {
                let mut step = zero.step().unwrap();
                step.gradient_mut::<bf16>(0).unwrap().fill(bf16::from_f32(1.0 / 1024.0));
                step.mark_ready(0).unwrap();
                step.finish().unwrap().update([&mut weight]).unwrap();
            }
            assert_eq!(weight, [bf16::from_f32(1.0 - 1.0 / 16.0); 4]);
        });
    }
}

#[test]
fn a_resumed_run_continues_with_the_master_weights() {
    on_ranks(2, |comm| {
        let gradient = [bf16::from_f32(1.0 / 1024.0); 6];
        let run = |zero: &mut ZeroOptimizer<f32, Sgd>, weight: &mut [bf16; 6]| {
            for _ in 0..5 {
                let mut step = zero.step().unwrap();
                step.ready(0, &gradient).unwrap();
                step.finish().unwrap().update([&mut *weight]).unwrap();
            }
        };
        let create = || {
            let set = ParameterSet::new([Parameter::new::<bf16>("weight", [6])]).unwrap();
            ZeroOptimizer::<f32, _>::new(&comm, set, options(), |_: &Parameter| Sgd::new(1.0)).unwrap()
        };
        let mut weight = [bf16::from_f32(1.0); 6];
        let mut zero = create();
        run(&mut zero, &mut weight);
        let saved: Vec<f32> = zero.state().flat_map(|shard| shard.values.to_vec()).collect();
        assert_eq!(saved, [1.0 - 5.0 / 1024.0; 3]);
        let (mut resumed, mut copy) = (create(), weight);
        for shard in resumed.state() {
            assert_eq!(shard.state, "master");
            shard.values.copy_from_slice(&saved);
        }
        resumed.set_steps(5);
        run(&mut resumed, &mut copy);
        run(&mut zero, &mut weight);
        assert_eq!(copy, weight);
        let values = |zero: &mut ZeroOptimizer<f32, Sgd>| -> Vec<f32> {
            zero.state().flat_map(|shard| shard.values.to_vec()).collect()
        };
        assert_eq!(values(&mut resumed), values(&mut zero));
    });
}

#[test]
fn only_the_type_of_the_optimizer_and_16_bit_floats_are_accepted() {
    on_ranks(2, |comm| {
        let refused =
            |set| ZeroOptimizer::<f32, Sgd>::new(&comm, set, options(), |_| Sgd::new(1.0)).unwrap_err();
        let set = ParameterSet::new([Parameter::new::<f64>("weight", [4])]).unwrap();
        assert!(matches!(refused(set), Error::WrongType { name, .. } if name == "weight"));
        let set = ParameterSet::new([Parameter::new::<bf16>("weight", [4])]).unwrap();
        let optimizer = |_: &Parameter| Sgd::new(1.0);
        let mut zero = ZeroOptimizer::<f32, _>::new(&comm, set, options(), optimizer).unwrap();
        let mut averages = zero.step().unwrap().finish().unwrap();
        assert!(matches!(averages.update([&mut [0.0_f32; 4]]), Err(Error::WrongType { .. })));
        averages.update([&mut [bf16::ZERO; 4]]).unwrap();
    });
}
