//! Local training continues from a checkpoint with the same bits.
#![allow(clippy::unwrap_used)]

use comm::Comm;
use comm::ddp::{BlockCodec, LocalOptions, LocalProgress, LocalTraining, Parameter, ParameterSet};
use comm_checkpoint::{Checkpoint, Checkpoints, Options, State};

const RANKS: usize = 3;
/// The elements of each of two parameters. The last block of the codec is not full.
const LENS: [usize; 2] = [70, 90];
const ELEMENTS: usize = LENS[0] + LENS[1];
const STEPS: u64 = 17;

struct Replica {
    rank: usize,
    values: [Vec<f32>; 2],
    training: LocalTraining<f32>,
}

impl Replica {
    fn new(comm: &Comm, options: LocalOptions) -> Self {
        let named = |at: usize| Parameter::new::<f32>(format!("p{at}"), [LENS[at]]);
        let parameters = ParameterSet::new([0, 1].map(named)).unwrap();
        let mut values = LENS.map(|len| vec![1.0; len]);
        let slices = values.iter_mut().map(|values| &mut values[..]);
        let training = LocalTraining::new(comm, parameters, options, slices).unwrap();
        Self { rank: comm.rank(), values, training }
    }

    fn train(&mut self, until: u64) {
        while self.training.progress().inner_steps < until {
            let step = self.training.progress().inner_steps as usize;
            for (at, value) in self.values.iter_mut().flatten().enumerate() {
                *value -= ((at * 31 + step * 7 + self.rank * 101) % 97) as f32 / 97.0 - 0.4;
            }
            self.training.step(self.values.iter_mut().map(|values| &mut values[..])).unwrap();
        }
    }

    fn save(&mut self, checkpoints: &mut Checkpoints) {
        let (progress, residual) = (self.training.progress(), self.training.residual().unwrap());
        assert!(residual.len() == ELEMENTS && residual.iter().any(|error| *error != 0.0));
        let own = self.values.concat();
        let parts: Vec<_> = self.training.state().unwrap().collect();
        let mut state = State::new();
        for part in &parts {
            let name = format!("{}.{}", part.state, part.parameter.name());
            state.tensor(name, part.parameter.shape(), &*part.values).unwrap();
        }
        // Each rank has its own.
        let (shape, start) = ([RANKS, ELEMENTS], self.rank * ELEMENTS);
        state.shard("residual", &shape, start, &residual).unwrap();
        state.shard("own", &shape, start, &own).unwrap();
        state.value("progress", &progress).unwrap();
        checkpoints.save(progress.inner_steps, &state).unwrap();
    }

    fn load(&mut self, found: &Checkpoint) {
        for part in self.training.state().unwrap() {
            found.read(&format!("{}.{}", part.state, part.parameter.name()), part.values).unwrap();
        }
        let mut read = vec![0.0; ELEMENTS];
        found.read_range("own", self.rank * ELEMENTS, &mut read).unwrap();
        let (first, second) = read.split_at(LENS[0]);
        self.values = [first.to_vec(), second.to_vec()];
        found.read_range("residual", self.rank * ELEMENTS, &mut read).unwrap();
        self.training.set_residual(&read).unwrap();
        self.training.set_progress(&found.value::<LocalProgress>("progress").unwrap()).unwrap();
    }
}

#[test]
fn a_resumed_run_with_a_codec_is_bit_identical_to_an_uninterrupted_one() {
    let options = LocalOptions::new(4).fragments(2).delay(1).alpha(0.5).codec(Some(BlockCodec::Int4));
    let whole = comm::threads::run(RANKS, |comm| {
        let mut replica = Replica::new(&comm, options);
        replica.train(STEPS);
        replica.values
    });
    // After 8 steps a fragment is in flight.
    for interrupted in [8, 11] {
        let folder = tempfile::tempdir().unwrap();
        comm::threads::run(RANKS, |comm| {
            let mut replica = Replica::new(&comm, options);
            replica.train(interrupted);
            replica.save(&mut Checkpoints::open(&comm, folder.path(), Options::default()).unwrap());
        })
        .unwrap();
        let resumed = comm::threads::run(RANKS, |comm| {
            let mut replica = Replica::new(&comm, options);
            let mut checkpoints = Checkpoints::open(&comm, folder.path(), Options::default()).unwrap();
            replica.load(&checkpoints.load_latest().unwrap().unwrap());
            replica.train(STEPS);
            replica.values
        });
        assert_eq!(resumed.unwrap(), *whole.as_ref().unwrap(), "interrupted after {interrupted} steps");
    }
}
