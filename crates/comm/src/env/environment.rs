//! Parses environment variables according to their table.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;

use comm_core::{Error, Invalid, Result, VariableFault};

use super::variables::{Values, Variable};

/// A snapshot of the environment of a process.
#[derive(Debug, Default)]
pub(crate) struct Environment(BTreeMap<OsString, OsString>);

/// Creates an error that names a variable.
pub(super) fn fault(name: impl Into<String>, fault: VariableFault, advice: impl Into<String>) -> Error {
    Invalid::Variable { name: name.into(), fault, advice: advice.into() }.into()
}

impl Environment {
    /// Takes a snapshot of the environment of this process.
    pub(crate) fn of_process() -> Self {
        std::env::vars_os().collect()
    }

    /// Sets a variable in this snapshot.
    pub(super) fn set(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.into(), value.to_string().into());
    }

    /// Returns whether a variable is set, to any value.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.0.contains_key(OsStr::new(name))
    }

    /// Returns the names of all variables that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> impl Iterator<Item = String> {
        let names = self.0.keys().map(|name| name.to_string_lossy().into_owned());
        names.filter(move |name| name.starts_with(prefix))
    }

    /// Returns the text of a variable, or `None` if it is not set.
    pub(super) fn text(&self, variable: &Variable) -> Result<Option<&str>> {
        let name = variable.name;
        let Some(value) = self.0.get(OsStr::new(name)) else { return Ok(None) };
        let Some(text) = value.to_str() else {
            let advice = "encode binary values as text, for example in hexadecimal";
            return Err(fault(name, VariableFault::NotText, advice));
        };
        if text.is_empty() {
            return Err(fault(name, VariableFault::Empty, "unset it or give it a value"));
        }
        if let Values::OneOf(words) = variable.values
            && !words.contains(&text)
        {
            return Err(Error::setting(name, text, format!("it must be one of {}", words.join(", "))));
        }
        Ok(Some(text))
    }

    /// Returns the value of a numeric variable, or `None` if it is not set.
    pub(super) fn number(&self, variable: &Variable) -> Result<Option<u64>> {
        let Some(text) = self.text(variable)? else { return Ok(None) };
        let refused = |reason: String| Error::setting(variable.name, text, reason);
        let (min, max) = match variable.values {
            Values::Number { min, max } => (min, max),
            Values::Hexadecimal => {
                let number = u64::from_str_radix(text.trim(), 16);
                let reason = "it must be a hexadecimal number of at most 64 bits";
                return number.map(Some).map_err(|_| refused(reason.into()));
            }
            Values::OneOf(_) | Values::Ports | Values::Text(_) => return Ok(None),
        };
        let number = text.trim().parse().ok().filter(|number| (min..=max).contains(number));
        number.map(Some).ok_or_else(|| refused(format!("it must be a whole number from {min} to {max}")))
    }

    /// Returns the value of a variable that holds ports, or `None` if it is not set.
    pub(super) fn ports(&self, variable: &Variable) -> Result<Option<RangeInclusive<u16>>> {
        let Some(text) = self.text(variable)? else { return Ok(None) };
        let port = |text: &str| text.trim().parse().ok().filter(|port| *port > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Some(first..=last)),
            _ => {
                let reason = "it must be a port from 1 to 65535, or a range with the lower port first, such as 29600-29699";
                Err(Error::setting(variable.name, text, reason))
            }
        }
    }

    /// Returns the value of a numeric variable whose bounds fit a `usize`, or `None` if it is not
    /// set.
    pub(super) fn size(&self, variable: &Variable) -> Result<Option<usize>> {
        Ok(self.number(variable)?.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
