//! Models and optimizers that are saved by some ranks and restored by others.

use std::fs;
use std::path::Path;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use comm_candle::{Error, ReplicatedOptimizer, Result, ZeroOptimizer, checkpoint};
use comm_checkpoint::{Checkpoint, Checkpoints, Options, State};
use comm_core::Comm;
use comm_ddp::AdamW;

use crate::ranks::{elements, map, numbers, on_ranks, store, var};

fn model(rank: usize) -> VarMap {
    let shapes: [(&str, &[usize]); 4] = [("w", &[5, 7]), ("b", &[]), ("none", &[0, 3]), ("table", &[40])];
    let tensors = shapes.map(|(name, shape)| (name, numbers(3, shape, DType::F32)));
    map(rank, &[&tensors[..], &[("ids", numbers(7, &[2], DType::I64))]].concat())
}

/// Gradients that are equal on all ranks, so that averages are the same in every world.
fn gradients(variables: &VarMap, step: u64) -> GradStore {
    let shapes: [(&str, &[usize]); 4] = [("w", &[5, 7]), ("b", &[]), ("none", &[0, 3]), ("table", &[40])];
    let gradient = |(name, shape)| (name, numbers(step as usize, shape, DType::F32));
    store(variables, &shapes.map(gradient))
}

fn values(variables: &VarMap) -> Vec<Vec<f64>> {
    ["w", "b", "none", "table", "ids"].map(|name| elements(&var(variables, name))).to_vec()
}

/// Either optimizer.
enum Trainer {
    Whole(ReplicatedOptimizer<AdamW>),
    Sharded(Box<ZeroOptimizer<AdamW>>),
}

impl Trainer {
    fn new(variables: &VarMap, comm: &Comm, is_sharded: bool) -> Result<Self> {
        Ok(if is_sharded {
            Self::Sharded(Box::new(ZeroOptimizer::new(variables, comm, |_| AdamW::new(0.1))?))
        } else {
            Self::Whole(ReplicatedOptimizer::new(variables, |_| AdamW::new(0.1))?)
        })
    }

    fn step(&mut self, gradients: &GradStore) -> Result<()> {
        match self {
            Self::Whole(optimizer) => optimizer.step(gradients),
            Self::Sharded(optimizer) => optimizer.step(gradients).map(drop),
        }
    }

    fn save_to<'a>(&'a mut self, state: &mut State<'a>) -> Result<()> {
        match self {
            Self::Whole(optimizer) => optimizer.save_to(state),
            Self::Sharded(optimizer) => optimizer.save_to(state),
        }
    }

    fn load_from(&mut self, found: &Checkpoint) -> Result<u64> {
        match self {
            Self::Whole(optimizer) => optimizer.load_from(found).map(|()| optimizer.steps()),
            Self::Sharded(optimizer) => optimizer.load_from(found).map(|()| optimizer.steps()),
        }
    }
}

/// Trains from the newest checkpoint, if there is one, until a step, and saves.
fn train(comm: &Comm, folder: &Path, is_sharded: bool, until: u64) -> Result<Vec<Vec<f64>>> {
    let variables = model(comm.rank());
    let mut trainer = Trainer::new(&variables, comm, is_sharded)?;
    let mut checkpoints = Checkpoints::open(comm, folder, Options::default())?;
    let mut seen = Vec::new();
    if let Some(found) = checkpoints.load_latest()? {
        checkpoint::load(&found, &variables)?;
        assert_eq!(trainer.load_from(&found)?, found.step());
        seen = found.value("seen")?;
        assert_eq!(seen.last(), Some(&found.step()));
    }
    for step in seen.len() as u64 + 1..=until {
        trainer.step(&gradients(&variables, step))?;
        seen.push(step);
    }
    let mut state = State::new();
    state.value("seen", &seen)?;
    trainer.save_to(&mut state)?;
    checkpoint::save(&mut checkpoints, until, &variables, state)?;
    Ok(values(&variables))
}

fn on(size: usize, folder: &Path, is_sharded: bool, until: u64) -> Vec<Vec<f64>> {
    let results = on_ranks(size, |comm| train(&comm, folder, is_sharded, until).unwrap());
    assert!(results.iter().all(|result| *result == results[0]));
    results[0].clone()
}

