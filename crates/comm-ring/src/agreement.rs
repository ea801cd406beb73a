//! The encoding of the settings that rank 0 sends to the other members when a group is created.

use comm_core::wire::{self, Reader, Writer};
use comm_core::{Error, Link, LinkModel, Refusal, Result, Step};

use crate::Tuning;

/// The version of the encoding.
const VERSION: u16 = 4;
/// Encodes the absence of a number of bytes.
const NEVER: u64 = u64::MAX;
/// The largest number of processors that fits into the word that it shares with the version.
const PROCESSORS_MAX: u64 = (1 << 48) - 1;
/// The largest window that is accepted, so that no peer can make a rank allocate unbounded memory.
const WINDOW_MAX: usize = 1 << 16;

impl Tuning {
    /// The length of the encoding in bytes.
    pub(crate) const ENCODED_BYTES: usize = 104;

    /// The settings of call number 0, in which the members agree on the settings of all later
    /// calls. They are the same in every version.
    pub(crate) const FOR_AGREEMENT: Self = Self {
        window: 32,
        segment_bytes: 256 << 10,
        segments_per_pass: 16,
        links: LinkModel::uniform(Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 }, 0.0),
    };

    pub(crate) fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let Self { window, segment_bytes, segments_per_pass, links } = self;
        let mut to = Writer::new();
        to.put(u64::from(VERSION) | (links.processors as u64).min(PROCESSORS_MAX) << 16);
        to.size::<u64>(*window).size::<u64>(*segment_bytes).size::<u64>(*segments_per_pass);
        for Link { latency, overhead, per_byte } in [links.within, links.between] {
            to.put(latency).put(overhead).put(per_byte);
        }
        to.put(links.reduce).size::<u64>(links.ranks_per_host);
        to.put(links.staged_from.map_or(NEVER, |bytes| bytes as u64));
        to.into_array()
    }

    /// Decodes the settings of rank 0. Returns an error for a different version and for settings
    /// that no rank could use.
    pub(crate) fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Result<Self> {
        let malformed = |error| Error::malformed("the settings of rank 0", error);
        let (theirs, tuning) = wire::decode(bytes, Self::read).map_err(malformed)?;
        if theirs != VERSION {
            let refusal = Refusal::Version { ours: VERSION, theirs };
            return Err(Error::Handshake { with: "rank 0 of the group".into(), refusal });
        }
        tuning.check().map(|()| tuning)
    }

    fn read(r: &mut Reader<'_>) -> wire::Result<(u16, Self)> {
        let head: u64 = r.get()?;
        let (window, segment_bytes, segments_per_pass) =
            (r.size::<u64>()?, r.size::<u64>()?, r.size::<u64>()?);
        let mut link = || Ok(Link { latency: r.get()?, overhead: r.get()?, per_byte: r.get()? });
        let (within, between) = (link()?, link()?);
        let (reduce, ranks_per_host) = (r.get()?, r.size::<u64>()?);
        let staged_from = Some(r.get::<u64>()?).filter(|bytes| *bytes != NEVER);
        let size = |number| usize::try_from(number).unwrap_or(usize::MAX);
        let (processors, staged_from) = (size(head >> 16), staged_from.map(size));
        let links = LinkModel { within, between, reduce, ranks_per_host, processors, staged_from };
        Ok((head as u16, Self { window, segment_bytes, segments_per_pass, links }))
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

    fn never_staged() -> Tuning {
        let mut tuning = tuning();
        tuning.links.staged_from = None;
        tuning
    }

    /// Returns whether changed settings are refused.
    fn refused(change: impl Fn(&mut Tuning)) -> bool {
        let mut changed = tuning();
        change(&mut changed);
        matches!(Tuning::decode(&changed.encode()), Err(Error::Invalid(Invalid::Setting { .. })))
    }

    /// A change of the encoding requires a new version.
    #[test]
    fn the_encoding_matches_the_specification() {
        let mut expected = Vec::new();
        for word in [0x6_0004_u64, 3, 0x0102_0304, 5] {
            expected.extend(word.to_le_bytes());
        }
        for cost in [1.0_f64, 2.0, 0.5, 4.0, 8.0, 0.25, 16.0] {
            expected.extend(cost.to_le_bytes());
        }
        expected.extend([7_u64, 9].map(u64::to_le_bytes).concat());
        assert_eq!(tuning().encode()[..], expected[..]);
    }

    #[test]
    fn too_many_processors_are_encoded_as_the_largest_number() {
        let mut many = tuning();
        many.links.processors = usize::MAX;
        let decoded = Tuning::decode(&many.encode()).unwrap().links.processors;
        assert_eq!(decoded as u64, PROCESSORS_MAX);
    }

    #[test]
    fn settings_that_no_rank_could_use_are_refused() {
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

    comm_sim::hostile_bytes!(settings_are_read_as_they_were_written: [tuning(), never_staged()],
        |tuning| tuning.encode().to_vec(), |bytes| Tuning::decode(bytes.try_into().ok()?).ok());
}
