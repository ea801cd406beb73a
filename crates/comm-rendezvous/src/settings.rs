//! Settings that must be equal on all ranks.

use std::str::FromStr;

/// Settings that must be equal on all ranks, by name.
///
/// A rendezvous compares them in the order in which they were added. The first difference is
/// reported as [`Refusal::Setting`](comm_core::Refusal::Setting) on every rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings(Vec<(String, String)>);

/// The first setting in which two ranks differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) name: String,
    pub(crate) ours: String,
    pub(crate) theirs: String,
}

impl Settings {
    /// Adds a setting. A second setting with the same name is ignored. Control characters are
    /// escaped.
    pub fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let name = escape(name);
        if self.value(&name).is_none() {
            self.0.push((name, escape(&value.to_string())));
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a setting, or an empty string if there is none.
    pub(crate) fn value_of(&self, name: &str) -> &str {
        self.value(name).unwrap_or_default()
    }

    /// Returns the first setting in which the two differ; a missing one counts as empty.
    pub(crate) fn difference(&self, theirs: &Self) -> Option<Difference> {
        let names = self.0.iter().chain(&theirs.0).map(|(name, _)| name.as_str());
        let differs = |name: &&str| self.value(name) != theirs.value(name);
        names.into_iter().find(differs).map(|name| Difference {
            name: name.to_owned(),
            ours: self.value_of(name).into(),
            theirs: theirs.value_of(name).into(),
        })
    }

    /// Encodes each setting as a line: its name, a tab and its value.
    pub(crate) fn encode(&self) -> String {
        let line = |(name, value): &(String, String)| format!("{name}\t{value}");
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Escapes control characters, including tabs and line breaks.
pub(crate) fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect()
}

impl FromStr for Settings {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let line = |line: &str| line.split_once('\t').map(|(name, value)| (name.into(), value.into()));
        let settings: Option<Vec<_>> = text.split('\n').filter(|line| !line.is_empty()).map(line).collect();
        settings.map(Self).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(of: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        of.iter().for_each(|(name, value)| settings.add(name, value));
        settings
    }

    #[test]
    fn settings_round_trip_through_the_store() {
        for all in [&[][..], &[("a", "1")], &[("a", ""), ("b\tc", "x\ny\u{7f}"), ("d", "é = 3")]] {
            let settings = settings(all);
            assert_eq!(settings.encode().parse(), Ok(settings));
        }
        assert!("no tab".parse::<Settings>().is_err());
    }

    #[test]
    fn the_first_difference_is_found_and_a_missing_setting_is_one() {
        let ours = settings(&[("a", "1"), ("b", "2")]);
        assert_eq!(ours.difference(&ours), None);
        for (theirs, expected) in [
            (settings(&[("b", "3"), ("a", "1")]), ("b", "2", "3")),
            (settings(&[("b", "3"), ("a", "0")]), ("a", "1", "0")),
            (settings(&[("a", "1")]), ("b", "2", "")),
            (settings(&[("a", "1"), ("b", "2"), ("c", "3")]), ("c", "", "3")),
        ] {
            let (name, ours_value, theirs_value) = expected;
            let difference =
                Difference { name: name.into(), ours: ours_value.into(), theirs: theirs_value.into() };
            assert_eq!(ours.difference(&theirs), Some(difference));
        }
    }
}
