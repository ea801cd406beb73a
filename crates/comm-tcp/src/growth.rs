//! Decides on the number of sockets of a stream, and when it gets more.
//!
//! A sender looks at its stream whenever it has sent another megabyte. If bytes were on their way
//! for most of the time, and the receiver had space for more, then the network limits the rate. The
//! sender tries twice as many sockets, and keeps them if the rate increases by a fifth. Otherwise
//! it returns to the former number, and tries again later.
//!
//! If several networks lead to the peer, the first attempt has two sockets in each. If that is not
//! faster, the next one has sockets in the first network alone, because a slow or faulty network
//! may hide what more sockets in another one gain. If that is faster, later attempts are made in
//! all networks again, because the first one may have failed only since the machine was busy.

use std::time::{Duration, Instant};

use crate::tcp_info::TcpInfo;

/// The most sockets of a stream that are added without being asked for.
pub(crate) const TUNED_MAX: usize = 32;
/// The number of bytes after which a sender looks at its stream.
pub(crate) const LOOK_BYTES: u64 = 1 << 20;
/// The time for which bytes are on their way before their rate is known.
const WINDOW: Duration = Duration::from_millis(100);
/// The time that new connections have to reach their rate, besides [`WARM_UP_ROUND_TRIPS`].
const WARM_UP: Duration = Duration::from_millis(50);
/// Slow start doubles the rate of a connection in each round trip.
const WARM_UP_ROUND_TRIPS: u32 = 12;
/// The time between two looks at the rates of sockets.
const RATES_WINDOW: Duration = Duration::from_millis(40);
/// The factor by which more sockets must increase the rate, as a fraction.
const IMPROVEMENT: (u128, u128) = (6, 5);
/// The time until more sockets are tried again, which doubles up to the maximum.
const RETRY_MIN: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(256);

/// The number of sockets that a stream may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Only the socket of the channel.
    One,
    /// This many from the start.
    Fixed(usize),
    /// The number that has the highest rate, as measured.
    Tuned,
}

/// The state of the sockets of a stream, summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The number of bytes that the peer has acknowledged.
    pub(crate) acked: u64,
    /// The time for which bytes were on their way.
    pub(crate) busy: Duration,
    /// The part of that time in which the receiver had no space for more.
    pub(crate) window_limited: Duration,
    /// The longest time of a round trip.
    pub(crate) round_trip: Duration,
    sockets: u32,
}

impl Sample {
    /// Returns the state of sockets. One whose state is not known is left out.
    pub(crate) fn of(infos: impl Iterator<Item = TcpInfo>) -> Self {
        infos.fold(Self::default(), |sum, info| Self {
            acked: sum.acked + info.bytes_acked(),
            busy: sum.busy + info.busy(),
            window_limited: sum.window_limited + info.window_limited(),
            round_trip: sum.round_trip.max(info.round_trip()),
            sockets: sum.sockets + 1,
        })
    }

    /// Returns the change of a socket, on average, since an earlier sample.
    fn since(&self, earlier: &Self) -> Self {
        let sockets = self.sockets.max(1);
        Self {
            acked: self.acked.saturating_sub(earlier.acked),
            busy: self.busy.saturating_sub(earlier.busy) / sockets,
            window_limited: self.window_limited.saturating_sub(earlier.window_limited) / sockets,
            ..*self
        }
    }

    /// The rate of all sockets in bytes per second, while they were busy.
    fn rate(&self) -> u128 {
        u128::from(self.acked) * 1_000_000_000 / self.busy.as_nanos().max(1)
    }
}

/// The rates of the sockets of a stream, each while bytes were on their way.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The bytes that were acknowledged and the time that the socket was busy, at the last look.
    last: Vec<(u64, Duration)>,
    looked_at: Option<Instant>,
}