#[test]
fn training_continues_with_the_same_bits_on_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let uninterrupted = on(1, folder.path(), false, 6);
    for [first, second] in [[false; 2], [false, true], [true, false], [true; 2]] {
        for [savers, ranks] in [[2, 3], [3, 2], [1, 8], [5, 1]] {
            let folder = tempfile::tempdir().unwrap();
            on(savers, folder.path(), first, 3);
            let resumed = on(ranks, folder.path(), second, 6);
            assert_eq!(resumed, uninterrupted, "{first} on {savers}, then {second} on {ranks}");
        }
    }
}

#[test]
fn the_files_are_read_by_candle() {
    let folder = tempfile::tempdir().unwrap();
    let saved = on(2, folder.path(), true, 2);
    let files = fs::read_dir(folder.path().join("step-000000000002")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let shards = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let mut tensors = std::collections::HashMap::new();
    shards.for_each(|path| tensors.extend(candle_core::safetensors::load(path, &Device::Cpu).unwrap()));
    for (name, value) in ["w", "b", "none", "table", "ids"].iter().zip(&saved) {
        assert_eq!(elements(&tensors[*name]), *value, "{name}");
        assert_eq!(tensors[*name].dims(), var(&model(0), name).dims());
    }
    assert!(tensors.contains_key("optimizer.mean.w") && tensors.contains_key("optimizer.square.table"));
}

#[test]
fn a_save_in_the_background_is_unaffected_by_later_steps() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |comm| {
        let variables = model(comm.rank());
        let mut optimizer = ZeroOptimizer::new(&variables, &comm, |_| AdamW::new(0.1)).unwrap();
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let mut expected = Vec::new();
        for step in 1..=3 {
            let mut state = State::new();
            optimizer.save_to(&mut state).unwrap();
            checkpoint::save_async(&mut checkpoints, step, &variables, state).unwrap();
            expected.push(values(&variables));
            optimizer.step(&gradients(&variables, step)).unwrap();
        }
        checkpoints.wait().unwrap();
        for step in 1..=3 {
            let found = checkpoints.load(step).unwrap();
            checkpoint::load(&found, &variables).unwrap();
            optimizer.load_from(&found).unwrap();
            assert_eq!((&values(&variables), optimizer.steps()), (&expected[step as usize - 1], step - 1));
        }
    });
}

#[test]
fn a_model_that_does_not_match_the_checkpoint_is_refused_before_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    on(2, folder.path(), true, 1);
    on_ranks(1, |comm| {
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let found = checkpoints.load(1).unwrap();
        let refused = |name: &str, value: Tensor| {
            let tensors = [("b", numbers(9, &[], DType::F32)), (name, value)];
            let variables = map(0, &tensors);
            let refused = checkpoint::load(&found, &variables).unwrap_err();
            assert_eq!(elements(&var(&variables, "b")), [9.0]);
            assert_eq!(elements(&var(&variables, name)), elements(&tensors[1].1));
            refused
        };
        match refused("w", numbers(0, &[7, 5], DType::F32)) {
            Error::Stored { name, expected, got } => {
                assert_eq!((name.as_str(), expected, got), ("w", vec![7, 5], vec![5, 7]));
            }
            other => panic!("{other}"),
        }
        let wrong = refused("w", numbers(0, &[5, 7], DType::F64));
        assert!(matches!(wrong, Error::Checkpoint(comm_checkpoint::Error::WrongType { .. })), "{wrong}");
        let missing = refused("other", numbers(0, &[1], DType::F32));
        assert!(matches!(missing, Error::Checkpoint(comm_checkpoint::Error::Missing { .. })), "{missing}");
        // State of other shapes.
        let variables = map(0, &[("w", numbers(0, &[7, 5], DType::F32))]);
        let mut optimizer = ZeroOptimizer::new(&variables, &comm, |_| AdamW::new(0.1)).unwrap();
        let stored = optimizer.load_from(&found).unwrap_err();
        assert!(matches!(stored, Error::Stored { name, .. } if name == "optimizer.mean.w"));
    });
}

#[test]
fn a_type_that_files_cannot_hold_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, |comm| {
        let variables = map(0, &[("w", Tensor::ones(3, DType::F8E4M3, &Device::Cpu).unwrap())]);
        let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
        let refused = checkpoint::save(&mut checkpoints, 1, &variables, State::new()).unwrap_err();
        assert!(matches!(refused, Error::Type { name, .. } if name == "w"));
    });
}
