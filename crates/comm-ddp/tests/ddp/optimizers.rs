//! Replicas follow one process that sees the samples of all ranks: with SGD, which shows whether
//! gradients are divided, and with AdamW, which shows whether it is gradients that are averaged and
//! not weights.

use comm_core::{Comm, ReduceOp};
use comm_ddp::{
    AdamW, BucketLimits, DataParallel, Optimizer, Options, Parameter, ParameterSet, Scalar, Sgd,
    ZeroOptimizer,
};

use crate::on_ranks;

const STEPS: usize = 50;
const WORLDS: [usize; 4] = [2, 3, 4, 8];
/// A network of 6 inputs, 5 hidden units and one output.
const INPUTS: usize = 6;
const HIDDEN: usize = 5;
const LENGTHS: [usize; 3] = [INPUTS * HIDDEN, HIDDEN, HIDDEN];

/// Weights of both layers and biases of the first.
type Model<T> = [Vec<T>; 3];

fn initial<T: Scalar>() -> Model<T> {
    let number = |index: usize, at: usize| T::from_f64(((index * 17 + at) as f64 * 1.3).sin() * 0.7);
    [0, 1, 2].map(|index| (0..LENGTHS[index]).map(|at| number(index, at)).collect())
}

/// The input `at` of the sample that a rank has in a step. Samples differ a lot from rank to rank.
fn input(rank: usize, step: usize, at: usize) -> f64 {
    ((rank * 31 + step * 17 + at * 7) as f64 * 0.37).sin() * (1.0 + 0.25 * rank as f64)
}

/// Returns the gradient of the squared error in one sample, computed in `T`.
fn gradient<T: Scalar>(model: &Model<T>, rank: usize, step: usize) -> Model<T> {
    let [weights, biases, output] = model;
    let inputs: Vec<T> = (0..INPUTS).map(|at| T::from_f64(input(rank, step, at))).collect();
    let sum = |terms: &mut dyn Iterator<Item = T>| terms.fold(T::from_f64(0.0), |sum, term| sum + term);
    let hidden: Vec<T> = (0..HIDDEN)
        .map(|unit| {
            let weighted = &mut (0..INPUTS).map(|at| weights[unit * INPUTS + at] * inputs[at]);
            let activation: f64 = (sum(weighted) + biases[unit]).into();
            T::from_f64(activation.tanh())
        })
        .collect();
    let predicted = sum(&mut (0..HIDDEN).map(|unit| output[unit] * hidden[unit]));
    let error = predicted - T::from_f64((step as f64 * 0.1).cos() + 0.3 * rank as f64);
    let slope = |unit: usize| error * output[unit] * (T::from_f64(1.0) - hidden[unit] * hidden[unit]);
    [
        (0..HIDDEN * INPUTS).map(|at| slope(at / INPUTS) * inputs[at % INPUTS]).collect(),
        (0..HIDDEN).map(slope).collect(),
        (0..HIDDEN).map(|unit| error * hidden[unit]).collect(),
    ]
}

/// An optimizer of all parameters, and its state.
struct Whole<T, O> {
    optimizer: O,
    states: Vec<Vec<Vec<T>>>,
    steps: u64,
}

impl<T: Scalar, O: Optimizer<T>> Whole<T, O> {
    fn new(optimizer: O) -> Self {
        let zeros = |len: &usize| vec![vec![T::zeroed(); *len]; optimizer.state_names().len()];
        Self { states: LENGTHS.iter().map(zeros).collect(), steps: 0, optimizer }
    }

    fn update<'g>(&mut self, model: &mut Model<T>, gradients: impl Iterator<Item = &'g [T]>) {
        self.steps += 1;
        for ((tensor, gradient), states) in model.iter_mut().zip(gradients).zip(&mut self.states) {
            let mut states: Vec<&mut [T]> = states.iter_mut().map(|state| &mut state[..]).collect();
            self.optimizer.update(self.steps, tensor, gradient, &mut states);
        }
    }
}

fn slices<T>(model: &Model<T>) -> impl Iterator<Item = &[T]> {
    model.iter().map(|tensor| &tensor[..])
}

/// One process that sees the samples of all ranks in every step.
fn alone<T: Scalar>(ranks: usize, optimizer: impl Optimizer<T>) -> Model<T> {
    let (mut model, mut whole) = (initial(), Whole::new(optimizer));
    for step in 0..STEPS {
        let all: Vec<Model<T>> = (0..ranks).map(|rank| gradient(&model, rank, step)).collect();
        let mean = |index: usize, at: usize| {
            let sum = all.iter().fold(T::from_f64(0.0), |sum, gradient| sum + gradient[index][at]);
            sum / T::from_f64(ranks as f64)
        };
        let mean = [0, 1, 2].map(|index| (0..LENGTHS[index]).map(|at| mean(index, at)).collect());
        whole.update(&mut model, slices(&mean));
    }
    model
}

/// Runs ranks that must end with the same bits, and returns their model.
fn together<T: Scalar + PartialEq>(ranks: usize, train: impl Fn(&Comm) -> Model<T> + Sync) -> Model<T> {
    let mut all = on_ranks(ranks, |comm| train(&comm));
    assert!(all.iter().all(|model| *model == all[0]), "replicas differ");
    all.swap_remove(0)
}

fn parameters<T: Scalar>() -> ParameterSet {
    let names = ["hidden.weight", "hidden.bias", "output.weight"].iter().zip(LENGTHS);
    ParameterSet::new(names.map(|(name, len)| Parameter::new::<T>(*name, [len]))).unwrap()
}