impl Rates {
    /// Returns the rate of each socket in bytes per second since the last look, if it was busy long
    /// enough. Returns nothing if the last look was only just before.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        infos: impl Iterator<Item = Option<TcpInfo>>,
    ) -> Vec<Option<f64>> {
        if self.looked_at.is_some_and(|last| now.saturating_duration_since(last) < RATES_WINDOW) {
            return Vec::new();
        }
        self.looked_at = Some(now);
        let current: Vec<_> =
            infos.map(|info| info.map_or_else(Default::default, |i| (i.bytes_acked(), i.busy()))).collect();
        let rate = |(at, (acked, busy)): (usize, &(u64, Duration))| {
            let (acked_before, busy_before) = self.last.get(at).copied().unwrap_or_default();
            let busy = busy.saturating_sub(busy_before);
            let rate = acked.saturating_sub(acked_before) as f64 / busy.as_secs_f64();
            (busy >= RATES_WINDOW / 2).then_some(rate)
        };
        let rates = current.iter().enumerate().map(rate).collect();
        self.last = current;
        rates
    }
}

/// Decides on the number of sockets of one stream.
#[derive(Debug)]
pub(crate) struct Growth {
    limit: Sockets,
    /// The number of networks that lead to the peer, at least one.
    networks: usize,
    /// Whether the present attempt, or the stream if there is none, uses all networks, and not only
    /// the first one.
    is_spread: bool,
    /// Whether the stream does so without the attempt.
    was_spread: bool,
    /// Whether an attempt in the other way has just failed.
    has_tried_other: bool,
    /// The number of sockets that carry the stream.
    sockets: usize,
    /// Its rate, once it is known.
    rate: u128,
    phase: GrowthPhase,
    /// The start of the time that is being measured.
    window: Option<(Instant, Sample)>,
    retry: Duration,
    /// The position of the next look.
    look_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrowthPhase {
    /// Measures whether the network limits the rate.
    Watching,
    /// The sockets of an attempt are being connected, in this many networks.
    Connecting { networks: usize },
    /// They are given time to reach their rate.
    WarmingUp { attempt: usize, until: Option<Instant> },
    /// The rate of an attempt is measured.
    Measuring { attempt: usize },
    /// Nothing is tried before this time, or ever.
    Settled { until: Option<Instant> },
}

impl Growth {
    pub(crate) const fn new(limit: Sockets) -> Self {
        let phase = match limit {
            Sockets::One | Sockets::Fixed(0 | 1) => GrowthPhase::Settled { until: None },
            Sockets::Fixed(_) | Sockets::Tuned => GrowthPhase::Watching,
        };
        let look_at = match limit {
            Sockets::One | Sockets::Fixed(0 | 1) => u64::MAX,
            Sockets::Fixed(_) => 1,
            Sockets::Tuned => LOOK_BYTES,
        };
        Self {
            limit,
            networks: 1,
            is_spread: true,
            was_spread: true,
            has_tried_other: false,
            sockets: 1,
            rate: 0,
            phase,
            window: None,
            retry: RETRY_MIN,
            look_at,
        }
    }

    /// Sets the number of networks that lead to the peer, at least one.
    pub(crate) const fn set_networks(&mut self, networks: usize) {
        self.networks = networks;
    }

    /// The number of networks that the sockets of the stream use.
    pub(crate) const fn networks_used(&self) -> usize {
        if self.is_spread { self.networks } else { 1 }
    }

    /// The number of sockets of the next attempt.
    fn next_sockets(&self) -> usize {
        (2 * self.sockets.max(self.networks_used())).min(TUNED_MAX)
    }

    /// Whether the number of sockets depends on the rate.
    pub(crate) const fn is_tuned(&self) -> bool {
        matches!(self.limit, Sockets::Tuned)
    }

    /// Whether a look is due after this many bytes of the stream.
    pub(crate) const fn is_due(&self, sent: u64) -> bool {
        sent >= self.look_at
    }

    /// Looks at the stream. Returns the number of sockets that are to carry it, if it changes: more
    /// sockets are connected first, and [`Growth::end_connecting`] follows.
    pub(crate) fn look(&mut self, now: Instant, sent: u64, sample: impl FnOnce() -> Sample) -> Option<usize> {
        self.look_at = sent + LOOK_BYTES;
        match self.phase {
            GrowthPhase::Settled { until } => {
                if until.is_some_and(|until| until <= now) {
                    self.phase = GrowthPhase::Watching;
                }
                None
            }
            GrowthPhase::Watching => {
                if let Sockets::Fixed(sockets) = self.limit {
                    return Some(self.attempt(sockets));
                }
                let measured = self.measure(now, sample)?;
                self.rate = measured.rate();
                (self.sockets < TUNED_MAX).then(|| self.attempt(self.next_sockets()))
            }
            GrowthPhase::Connecting { .. } => None,
            GrowthPhase::WarmingUp { attempt, until } => {
                let after = || now + WARM_UP + sample().round_trip * WARM_UP_ROUND_TRIPS;
                let until = until.unwrap_or_else(after);
                self.phase = if until > now {
                    GrowthPhase::WarmingUp { attempt, until: Some(until) }
                } else {
                    GrowthPhase::Measuring { attempt }
                };
                None
            }
            GrowthPhase::Measuring { attempt } => {
                let rate = self.measure(now, sample)?.rate();
                self.conclude(now, attempt, rate)
            }
        }
    }

