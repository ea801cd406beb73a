//! Linear layers that are divided among ranks equal whole ones.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{Linear, Module, VarBuilder, VarMap};
use comm_candle::{
    ColumnParallelLinear, DataParallel, Error, RowParallelLinear, column_parallel_linear, row_parallel_linear,
};
use comm_core::Comm;

use crate::ranks::{elements, numbers, on_ranks, var};

const INPUTS: usize = 6;
const HIDDEN: usize = 8;
const OUTPUTS: usize = 3;
/// Divisors of the hidden features.
const WORLDS: [usize; 4] = [1, 2, 4, 8];

/// Small integers of both signs, so that sums are exact in any order.
fn integers(seed: usize, shape: &[usize], dtype: DType) -> Tensor {
    let values: Vec<f64> =
        (0..shape.iter().product()).map(|at| ((3 * seed + 7 * at + at / 3 * 5) % 7) as f64 - 3.0).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn variable(seed: usize, shape: &[usize], dtype: DType) -> Var {
    Var::from_tensor(&integers(seed, shape, dtype)).unwrap()
}

struct Whole {
    input: Var,
    up: Linear,
    down: Linear,
}

impl Whole {
    fn new(dtype: DType) -> Self {
        let linear = |seed, outputs: usize, inputs: usize| {
            let (weight, bias) =
                (variable(seed, &[outputs, inputs], dtype), variable(seed + 1, &[outputs], dtype));
            Linear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone()))
        };
        let input = variable(3, &[5, INPUTS], dtype);
        Self { input, up: linear(4, HIDDEN, INPUTS), down: linear(6, OUTPUTS, HIDDEN) }
    }

    fn tensors(&self) -> [Tensor; 5] {
        let tensor = |tensor: Option<&Tensor>| tensor.unwrap().clone();
        [
            self.input.as_tensor().clone(),
            self.up.weight().clone(),
            tensor(self.up.bias()),
            self.down.weight().clone(),
            tensor(self.down.bias()),
        ]
    }
}

/// A perceptron between two sums, and its gradients.
fn run(input: &Tensor, up: &impl Module, down: &impl Module) -> Result<(Tensor, GradStore)> {
    let output = down.forward(&up.forward(input)?.relu()?)?;
    let weights = integers(9, output.dims(), output.dtype());
    let gradients = (&output * weights)?.sum_all()?.backward()?;
    Ok((output, gradients))
}

#[test]
fn a_perceptron_and_all_its_gradients_match_a_single_process() {
    for (size, dtype) in WORLDS.into_iter().flat_map(|size| [(size, DType::F32), (size, DType::F64)]) {
        on_ranks(size, |comm| {
            let whole = Whole::new(dtype);
            let (expected, expected_gradients) = run(&whole.input, &whole.up, &whole.down).unwrap();
            let up = ColumnParallelLinear::part_of(&whole.up, &comm).unwrap();
            let down = RowParallelLinear::part_of(&whole.down, &comm).unwrap();
            assert_eq!(up.weight().dims(), [HIDDEN / size, INPUTS]);
            assert_eq!(up.bias().unwrap().dims(), [HIDDEN / size]);
            assert_eq!(
                (down.weight().dims(), down.bias().unwrap().dims()),
                (&[OUTPUTS, HIDDEN / size][..], &[OUTPUTS][..])
            );
            let (output, gradients) = run(&whole.input, &up, &down).unwrap();
            assert_eq!(elements(&output), elements(&expected));
            let part = HIDDEN / size;
            // The dimension of which a rank has a part, and whether it has the whole gradient.
            let divided = [None, Some(0), Some(0), Some(1), None];
            for (tensor, divided) in whole.tensors().iter().zip(divided) {
                let (found, expected) =
                    (gradients.get(tensor).unwrap(), expected_gradients.get(tensor).unwrap());
                assert!(elements(expected).iter().any(|element| *element != 0.0));
                let own = |gradient: &Tensor| match divided {
                    Some(dim) => elements(&gradient.narrow(dim, part * comm.rank(), part).unwrap()),
                    None => elements(gradient),
                };
                assert_eq!(own(found), own(expected), "{:?} on {size} ranks", tensor.dims());
            }
        });
    }
}

