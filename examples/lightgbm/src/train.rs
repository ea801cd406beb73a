//! Training on all ranks, over comm and over LightGBM's own sockets.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;

use comm::{Comm, ReduceOp};
use comm_lightgbm::{Network, NetworkError};

use crate::Args;
use crate::api::{ApiError, LightGbm};
use crate::data::{self, Rows};

/// The number of rows that no rank trains with.
const HELD_OUT: usize = 10_000;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    #[error(transparent)]
    Comm(#[from] comm::Error),
    #[error(transparent)]
    LightGbm(#[from] ApiError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot find a free port: {0}")]
    Port(std::io::Error),
    #[error("cannot print: {0}")]
    Print(std::io::Error),
    #[error("the trees of the ranks differ")]
    TreesDiffer,
    #[error("another training over comm has led to other trees")]
    NotRepeated,
    #[error("a prediction differs by {0} from that of the model trained over LightGBM's sockets")]
    PredictionsDiffer(f64),
}

/// A trained model, and the seconds that the slowest rank took.
pub(crate) struct Trained {
    pub(crate) trees: String,
    pub(crate) predictions: Vec<f64>,
    pub(crate) seconds: f64,
}

/// Trains with the rows of this rank.
pub(crate) struct Trainer<'a> {
    comm: &'a Comm,
    args: &'a Args,
    lightgbm: LightGbm,
    rows: Rows,
    held_out: Rows,
}

impl<'a> Trainer<'a> {
    pub(crate) fn new(comm: &'a Comm, args: &'a Args) -> Result<Self, Error> {
        let lightgbm = LightGbm::load(&args.library)?;
        let total = args.rows.get();
        let own = total * comm.rank() / comm.size()..total * (comm.rank() + 1) / comm.size();
        let rows = data::generate(own, args.features.get());
        let held_out = data::generate(total..total + HELD_OUT, args.features.get());
        Ok(Self { comm, args, lightgbm, rows, held_out })
    }

    /// Trains over comm. Calls `report` with the number of trees.
    pub(crate) fn over_comm(&self, report: impl Fn(usize) -> Result<(), Error>) -> Result<Trained, Error> {
        let _network = Network::new(self.lightgbm.network(), self.comm.clone())?;
        self.train(report)
    }

    /// Trains over LightGBM's own sockets, on this host.
    pub(crate) fn over_sockets(&self) -> Result<Trained, Error> {
        let own = free_port().map_err(Error::Port)?;
        let ports = self.comm.all_gather_scalar(own)?;
        let machines: Vec<_> =
            ports.into_iter().map(|port| (Ipv4Addr::LOCALHOST.to_string(), port)).collect();
        let _network = self.lightgbm.connect_sockets(&machines, self.comm.rank())?;
        self.train(|_| Ok(()))
    }

    fn train(&self, report: impl Fn(usize) -> Result<(), Error>) -> Result<Trained, Error> {
        let parameters = self.parameters();
        let dataset = self.lightgbm.dataset(&self.rows.features, &self.rows.labels, &parameters)?;
        let mut booster = dataset.booster(&parameters)?;
        self.comm.barrier()?;
        let began = Instant::now();
        for trees in 1..=self.args.trees.get() {
            booster.update()?;
            report(trees)?;
        }
        let seconds = self.comm.all_reduce_scalar(began.elapsed().as_secs_f64(), ReduceOp::Max)?;
        let predictions = booster.predict(&self.held_out.features, self.args.features.get())?;
        Ok(Trained { trees: booster.trees()?, predictions, seconds })
    }

    fn parameters(&self) -> String {
        let Args { learner, leaves, threads, .. } = self.args;
        let (ranks, learner) = (self.comm.size(), learner.name());
        format!(
            "objective=binary verbosity=-1 learning_rate=0.1 num_leaves={leaves} num_threads={threads} \
             num_machines={ranks} tree_learner={learner}"
        )
    }

    /// Returns the share of held-out rows whose label a model predicts.
    pub(crate) fn accuracy(&self, trained: &Trained) -> f64 {
        let pairs = trained.predictions.iter().zip(&self.held_out.labels);
        let right = pairs.filter(|&(&prediction, &label)| (prediction > 0.5) == (label > 0.5)).count();
        right as f64 / self.held_out.labels.len() as f64
    }
}

/// Returns an error if the trees of any rank differ from rank 0's.
pub(crate) fn check_replicas(comm: &Comm, trees: &str) -> Result<(), Error> {
    let longest = comm.all_reduce_scalar(trees.len(), ReduceOp::Max)?;
    let mut first = trees.as_bytes().to_vec();
    first.resize(longest, 0);
    comm.broadcast(0, &mut first)?;
    let is_equal = first == trees.as_bytes();
    let are_equal = comm.all_reduce_scalar(u8::from(is_equal), ReduceOp::Min)?;
    if are_equal == 1 { Ok(()) } else { Err(Error::TreesDiffer) }
}

/// Returns the largest difference of two predictions for the same row.
pub(crate) fn difference(one: &Trained, other: &Trained) -> f64 {
    let pairs = one.predictions.iter().zip(&other.predictions);
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
