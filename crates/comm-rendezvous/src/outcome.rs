//! Outcomes of phases, and their encoding in the store.

use std::str::FromStr;

use comm_core::{Error, Group, Loss};

use crate::settings::escape;

/// The outcome of a phase. The first rank to know it writes it to the store, and it holds for all
/// ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every rank took part. Holds the records in rank order, if the phase gathers them.
    Complete(Vec<String>),
    /// The attempt failed.
    Failed(Failure),
}

/// The cause of a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another process has claimed this rank, so all ranks move on to the next attempt.
    Superseded { rank: usize },
    /// This rank's process exited, or, with a report, another rank cannot reach it.
    Lost { rank: usize, report: Option<Report> },
    /// These ranks did not arrive before the deadline of another rank.
    Missing { ranks: Vec<usize> },
    /// Two ranks were given different values of a setting.
    Setting { name: String, sides: [(usize, String); 2] },
    /// This rank returned an error.
    Aborted { rank: usize, reason: String },
}

/// The reason for which a rank takes another one for lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) by: usize,
    pub(crate) detail: String,
}

impl Failure {
    /// Returns the failure that an error of this rank means for all ranks.
    pub(crate) fn of(error: &Error, rank: usize) -> Self {
        match error {
            // The store still serves other ranks, so only the connection of this rank broke.
            Error::PeerLost { loss: Loss::Store(_), .. } => {
                Self::Aborted { rank, reason: escape(&error.to_string()) }
            }
            Error::PeerLost { peer, loss, .. } => Self::Lost { rank: *peer, report: report(loss, rank) },
            Error::Timeout { waiting_for, .. } if !waiting_for.is_empty() => {
                Self::Missing { ranks: waiting_for.clone() }
            }
            Error::Aborted { by, reason } => Self::Aborted { rank: *by, reason: escape(reason) },
            other => Self::Aborted { rank, reason: escape(&other.to_string()) },
        }
    }

    /// Returns whether the failure is the absence of this rank, which therefore cannot acknowledge
    /// it.
    pub(crate) fn is_absent(&self, rank: usize) -> bool {
        match self {
            Self::Lost { rank: lost, .. } => *lost == rank,
            Self::Missing { ranks } => ranks.contains(&rank),
            Self::Superseded { .. } | Self::Setting { .. } | Self::Aborted { .. } => false,
        }
    }
}

/// Returns the report of a loss that this rank has noticed. Nothing needs to be added to the end of
/// a process.
fn report(loss: &Loss, rank: usize) -> Option<Report> {
    match loss {
        Loss::Closed => None,
        Loss::Reported { by, detail } => Some(Report { by: *by, detail: escape(detail) }),
        other => Some(Report { by: rank, detail: escape(&other.to_string()) }),
    }
}

impl Outcome {
    pub(crate) fn encode(&self) -> String {
        let lines = match self {
            Self::Complete(records) => [&["complete".to_owned()], &records[..]].concat(),
            Self::Failed(Failure::Superseded { rank }) => vec!["superseded".into(), rank.to_string()],
            Self::Failed(Failure::Lost { rank, report: None }) => vec!["lost".into(), rank.to_string()],
            Self::Failed(Failure::Lost { rank, report: Some(Report { by, detail }) }) => {
                vec!["lost".into(), rank.to_string(), by.to_string(), detail.clone()]
            }
            Self::Failed(Failure::Missing { ranks }) => {
                [vec!["missing".into()], ranks.iter().map(ToString::to_string).collect()].concat()
            }
            Self::Failed(Failure::Setting { name, sides: [(a, one), (b, other)] }) => {
                vec!["setting".into(), name.clone(), a.to_string(), one.clone(), b.to_string(), other.clone()]
            }
            Self::Failed(Failure::Aborted { rank, reason }) => {
                vec!["failed".into(), rank.to_string(), reason.clone()]
            }
        };
        lines.join("\n")
    }
}