#[test]
fn batches_of_sequences_are_supported() {
    on_ranks(2, |comm| {
        let whole = Whole::new(DType::F32);
        let input = Var::from_tensor(&integers(1, &[2, 3, INPUTS], DType::F32)).unwrap();
        let (expected, expected_gradients) = run(&input, &whole.up, &whole.down).unwrap();
        let up = ColumnParallelLinear::part_of(&whole.up, &comm).unwrap();
        let down = RowParallelLinear::part_of(&whole.down, &comm).unwrap();
        let (output, gradients) = run(&input, &up, &down).unwrap();
        assert_eq!((output.dims(), elements(&output)), (&[2, 3, OUTPUTS][..], elements(&expected)));
        let [found, expected] =
            [&gradients, &expected_gradients].map(|all| elements(all.get(&input).unwrap()));
        assert_eq!(found, expected);
    });
}

fn built(comm: &Comm) -> comm_candle::Result<(VarMap, ColumnParallelLinear, RowParallelLinear)> {
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let up = column_parallel_linear(INPUTS, HIDDEN, &builder.pp("up"), comm)?;
    let down = row_parallel_linear(HIDDEN, OUTPUTS, &builder.pp("down"), comm)?;
    Ok((variables, up, down))
}

/// Two groups of two ranks each train the same model on other samples.
#[test]
fn groups_with_parallel_layers_are_trained_data_parallel() {
    on_ranks(4, |comm| {
        let group = comm.split(Some((comm.rank() / 2) as u64), 0).unwrap().unwrap();
        let replicas = comm.split(Some((comm.rank() % 2) as u64), 0).unwrap().unwrap();
        let (variables, up, down) = built(&group).unwrap();
        let names = ["up.weight", "up.bias", "down.weight", "down.bias"];
        let shapes: [&[usize]; 4] =
            [&[HIDDEN / 2, INPUTS], &[HIDDEN / 2], &[OUTPUTS, HIDDEN / 2], &[OUTPUTS]];
        for (at, (name, shape)) in names.iter().zip(shapes).enumerate() {
            assert_eq!(var(&variables, name).dims(), shape);
            let seed = if *name == "down.bias" { at } else { at + 10 * group.rank() };
            var(&variables, name).set(&integers(seed, shape, DType::F32)).unwrap();
        }
        let gradients_of =
            |sample: usize| run(&integers(sample, &[4, INPUTS], DType::F32), &up, &down).unwrap().1;
        let mut gradients = gradients_of(comm.rank() / 2);
        DataParallel::new(&variables, &replicas).unwrap().sync_gradients(&mut gradients).unwrap();
        let both = [gradients_of(0), gradients_of(1)];
        for name in names {
            let of = |store: &GradStore| elements(store.get(&var(&variables, name)).unwrap());
            let mean: Vec<f64> = of(&both[0]).iter().zip(of(&both[1])).map(|(a, b)| (a + b) / 2.0).collect();
            assert_eq!(of(&gradients), mean, "{name}");
        }
    });
}

#[test]
fn features_that_cannot_be_divided_are_refused() {
    on_ranks(3, |comm| {
        match built(&comm) {
            Err(Error::Indivisible { len: HIDDEN, ranks: 3, .. }) => {}
            other => panic!("{:?}", other.map(|_| ())),
        }
        let whole = Linear::new(numbers(0, &[4, 4], DType::F32), None);
        assert!(matches!(ColumnParallelLinear::part_of(&whole, &comm), Err(Error::Indivisible { .. })));
        assert!(matches!(RowParallelLinear::part_of(&whole, &comm), Err(Error::Indivisible { .. })));
    });
}