fn options() -> Options {
    Options::default().limits(BucketLimits::DEFAULT.first_bytes(32).bytes(64))
}

fn data_parallel<T: Scalar>(comm: &Comm, optimizer: impl Optimizer<T>) -> Model<T> {
    let mut replicas = DataParallel::new(comm, parameters::<T>(), options()).unwrap();
    let mut model = if comm.rank() == 0 { initial() } else { LENGTHS.map(|len| vec![T::from_f64(9.0); len]) };
    replicas.broadcast_parameters(model.iter_mut()).unwrap();
    let mut whole = Whole::new(optimizer);
    for number in 0..STEPS {
        let gradient = gradient(&model, comm.rank(), number);
        let mut step = replicas.step().unwrap();
        for index in [2, 1, 0] {
            step.ready(index, &gradient[index]).unwrap();
        }
        whole.update(&mut model, step.finish().unwrap().iter::<T>().unwrap());
    }
    model
}

fn sharded<T: Scalar, O: Optimizer<T> + Copy>(comm: &Comm, optimizer: O) -> Model<T> {
    let mut zero = ZeroOptimizer::new(comm, parameters::<T>(), options(), |_| optimizer).unwrap();
    let mut model = initial();
    for number in 0..STEPS {
        let gradient = gradient(&model, comm.rank(), number);
        let mut step = zero.step().unwrap();
        for index in [2, 1, 0] {
            step.ready(index, &gradient[index]).unwrap();
        }
        step.finish().unwrap().update(model.iter_mut()).unwrap();
    }
    model
}

/// Returns the norm of the difference over the norm.
fn distance<T: Scalar>(a: &Model<T>, b: &Model<T>) -> f64 {
    let wide =
        |model: &Model<T>| -> Vec<f64> { model.iter().flatten().map(|value| (*value).into()).collect() };
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let (a, b) = (wide(a), wide(b));
    norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Compares data parallel training and the sharded optimizer with one process.
fn assert_matches_a_single_process<T, O>(optimizer: O, limit: f64)
where
    T: Scalar + PartialEq,
    O: Optimizer<T> + Copy + Sync,
{
    for ranks in WORLDS {
        let expected = alone(ranks, optimizer);
        let moved = distance(&expected, &initial());
        assert!(moved > 0.05, "the parameters hardly changed: {moved}");
        let distances = [
            distance(&together(ranks, |comm| data_parallel(comm, optimizer)), &expected),
            distance(&together(ranks, |comm| sharded(comm, optimizer)), &expected),
        ];
        assert!(distances.iter().all(|distance| *distance <= limit), "{ranks} ranks: {distances:?}");
    }
}

const SGD: Sgd = Sgd::new(0.05);
const ADAM_W: AdamW = AdamW::new(0.02);

fn momentum() -> Sgd {
    Sgd::new(0.02).momentum(0.9).weight_decay(0.01)
}

#[test]
fn sgd_matches_a_single_process() {
    assert_matches_a_single_process::<f64, _>(SGD, 1e-12);
    assert_matches_a_single_process::<f32, _>(SGD, 1e-5);
}

#[test]
fn momentum_matches_a_single_process() {
    assert_matches_a_single_process::<f64, _>(momentum(), 1e-12);
    assert_matches_a_single_process::<f32, _>(momentum(), 1e-5);
}

#[test]
fn adam_w_matches_a_single_process() {
    assert_matches_a_single_process::<f64, _>(ADAM_W, 1e-12);
    assert_matches_a_single_process::<f32, _>(ADAM_W, 1e-5);
}

/// Trains with a wrong use of an all-reduce, and returns the distance from one process.
fn mutant<O: Optimizer<f64> + Copy + Sync>(
    optimizer: O,
    update: impl Fn(&Comm, &mut Model<f64>, Model<f64>, &mut Whole<f64, O>) + Sync,
) -> Vec<f64> {
    let distance_of = |ranks| {
        let model = together(ranks, |comm| {
            let (mut model, mut whole) = (initial(), Whole::new(optimizer));
            for step in 0..STEPS {
                let gradient = gradient(&model, comm.rank(), step);
                update(comm, &mut model, gradient, &mut whole);
            }
            // NaN equals nothing, not even on another rank.
            model.map(|tensor| {
                tensor.into_iter().map(|value: f64| if value.is_finite() { value } else { 1e99 }).collect()
            })
        });
        distance(&model, &alone(ranks, optimizer))
    };
    WORLDS.map(distance_of).to_vec()
}

#[test]
fn the_comparison_detects_sums_instead_of_means_with_sgd() {
    let distances = mutant(SGD, |comm, model, mut gradient, whole| {
        gradient.iter_mut().for_each(|tensor| comm.all_reduce(tensor, ReduceOp::Sum).unwrap());
        whole.update(model, slices(&gradient));
    });
    assert!(distances.iter().all(|distance| *distance > 1e-2), "{distances:?}");
}

#[test]
fn the_comparison_detects_averaged_weights_with_adam_w() {
    let distances = mutant(ADAM_W, |comm, model, gradient, whole| {
        whole.update(model, slices(&gradient));
        model.iter_mut().for_each(|tensor| comm.all_reduce(tensor, ReduceOp::Avg).unwrap());
    });
    assert!(distances.iter().all(|distance| *distance > 1e-2), "{distances:?}");
}