impl FromStr for Outcome {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut lines = text.split('\n');
        let kind = lines.next();
        let rest: Vec<&str> = lines.collect();
        let number = |text: &str| text.parse().ok().filter(|rank| *rank < Group::SIZE_MAX).ok_or(());
        let failure = match (kind, &rest[..]) {
            (Some("complete"), records) => {
                return Ok(Self::Complete(records.iter().map(ToString::to_string).collect()));
            }
            (Some("superseded"), [rank]) => Failure::Superseded { rank: number(rank)? },
            (Some("lost"), [rank]) => Failure::Lost { rank: number(rank)?, report: None },
            (Some("lost"), [rank, by, detail]) => {
                let report = Report { by: number(by)?, detail: escape(detail) };
                Failure::Lost { rank: number(rank)?, report: Some(report) }
            }
            (Some("missing"), ranks) => {
                Failure::Missing { ranks: ranks.iter().map(|rank| number(rank)).collect::<Result<_, _>>()? }
            }
            (Some("setting"), [name, a, one, b, other]) => Failure::Setting {
                name: escape(name),
                sides: [(number(a)?, escape(one)), (number(b)?, escape(other))],
            },
            (Some("failed"), [rank, reason]) => {
                Failure::Aborted { rank: number(rank)?, reason: escape(reason) }
            }
            _ => return Err(()),
        };
        Ok(Self::Failed(failure))
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::Arc;

    use comm_core::During;

    use super::*;

    #[test]
    fn outcomes_round_trip_through_the_store() {
        let sides = [(0, "tcp".to_owned()), (7, String::new())];
        let failures = [
            Failure::Superseded { rank: 2 },
            Failure::Lost { rank: 0, report: None },
            Failure::Lost {
                rank: 5,
                report: Some(Report { by: 2, detail: "no route at 10.0.0.5:1".into() }),
            },
            Failure::Missing { ranks: vec![0, 7] },
            Failure::Missing { ranks: vec![] },
            Failure::Setting { name: "transport".into(), sides },
            Failure::Aborted { rank: 3, reason: "no memory: 12".into() },
        ];
        let complete = [vec![], vec!["one".to_owned()], vec!["one".into(), String::new(), "three".into()]];
        let outcomes = failures.map(Outcome::Failed).into_iter().chain(complete.map(Outcome::Complete));
        for outcome in outcomes {
            assert_eq!(outcome.encode().parse(), Ok(outcome));
        }
    }

    #[test]
    fn a_rank_that_loses_the_store_names_itself_to_the_others() {
        let loss = Loss::Store(Arc::new(ErrorKind::ConnectionReset.into()));
        let error = Error::PeerLost { peer: 0, during: During::Rendezvous, loss };
        assert!(matches!(Failure::of(&error, 1), Failure::Aborted { rank: 1, .. }));
    }

    #[test]
    fn a_rank_that_cannot_be_reached_is_reported_with_the_reason() {
        let failure = |loss| Failure::of(&Error::PeerLost { peer: 5, during: During::Rendezvous, loss }, 2);
        assert_eq!(failure(Loss::Closed), Failure::Lost { rank: 5, report: None });
        let detail = Loss::Io(Arc::new(ErrorKind::HostUnreachable.into())).to_string();
        let report = Some(Report { by: 2, detail: detail.clone() });
        let expected = Failure::Lost { rank: 5, report };
        assert_eq!(failure(Loss::Io(Arc::new(ErrorKind::HostUnreachable.into()))), expected);
        // The rank that noticed it stays the one that is named.
        let report = Some(Report { by: 1, detail: detail.clone() });
        assert_eq!(failure(Loss::Reported { by: 1, detail }), Failure::Lost { rank: 5, report });
    }

    #[test]
    fn text_of_other_processes_cannot_write_control_characters_to_a_terminal() {
        let hostile = "failed\n1\nno \u{1b}[2J memory".parse();
        let reason = "no \\u{1b}[2J memory".to_owned();
        assert_eq!(hostile, Ok(Outcome::Failed(Failure::Aborted { rank: 1, reason })));
    }

    #[test]
    fn other_texts_are_refused() {
        let no_rank = format!("lost\n{}", u64::MAX);
        for text in ["", "met", "lost", "lost\nx", "lost\n1\n2", "setting\na\n0\nb", "failed\n1", &no_rank] {
            assert!(text.parse::<Outcome>().is_err(), "{text:?}");
        }
    }
}
