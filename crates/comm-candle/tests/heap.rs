//! Training with tensors in the heap that other ranks read in place, in a process that forks.

#![allow(unsafe_code, clippy::unwrap_used, reason = "a fork; a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
use comm::shm::{RendezvousConfig, SharedMemoryFabric};
use comm::tcp::FileStore;
use comm::{Comm, Heap, RingCommunicator, RingConfig};
use comm_candle::DataParallel;
use comm_core::Membership;

#[global_allocator]
static HEAP: Heap = Heap::new();

/// The time after which an operation counts as hanging.
const SOON: Duration = Duration::from_secs(60);
const STEPS: usize = 8;
const BATCH: usize = 6;
const INPUTS: usize = 64;
/// A weight, its gradient and the states of the optimizer are large blocks.
const HIDDEN: usize = 3 * Heap::LARGE_BYTES_MIN / (4 * INPUTS) / 2;
const CLASSES: usize = 5;

struct Model {
    variables: VarMap,
    hidden: Linear,
    output: Linear,
}

impl Model {
    /// All ranks have the same weights, in every run.
    fn new() -> Result<Self> {
        let variables = VarMap::new();
        let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        let hidden = linear(INPUTS, HIDDEN, builder.pp("hidden"))?;
        let output = linear(HIDDEN, CLASSES, builder.pp("output"))?;
        for (name, var) in variables.data().lock().unwrap().iter() {
            let seed = name.len();
            var.set(&waves(seed, var.dims())?)?;
        }
        Ok(Self { variables, hidden, output })
    }

    fn backward(&self, step: usize, rank: usize) -> Result<GradStore> {
        let inputs = waves(step * 31 + rank * 7, &[BATCH, INPUTS])?;
        let labels: Vec<u32> = (0..BATCH).map(|at| ((step + rank + at) % CLASSES) as u32).collect();
        let labels = Tensor::new(labels, &Device::Cpu)?;
        let logits = self.output.forward(&self.hidden.forward(&inputs)?.tanh()?)?;
        loss::cross_entropy(&logits, &labels)?.backward()
    }

    fn weights(&self) -> Result<Vec<u32>> {
        let mut weights = Vec::new();
        for linear in [&self.hidden, &self.output] {
            let elements: Vec<f32> = linear.weight().flatten_all()?.to_vec1()?;
            weights.extend(elements.into_iter().map(f32::to_bits));
        }
        Ok(weights)
    }
}

fn waves(seed: usize, shape: &[usize]) -> Result<Tensor> {
    let value = |at: usize| ((seed + at * 7919) as f32 * 0.37).sin() / 8.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Trains a replica, and returns the bits of its weights.
fn train(comm: &Comm) -> comm_candle::Result<Vec<u32>> {
    let model = Model::new()?;
    let mut replicas = DataParallel::new(&model.variables, comm)?;
    let mut optimizer = AdamW::new(model.variables.all_vars(), ParamsAdamW::default())?;
    for step in 0..STEPS {
        let mut gradients = model.backward(step, comm.rank())?;
        replicas.sync_gradients(&mut gradients)?;
        optimizer.step(&gradients)?;
    }
    Ok(model.weights()?)
}

/// Runs ranks as threads, over shared memory.
fn over_shared_memory<R: Send>(ranks: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let run = |rank| {
        let mut config = RendezvousConfig::new(Membership { rank, size: ranks });
        config.member.timeout = SOON;
        let fabric = SharedMemoryFabric::rendezvous(&store, &config).unwrap();
        let communicator = RingCommunicator::new(fabric, RingConfig::default(), SOON).unwrap();
        rank_main(Comm::new(communicator).with_timeout(SOON))
    };
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Forks a child that overwrites its copy of the buffer, and allocates large blocks. Returns
/// whether it found the bytes of the parent and kept its own.
fn child_has_its_own_bytes(buffer: &mut [u8]) -> bool {
    let work_in_child = |buffer: &mut [u8]| {
        let is_copied = buffer.iter().all(|byte| *byte == 1);
        buffer.fill(2);
        let block = vec![3_u8; 2 * Heap::LARGE_BYTES_MIN];
        is_copied && buffer.iter().all(|byte| *byte == 2) && block.iter().all(|byte| *byte == 3)
    };
    // SAFETY: the child uses only memory, whose allocators release their locks in it.
    match unsafe { libc::fork() } {
        // SAFETY: exits immediately, without handlers.
        0 => unsafe { libc::_exit(i32::from(!work_in_child(buffer))) },
        child => {
            let mut status = -1;
            // SAFETY: the status is a variable of this function.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            status == 0
        }
    }
}

/// Trains while a thread forks again and again. Returns the weights and the number of forks.
fn train_while_forking(ranks: usize) -> (Vec<Vec<u32>>, usize) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let forks = scope.spawn(|| {
            let (mut buffer, mut forks) = (vec![1; 2 * Heap::LARGE_BYTES_MIN], 0);
            while !is_done.load(Ordering::Relaxed) {
                assert!(child_has_its_own_bytes(&mut buffer), "in fork {forks}");
                assert!(buffer.iter().all(|byte| *byte == 1), "fork {forks} has written here");
                forks += 1;
            }
            forks
        });
        let weights = over_shared_memory(ranks, |comm| train(&comm).unwrap());
        is_done.store(true, Ordering::Relaxed);
        (weights, forks.join().unwrap())
    })
}

#[test]
fn training_over_shared_memory_has_the_same_bits_while_the_process_forks() {
    for ranks in [2, 3] {
        let before = over_shared_memory(ranks, |comm| train(&comm).unwrap());
        assert!(before.iter().all(|weights| *weights == before[0]), "replicas differ");
        // The sum of two gradients has the same bits in any order.
        if ranks == 2 {
            let elsewhere = comm::threads::run(ranks, |comm| train(&comm).unwrap()).unwrap();
            assert!(before == elsewhere, "the weights differ from those without shared memory");
        }
        assert!(Heap::usage().segments > 0, "no tensor was in the heap");
        let (weights, forks) = train_while_forking(ranks);
        assert!(weights == before, "{ranks} ranks: the weights differ after {forks} forks");
        assert!(forks > 0);
    }
}
