//! Which algorithm carries out a call.

use comm_core::{Collective, Group, Invalid, Result};

use crate::RingConfig;
use crate::schedule::{Algorithm, Chunks, Params};

/// What the choice depends on. Every member knows the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    pub(crate) collective: Collective,
    pub(crate) group: Group,
    pub(crate) root: usize,
    /// All data of the collective: the buffer of a reduction, the result of a gather.
    pub(crate) bytes: usize,
    pub(crate) in_place: bool,
}

/// The algorithm for a call and the parameters of its schedule.
pub(crate) fn choose(
    question: &Question,
    forced: Option<&str>,
    config: &RingConfig,
) -> Result<(&'static Algorithm, Params)> {
    let algorithm = find(question.collective, forced.unwrap_or_else(|| preferred(question, config)))?;
    let ranks = question.group.size();
    let chunk_bytes = match algorithm.chunks {
        Chunks::PerRank | Chunks::PerPair => question.bytes.div_ceil(ranks),
        Chunks::Whole => question.bytes,
    };
    let segments =
        if algorithm.segmented { chunk_bytes.div_ceil(config.segment_bytes.max(1)).max(1) } else { 1 };
    let params = Params {
        ranks,
        rank: question.group.rank(),
        root: question.root,
        segments,
        pass: config.segments_per_pass.max(1),
        in_place: question.in_place,
    };
    Ok((algorithm, params))
}

/// The algorithm of a name.
pub(crate) fn find(collective: Collective, name: &str) -> Result<&'static Algorithm> {
    Algorithm::find(collective, name).ok_or_else(|| unknown(collective, name))
}

fn preferred(question: &Question, config: &RingConfig) -> &'static str {
    match question.collective.base() {
        Collective::AllReduce if question.bytes > config.doubling_bytes_max => "ring",
        Collective::AllReduce | Collective::Barrier => "recursive_doubling",
        Collective::Broadcast | Collective::Reduce => "binomial",
        Collective::Gather | Collective::Scatter => "flat",
        Collective::AllToAll => "pairwise",
        _ => "ring",
    }
}

fn unknown(collective: Collective, name: &str) -> comm_core::Error {
    let known: Vec<&str> = Algorithm::for_collective(collective).map(|row| row.name).collect();
    Invalid::Algorithm { name: name.into(), collective: collective.name(), known: known.join(", ") }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm_core::GroupId;

    fn question(collective: Collective, bytes: usize) -> Question {
        let group = Group::new(GroupId::WORLD, 1, 4).unwrap();
        Question { collective, group, root: 0, bytes, in_place: true }
    }

    #[test]
    fn small_all_reduces_double_and_large_ones_go_around() {
        let config = RingConfig { doubling_bytes_max: 100, segment_bytes: 1000, ..RingConfig::default() };
        let name = |bytes| choose(&question(Collective::AllReduce, bytes), None, &config).unwrap().0.name;
        assert_eq!((name(0), name(100), name(101)), ("recursive_doubling", "recursive_doubling", "ring"));
        let (_, params) = choose(&question(Collective::AllReduce, 4001), None, &config).unwrap();
        assert_eq!(params.segments, 2);
    }

    #[test]
    fn every_collective_has_a_preferred_algorithm() {
        for collective in Collective::ALL {
            choose(&question(collective, 1 << 20), None, &RingConfig::default()).unwrap();
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let refused = choose(&question(Collective::AllReduce, 8), Some("magic"), &RingConfig::default());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("magic") && text.contains("recursive_doubling, ring"), "{text}");
    }
}
