//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use comm::ddp::{BlockCodec, LocalOptions};

use digits::optimizer::Rule;
use digits::train::{Settings, StateLayout};

/// Recognises handwritten digits with a small network that several processes train together
///
/// Without a launcher it starts its own ranks. Under a launcher, such as `commctl run`, it is one
/// of the launcher's ranks.
///
/// The columns `comm` show the time of collectives on rank 0, and its share of the training time;
/// `wait` is the share in which rank 0 waited for them. The rest overlapped with backward.
/// Exits with 1 if the replicas differ in any bit at the end.
#[derive(Debug, Parser)]
#[command(name = "digits", version)]
pub(crate) struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(short = 'n', long, default_value = "4")]
    pub(crate) ranks: NonZeroUsize,

    /// Passes over the training images
    #[arg(long, default_value = "20")]
    pub(crate) epochs: NonZeroUsize,

    /// Images per rank and step
    #[arg(long, default_value = "16")]
    pub(crate) batch_size: NonZeroUsize,

    /// Learning rate [default: 0.05 for sgd, 0.002 for adamw]
    #[arg(long, value_parser = positive)]
    pub(crate) lr: Option<f64>,

    /// Element type
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: Number,

    /// Update rule
    #[arg(long, value_enum, default_value = "sgd")]
    pub(crate) optimizer: OptimizerName,

    /// Seed of initial weights and of the order of images
    #[arg(long, default_value = "0")]
    pub(crate) seed: u64,

    /// Train locally (DiLoCo): synchronize weights once in this many steps instead of averaging
    /// gradients in each. Trains with averaged gradients first, for comparison
    #[arg(long, value_name = "STEPS", conflicts_with = "trace")]
    pub(crate) diloco: Option<NonZeroUsize>,

    /// Number of fragments that are synchronized one after the other, with --diloco
    #[arg(long, default_value = "1", requires = "diloco")]
    pub(crate) fragments: NonZeroUsize,

    /// Steps that run while a fragment is sent, with --diloco. If not 0, the result is averaged
    /// with the rank's own weights
    #[arg(long, value_name = "STEPS", default_value = "0", requires = "diloco")]
    pub(crate) delay: usize,

    /// Encoding of the data that is sent, with --diloco: int8 or int4 [default: plain floats]
    #[arg(long, requires = "diloco")]
    pub(crate) codec: Option<BlockCodec>,

    /// Continue with the other ranks after one has failed
    #[arg(long, conflicts_with_all = ["diloco", "trace"])]
    pub(crate) elastic: bool,

    /// Divide the state of the optimizer among the ranks (ZeRO). With --elastic, each rank also
    /// keeps a copy of the part of another
    #[arg(long, conflicts_with = "diloco")]
    pub(crate) zero: bool,

    /// File for a plot of the loss
    #[arg(long, value_name = "FILE", default_value = "out/digits-loss.svg")]
    pub(crate) svg: PathBuf,

    /// File for a trace of the buckets, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// Hide the progress bar, which is shown only on a terminal
    #[arg(long)]
    pub(crate) no_progress: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Number {
    /// 32 bits
    F32,
    /// 64 bits
    F64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OptimizerName {
    /// Gradient descent with momentum 0.9
    Sgd,
    /// Adam with decoupled weight decay
    #[value(name = "adamw")]
    AdamW,
}

impl Args {
    /// Returns the options of local training, if `--diloco` is given.
    pub(crate) fn local(&self) -> Option<LocalOptions> {
        let options = LocalOptions::new(self.diloco?.get()).fragments(self.fragments.get());
        Some(options.codec(self.codec).delay(self.delay).alpha(if self.delay > 0 { 0.5 } else { 0.0 }))
    }

    /// Returns the settings of training with averaged gradients.
    pub(crate) fn settings(&self) -> Settings {
        let (rule, learning_rate) = match self.optimizer {
            OptimizerName::Sgd => (Rule::SGD, 0.05),
            OptimizerName::AdamW => (Rule::ADAM_W, 0.002),
        };
        Settings {
            batch_size: self.batch_size.get(),
            learning_rate: self.lr.unwrap_or(learning_rate),
            rule,
            seed: self.seed,
            local: None,
            state: match (self.zero, self.elastic) {
                (false, _) => StateLayout::Replicated,
                (true, false) => StateLayout::Sharded,
                (true, true) => StateLayout::ShardedWithCopies,
            },
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        Ok(_) => Err("not a positive number".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn each_rule_has_its_own_learning_rate() {
        let settings = |line: &[&str]| Args::try_parse_from(line).unwrap().settings();
        assert_eq!(settings(&["digits"]).learning_rate, 0.05);
        assert_eq!(settings(&["digits", "--optimizer", "adamw"]).learning_rate, 0.002);
        assert_eq!(settings(&["digits", "--lr", "0.5"]).learning_rate, 0.5);
    }

    #[test]
    fn local_training_is_off_unless_asked_for() {
        let local = |line: &[&str]| Args::try_parse_from(line).map(|args| args.local());
        assert_eq!(local(&["digits"]).unwrap(), None);
        assert_eq!(local(&["digits", "--diloco", "30"]).unwrap(), Some(LocalOptions::new(30)));
        let line = ["digits", "--diloco", "30", "--fragments", "3", "--delay", "2", "--codec", "int4"];
        let expected = LocalOptions::new(30).fragments(3).delay(2).alpha(0.5).codec(Some(BlockCodec::Int4));
        assert_eq!(local(&line).unwrap(), Some(expected));
        assert!(local(&["digits", "--codec", "int4"]).is_err());
        assert!(local(&["digits", "--diloco", "30", "--trace", "t.json"]).is_err());
    }

    #[test]
    fn sharded_state_is_copied_if_ranks_may_fail() {
        let state = |line: &[&str]| Args::try_parse_from(line).unwrap().settings().state;
        assert_eq!(state(&["digits"]), StateLayout::Replicated);
        assert_eq!(state(&["digits", "--elastic"]), StateLayout::Replicated);
        assert_eq!(state(&["digits", "--zero"]), StateLayout::Sharded);
        assert_eq!(state(&["digits", "--zero", "--elastic"]), StateLayout::ShardedWithCopies);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [["--lr", "0"], ["--lr", "nan"], ["-n", "0"], ["--epochs", "0"], ["--batch-size", "0"]] {
            assert!(Args::try_parse_from(["digits"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }
}
