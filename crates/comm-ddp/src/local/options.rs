//! Options of local training.

use crate::{BlockCodec, Error, Result, Sgd};

/// Options of [`LocalTraining`](crate::LocalTraining), the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LocalOptions {
    /// The number of inner steps between two outer steps of a parameter, `H` in the papers.
    pub sync_every: usize,
    /// The number of fragments into which the parameters are divided, at most one per parameter and
    /// one per step of `sync_every`. They are sent in turn, so a fragment has `1 / fragments` of
    /// the bytes.
    pub fragments: usize,
    /// The number of inner steps that run between the launch of a fragment and its outer step, less
    /// than `sync_every`. With 0 the call waits for the other ranks. Streaming DiLoCo calls it
    /// `tau`.
    pub delay: usize,
    /// The weight of a rank's own parameters when a fragment is applied, from 0 to 1. With 0 a rank
    /// continues from the global parameters, and discards the inner steps that ran during the
    /// delay. Streaming DiLoCo uses 0.5 with a delay.
    pub alpha: f64,
    /// The encoding of outer gradients, or `None` to send them unencoded. With [`BlockCodec::Int4`]
    /// a rank adds the rounding errors of an outer gradient to its next one (error feedback).
    /// Gradients of type `f64` are converted to `f32` first.
    pub codec: Option<BlockCodec>,
    /// The outer optimizer.
    pub outer: Sgd,
}

impl LocalOptions {
    /// The outer optimizer of DiLoCo: Nesterov's momentum.
    pub const OUTER: Sgd = Sgd::new(0.7).momentum(0.9).nesterov(true);

    /// Creates options with one fragment, no delay, no codec, and the outer optimizer of DiLoCo.
    #[must_use]
    pub const fn new(sync_every: usize) -> Self {
        Self { sync_every, fragments: 1, delay: 0, alpha: 0.0, codec: None, outer: Self::OUTER }
    }

    comm_core::setters!(
        fragments: usize,
        delay: usize,
        alpha: f64,
        codec: Option<BlockCodec>,
        outer: Sgd
    );

    /// Returns everything that ranks must have in common.
    pub(super) fn settings(&self) -> [Setting; SETTINGS] {
        let Self { sync_every, fragments, delay, alpha, codec, outer } = *self;
        [
            Setting::count("sync_every", sync_every),
            Setting::count("fragments", fragments),
            Setting::count("delay", delay),
            Setting::number("alpha", alpha),
            Setting::codec("codec", codec),
            Setting::number("outer.learning_rate", outer.learning_rate),
            Setting::number("outer.momentum", outer.momentum),
            Setting::number("outer.dampening", outer.dampening),
            Setting::number("outer.weight_decay", outer.weight_decay),
            Setting::count("outer.nesterov", usize::from(outer.nesterov)),
        ]
    }

    /// Returns an error if a setting is out of range for this number of parameters.
    pub(super) fn check(&self, parameters: usize) -> Result<()> {
        let Self { sync_every, fragments, delay, alpha, outer, .. } = *self;
        let most = parameters.max(1);
        let requirements = [
            ("sync_every", sync_every > 0, "at least 1"),
            ("fragments", (1..=most).contains(&fragments), "between 1 and the number of parameters"),
            ("fragments", fragments <= sync_every, "at most `sync_every`"),
            ("delay", delay < sync_every, "less than `sync_every`"),
            ("alpha", (0.0..=1.0).contains(&alpha), "between 0 and 1"),
            ("outer.learning_rate", outer.learning_rate.is_finite(), "finite"),
        ];
        match requirements.into_iter().find(|(_, is_met, _)| !is_met) {
            None => Ok(()),
            Some((name, _, requirement)) => Err(Error::Setting { name, requirement }),
        }
    }
}

/// The number of settings.
pub(super) const SETTINGS: usize = 10;

/// A setting that ranks compare.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) word: u64,
    /// Returns the text of a word.
    pub(super) text: fn(u64) -> String,
}

impl Setting {
    const fn count(name: &'static str, count: usize) -> Self {
        Self { name, word: count as u64, text: |word| word.to_string() }
    }

    fn codec(name: &'static str, codec: Option<BlockCodec>) -> Self {
        let word = match codec {
            None => 0,
            Some(BlockCodec::Int8) => 1,
            Some(BlockCodec::Int4) => 2,
        };
        let text = |word| match word {
            0 => "none".to_owned(),
            1 => BlockCodec::Int8.name().to_owned(),
            _ => BlockCodec::Int4.name().to_owned(),
        };
        Self { name, word, text }
    }

    const fn number(name: &'static str, number: f64) -> Self {
        Self { name, word: number.to_bits(), text: |word| f64::from_bits(word).to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(options: LocalOptions, setting: &str) {
        let refused = options.check(4);
        assert!(matches!(refused, Err(Error::Setting { name, .. }) if name == setting), "{refused:?}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let options = LocalOptions::new(10);
        assert!(options.fragments(4).delay(9).alpha(1.0).check(4).is_ok());
        assert!(options.check(0).is_ok());
        refused(LocalOptions::new(0), "sync_every");
        refused(options.fragments(0), "fragments");
        refused(options.fragments(5), "fragments");
        refused(LocalOptions::new(3).fragments(4), "fragments");
        refused(options.delay(10), "delay");
        refused(options.alpha(1.5), "alpha");
        refused(options.alpha(f64::NAN), "alpha");
        refused(options.outer(Sgd::new(f64::INFINITY)), "outer.learning_rate");
    }
}
