//! What rank 0 tells the others of its settings when a group is made, to the byte.

use comm_core::{Error, Link, LinkModel, Refusal, Result, Step};

use crate::Tuning;

/// The version of the encoding.
const VERSION: u16 = 3;
/// What stands for no number of bytes.
const NEVER: u64 = u64::MAX;
/// The largest number of processors for which there is room beside the version. More is no different.
const PROCESSORS_MAX: u64 = (1 << 48) - 1;
/// The most steps that may be under way at once, so that nobody can make a rank take memory without end.
const WINDOW_MAX: usize = 1 << 16;

impl Tuning {
    /// The length of the encoding in bytes.
    pub(crate) const ENCODED_BYTES: usize = 104;

    /// What call number 0 is carried out with, by which all that follows is agreed on: the same in every version.
    pub(crate) const FOR_AGREEMENT: Self = Self {
        window: 32,
        segment_bytes: 256 << 10,
        segments_per_pass: 16,
        links: LinkModel::uniform(Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 }, 0.0),
    };

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let Self { window, segment_bytes, segments_per_pass, links } = self;
        let Link { latency, overhead, per_byte } = links.within;
        let within = [latency, overhead, per_byte].map(f64::to_bits);
        let Link { latency, overhead, per_byte } = links.between;
        let between = [latency, overhead, per_byte].map(f64::to_bits);
        let numbers = [*window, *segment_bytes, *segments_per_pass].map(|number| number as u64);
        let staged_from = links.staged_from.map_or(NEVER, |bytes| bytes as u64);
        let rest = [links.reduce.to_bits(), links.ranks_per_host as u64, staged_from];
        let version = [u64::from(VERSION) | (links.processors as u64).min(PROCESSORS_MAX) << 16];
        let words = version.iter().chain(&numbers).chain(&within).chain(&between).chain(&rest);
        let mut bytes = [0; Self::ENCODED_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads what rank 0 sent, and refuses what nobody could work with.
    pub(crate) fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Self> {
        let theirs = u16::from_le_bytes([bytes[0], bytes[1]]);
        if theirs != VERSION {
            let refusal = Refusal::Version { ours: VERSION, theirs };
            return Err(Error::Handshake { with: "rank 0 of the group".into(), refusal });
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_le_bytes(word)
        };
        let number = |at| usize::try_from(word(at)).unwrap_or(usize::MAX);
        let cost = |at| f64::from_bits(word(at));
        let link = |at| Link { latency: cost(at), overhead: cost(at + 1), per_byte: cost(at + 2) };
        let processors = usize::try_from(word(0) >> 16).unwrap_or(usize::MAX);
        let (reduce, ranks_per_host) = (cost(10), number(11));
        let staged_from = (word(12) != NEVER).then(|| number(12));
        let (within, between) = (link(4), link(7));
        let links = LinkModel { within, between, reduce, ranks_per_host, processors, staged_from };
        let tuning =
            Self { window: number(1), segment_bytes: number(2), segments_per_pass: number(3), links };
        tuning.check().map(|()| tuning)
    }

    fn check(&self) -> Result<()> {
        let refused = |name: &str, value: String, reason: &str| {
            Err(Error::setting(format!("{name} of rank 0"), value, reason))
        };
        if !(Step::WINDOW_MIN..=WINDOW_MAX).contains(&self.window) {
            return refused("window", self.window.to_string(), "it must be from 2 to 65536 steps");
        }
        for (name, value) in
            [("segment_bytes", self.segment_bytes), ("segments_per_pass", self.segments_per_pass)]
        {
            if value == 0 {
                return refused(name, value.to_string(), "it must be at least 1");
            }
        }
        if !self.links.is_sound() {
            let reason = "costs must be finite and not negative, and a host must hold a rank";
            return refused("links", format!("{:?}", self.links), reason);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::Invalid;

    fn tuning() -> Tuning {
        let link = Link { latency: 1.0, overhead: 2.0, per_byte: 0.5 };
        let between = Link { latency: 4.0, overhead: 8.0, per_byte: 0.25 };
        let (reduce, ranks_per_host, processors, staged_from) = (16.0, 7, 6, Some(9));
        let links = LinkModel { within: link, between, reduce, ranks_per_host, processors, staged_from };
        Tuning { window: 3, segment_bytes: 0x0102_0304, segments_per_pass: 5, links }
    }

    /// What changing one field comes to.
    fn refused(change: impl Fn(&mut Tuning)) -> bool {
        let mut changed = tuning();
        change(&mut changed);
        matches!(Tuning::decode(&changed.encode()), Err(Error::Invalid(Invalid::Setting { .. })))
    }

    /// A change here is a change of the version.
    #[test]
    fn the_bytes_are_those_of_the_specification() {
        let mut expected = Vec::new();
        for word in [0x6_0003_u64, 3, 0x0102_0304, 5] {
            expected.extend(word.to_le_bytes());
        }
        for cost in [1.0_f64, 2.0, 0.5, 4.0, 8.0, 0.25, 16.0] {
            expected.extend(cost.to_le_bytes());
        }
        expected.extend([7_u64, 9].map(u64::to_le_bytes).concat());
        assert_eq!(tuning().encode()[..], expected[..]);
        assert_eq!(Tuning::decode(&tuning().encode()).unwrap(), tuning());
    }

    #[test]
    fn more_processors_than_can_be_told_are_not_taken_for_few() {
        let mut crowded = tuning();
        crowded.links.processors = usize::MAX;
        let told = Tuning::decode(&crowded.encode()).unwrap().links.processors;
        assert_eq!(told as u64, PROCESSORS_MAX);
    }

    #[test]
    fn what_is_never_staged_stays_so() {
        let mut tuning = tuning();
        tuning.links.staged_from = None;
        assert_eq!(Tuning::decode(&tuning.encode()).unwrap(), tuning);
    }

    #[test]
    fn what_nobody_could_work_with_is_refused() {
        assert!(!refused(|_| {}));
        for window in [0, 1, WINDOW_MAX + 1, usize::MAX] {
            assert!(refused(|tuning| tuning.window = window), "{window}");
        }
        assert!(refused(|tuning| tuning.segment_bytes = 0));
        assert!(refused(|tuning| tuning.segments_per_pass = 0));
        assert!(refused(|tuning| tuning.links.ranks_per_host = 0));
        assert!(refused(|tuning| tuning.links.reduce = f64::NAN));
        assert!(refused(|tuning| tuning.links.within.latency = f64::INFINITY));
        assert!(refused(|tuning| tuning.links.between.per_byte = -1.0));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = tuning().encode();
        bytes[0] = 9;
        let error = Tuning::decode(&bytes).unwrap_err();
        assert!(
            matches!(error, Error::Handshake { refusal: Refusal::Version { theirs: 9, .. }, .. }),
            "{error}"
        );
    }

    #[test]
    fn hostile_bytes_never_panic() {
        for at in 0..Tuning::ENCODED_BYTES {
            for value in [0, 1, 127, 128, 255] {
                let mut bytes = tuning().encode();
                bytes[at] = value;
                let _ = Tuning::decode(&bytes);
            }
        }
    }
}