    /// Begins to connect the sockets of an attempt.
    fn attempt(&mut self, sockets: usize) -> usize {
        (self.phase, self.window) = (GrowthPhase::Connecting { networks: self.networks }, None);
        sockets
    }

    /// Handles the end of an attempt to connect more sockets, after which there are this many.
    /// Returns whether they are to be used.
    pub(crate) fn end_connecting(&mut self, now: Instant, sockets: usize) -> bool {
        match (self.phase, self.limit) {
            (GrowthPhase::Connecting { .. }, Sockets::Tuned) if sockets > self.sockets => {
                self.phase = GrowthPhase::WarmingUp { attempt: sockets, until: None };
            }
            (GrowthPhase::Connecting { .. }, Sockets::Tuned) => {
                self.phase = self.settle(now);
                return false;
            }
            // The sockets in a network that does not lead to the peer are connected in others.
            (GrowthPhase::Connecting { networks }, _) if networks > self.networks => {
                self.phase = GrowthPhase::Watching;
            }
            (GrowthPhase::Connecting { .. }, _) => self.phase = GrowthPhase::Settled { until: None },
            _ => {}
        }
        sockets > 0
    }

    fn settle(&mut self, now: Instant) -> GrowthPhase {
        let until = now + self.retry;
        self.retry = (self.retry * 2).min(RETRY_MAX);
        GrowthPhase::Settled { until: Some(until) }
    }

    /// Returns the changes in the measured time, once they suffice to know the rate that the
    /// network allows.
    fn measure(&mut self, now: Instant, sample: impl FnOnce() -> Sample) -> Option<Sample> {
        let sufficient = self.window.is_none_or(|(began, _)| now.saturating_duration_since(began) >= WINDOW);
        if !sufficient {
            return None;
        }
        let sample = sample();
        let (began, earlier) = self.window.replace((now, sample))?;
        let change = sample.since(&earlier);
        let was_limited = change.busy * 2 >= now.saturating_duration_since(began)
            && change.window_limited * 2 <= change.busy
            && sample.sockets == earlier.sockets;
        was_limited.then_some(change)
    }

    /// Keeps the sockets of an attempt if they have increased the rate.
    fn conclude(&mut self, now: Instant, attempt: usize, rate: u128) -> Option<usize> {
        let (more, than) = IMPROVEMENT;
        if rate * than < self.rate * more {
            // Sockets that are known to be faster in several networks stay there.
            let may_change = self.networks > 1 && (self.sockets == 1 || !self.was_spread);
            if may_change && !std::mem::replace(&mut self.has_tried_other, true) {
                let is_spread = self.is_spread;
                tracing::debug!(self.rate, rate, is_spread, "a stream is not faster over these networks");
                self.is_spread = !is_spread;
                return Some(self.attempt(self.next_sockets()));
            }
            (self.is_spread, self.has_tried_other) = (self.was_spread, false);
            self.phase = self.settle(now);
            tracing::debug!(sockets = self.sockets, rate = self.rate, "more sockets are not faster");
            return Some(self.sockets);
        }
        (self.sockets, self.rate, self.retry) = (attempt, rate, RETRY_MIN);
        (self.was_spread, self.has_tried_other) = (self.is_spread, false);
        tracing::debug!(sockets = attempt, rate, "a stream is faster over more sockets");
        if attempt >= TUNED_MAX {
            self.phase = self.settle(now);
            return None;
        }
        Some(self.attempt(self.next_sockets()))
    }
}

#[cfg(test)]
mod tests;
