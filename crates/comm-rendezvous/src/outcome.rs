//! How a phase of a meeting ended, as text in the store.

use std::str::FromStr;

/// How a phase of a meeting ended. Whoever knows first writes it, and it holds for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every rank took part. Holds what each of them said, in the order of ranks, or nothing.
    Complete(Vec<String>),
    /// The meeting did not come about.
    Failed(Failure),
}

/// Why a meeting did not come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another process has come with this rank, so all go on to the next meeting.
    Superseded { rank: usize },
    /// This rank's process ended.
    Lost { rank: usize },
    /// These ranks did not come before the deadline of a rank that was there.
    Missing { ranks: Vec<usize> },
    /// Two ranks were given different values of a setting.
    Setting { name: String, sides: [(usize, String); 2] },
    /// This rank could not go on.
    Gave { rank: usize, reason: String },
}

impl Failure {
    /// Whether a rank cannot hear of the failure, as it is that this rank is not there.
    pub(crate) fn is_absent(&self, rank: usize) -> bool {
        match self {
            Self::Lost { rank: lost } => *lost == rank,
            Self::Missing { ranks } => ranks.contains(&rank),
            Self::Superseded { .. } | Self::Setting { .. } | Self::Gave { .. } => false,
        }
    }
}

impl Outcome {
    pub(crate) fn encode(&self) -> String {
        let lines = match self {
            Self::Complete(said) => [&["complete".to_owned()], &said[..]].concat(),
            Self::Failed(Failure::Superseded { rank }) => vec!["superseded".into(), rank.to_string()],
            Self::Failed(Failure::Lost { rank }) => vec!["lost".into(), rank.to_string()],
            Self::Failed(Failure::Missing { ranks }) => {
                [vec!["missing".into()], ranks.iter().map(ToString::to_string).collect()].concat()
            }
            Self::Failed(Failure::Setting { name, sides: [(a, one), (b, other)] }) => {
                vec!["setting".into(), name.clone(), a.to_string(), one.clone(), b.to_string(), other.clone()]
            }
            Self::Failed(Failure::Gave { rank, reason }) => {
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
        let number = |text: &str| text.parse::<usize>().map_err(drop);
        let failure = match (kind, &rest[..]) {
            (Some("complete"), said) => {
                return Ok(Self::Complete(said.iter().map(ToString::to_string).collect()));
            }
            (Some("superseded"), [rank]) => Failure::Superseded { rank: number(rank)? },
            (Some("lost"), [rank]) => Failure::Lost { rank: number(rank)? },
            (Some("missing"), ranks) => {
                Failure::Missing { ranks: ranks.iter().map(|rank| number(rank)).collect::<Result<_, _>>()? }
            }
            (Some("setting"), [name, a, one, b, other]) => Failure::Setting {
                name: (*name).into(),
                sides: [(number(a)?, (*one).into()), (number(b)?, (*other).into())],
            },
            (Some("failed"), [rank, reason]) => {
                Failure::Gave { rank: number(rank)?, reason: (*reason).into() }
            }
            _ => return Err(()),
        };
        Ok(Self::Failed(failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_the_store() {
        let sides = [(0, "tcp".to_owned()), (7, String::new())];
        let failures = [
            Failure::Superseded { rank: 2 },
            Failure::Lost { rank: 0 },
            Failure::Missing { ranks: vec![0, 7] },
            Failure::Missing { ranks: vec![] },
            Failure::Setting { name: "transport".into(), sides },
            Failure::Gave { rank: 3, reason: "no memory: 12".into() },
        ];
        let complete = [vec![], vec!["one".to_owned()], vec!["one".into(), String::new(), "three".into()]];
        let outcomes = failures.map(Outcome::Failed).into_iter().chain(complete.map(Outcome::Complete));
        for outcome in outcomes {
            assert_eq!(outcome.encode().parse(), Ok(outcome));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "met", "lost", "lost\nx", "lost\n1\n2", "setting\na\n0\nb", "failed\n1"] {
            assert!(text.parse::<Outcome>().is_err(), "{text:?}");
        }
    }
}
