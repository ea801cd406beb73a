//! The command line.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::Parser;

use comm::ddp::{BlockCodec, LocalOptions};
use gpt::settings::Settings;

/// Trains a byte-level GPT on the King James Bible, with several processes together
///
/// Without a launcher it starts its own ranks. Under a launcher, such as `commctl run`, it is one
/// of its ranks. Losses are in bits per byte. Exits with 1 if a parameter has no gradient in the
/// first step, or if the replicas differ in any bit at the end.
#[derive(Debug, Parser)]
#[command(name = "gpt", version)]
pub(crate) struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(short = 'n', long, default_value = "4")]
    pub(crate) ranks: NonZeroUsize,

    /// Start all ranks again after one has failed, at most N times
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) max_restarts: usize,

    /// Steps of training [default: 600, or 60 with --tiny]
    #[arg(long)]
    pub(crate) steps: Option<NonZeroU64>,

    /// Windows of all ranks together in a step [default: 64, or 12 with --tiny]
    #[arg(long)]
    pub(crate) batch: Option<NonZeroUsize>,

    /// Highest learning rate
    #[arg(long, value_parser = positive)]
    pub(crate) lr: Option<f64>,

    /// Seed of initial parameters and of the order of windows
    #[arg(long, default_value = "0")]
    pub(crate) seed: u64,

    /// Train each rank alone, and make an outer step of all ranks every H steps (DiLoCo)
    #[arg(long, value_name = "H")]
    pub(crate) diloco: Option<NonZeroUsize>,

    /// Parts of the parameters that make their outer steps in turn
    #[arg(long, value_name = "F", default_value = "1", requires = "diloco")]
    pub(crate) fragments: NonZeroUsize,

    /// Steps that run while a part is sent. If there are any, its result is averaged with the
    /// rank's own parameters
    #[arg(long, value_name = "STEPS", default_value = "0", requires = "diloco")]
    pub(crate) delay: usize,

    /// Encoding of the values that are sent, int8 or int4 [default: floats as they are]
    #[arg(long, value_name = "CODEC", requires = "diloco")]
    pub(crate) codec: Option<BlockCodec>,

    /// Learning rate of the outer optimizer
    #[arg(long, value_name = "RATE", value_parser = positive, default_value = "0.7", requires = "diloco")]
    pub(crate) outer_lr: f64,

    /// Nesterov momentum of the outer optimizer
    #[arg(long, value_name = "FACTOR", default_value = "0.9", requires = "diloco")]
    pub(crate) outer_momentum: f64,

    /// Train a tiny model on a little text, for tests
    #[arg(long)]
    pub(crate) tiny: bool,

    /// Steps between validations on a sample
    #[arg(long, value_name = "STEPS", default_value = "100")]
    pub(crate) validate_every: NonZeroU64,

    /// Folder for checkpoints. If it has one, training continues from there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) checkpoints: Option<PathBuf>,

    /// Steps between checkpoints
    #[arg(long, value_name = "STEPS", default_value = "100")]
    pub(crate) checkpoint_every: NonZeroU64,

    /// File for the losses; their plot is next to it, with the extension svg
    #[arg(long, value_name = "FILE", default_value = "out/gpt.json")]
    pub(crate) out: PathBuf,
}

impl Args {
    pub(crate) fn settings(&self) -> Settings {
        let base = if self.tiny { Settings::TINY } else { Settings::DEFAULT };
        Settings {
            steps: self.steps.map_or(base.steps, NonZeroU64::get),
            batch: self.batch.map_or(base.batch, NonZeroUsize::get),
            learning_rate: self.lr.unwrap_or(base.learning_rate),
            seed: self.seed,
            local: self.diloco.map(|steps| self.local(steps.get())),
            ..base
        }
    }

    fn local(&self, sync_every: usize) -> LocalOptions {
        let outer = LocalOptions::OUTER.learning_rate(self.outer_lr).momentum(self.outer_momentum);
        LocalOptions::new(sync_every)
            .fragments(self.fragments.get())
            .delay(self.delay)
            .alpha(if self.delay > 0 { 0.5 } else { 0.0 })
            .codec(self.codec)
            .outer(outer)
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

    fn settings(line: &[&str]) -> Settings {
        Args::try_parse_from([&["gpt"], line].concat()).unwrap().settings()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_the_help() {
        assert_eq!((settings(&[]), settings(&["--tiny"])), (Settings::DEFAULT, Settings::TINY));
        assert_eq!((Settings::DEFAULT.steps, Settings::TINY.steps), (600, 60));
        assert_eq!((Settings::DEFAULT.batch, Settings::TINY.batch), (64, 12));
    }

    #[test]
    fn options_replace_defaults() {
        let found = settings(&["--tiny", "--steps", "7", "--batch", "4", "--lr", "0.5", "--seed", "9"]);
        let expected = Settings { steps: 7, batch: 4, learning_rate: 0.5, seed: 9, ..Settings::TINY };
        assert_eq!(found, expected);
        let options = LocalOptions::new(30).fragments(3);
        assert_eq!(settings(&["--diloco", "30", "--fragments", "3"]).local, Some(options));
        let line = "--diloco 30 --delay 2 --codec int4 --outer-lr 1 --outer-momentum 0.5";
        let options = LocalOptions::new(30).delay(2).alpha(0.5).codec(Some(BlockCodec::Int4));
        let options = options.outer(LocalOptions::OUTER.learning_rate(1.0).momentum(0.5));
        assert_eq!(settings(&line.split(' ').collect::<Vec<_>>()).local, Some(options));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            ["--lr", "0"],
            ["--lr", "nan"],
            ["-n", "0"],
            ["--steps", "0"],
            ["--batch", "0"],
            ["--fragments", "2"],
            ["--codec", "int4"],
        ] {
            assert!(Args::try_parse_from(["gpt"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }
}
