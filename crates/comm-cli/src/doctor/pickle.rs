//! Writes values in version 0 of Python's pickle format, which is text.

use std::fmt::Write;

/// A value of Python.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(u64),
    Str(String),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    /// With text as keys.
    Dict(Vec<(&'static str, Value)>),
    /// With text that is computed as keys.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Creates a string.
    pub(super) fn str(text: impl Into<String>) -> Self {
        Self::Str(text.into())
    }

    /// Returns the pickle, which `pickle.load` reads.
    pub(super) fn pickle(&self) -> String {
        let mut text = String::new();
        self.put(&mut text);
        text.push('.');
        text
    }

    fn put(&self, to: &mut String) {
        let all = |to: &mut String, values: &[Self], end| {
            to.push('(');
            values.iter().for_each(|value| value.put(to));
            to.push(end);
        };
        match self {
            Self::None => to.push('N'),
            Self::Bool(value) => to.push_str(if *value { "I01\n" } else { "I00\n" }),
            // Writing to a string cannot fail.
            Self::Int(value) => drop(writeln!(to, "L{value}L")),
            Self::Str(value) => put_str(value, to),
            Self::List(values) => all(to, values, 'l'),
            Self::Tuple(values) => all(to, values, 't'),
            Self::Dict(entries) => put_dict(entries.iter().map(|(key, value)| (*key, value)), to),
            Self::Map(entries) => put_dict(entries.iter().map(|(key, value)| (&key[..], value)), to),
        }
    }
}

fn put_dict<'a>(entries: impl Iterator<Item = (&'a str, &'a Value)>, to: &mut String) {
    to.push('(');
    for (key, value) in entries {
        put_str(key, to);
        value.put(to);
    }
    to.push('d');
}

/// Writes a string, which ends at the end of the line. All but printable ASCII is escaped.
fn put_str(text: &str, to: &mut String) {
    to.push('V');
    for c in text.chars() {
        match c {
            ' '..='[' | ']'..='~' => to.push(c),
            _ if u32::from(c) > 0xffff => drop(write!(to, "\\U{:08x}", u32::from(c))),
            _ => drop(write!(to, "\\u{:04x}", u32::from(c))),
        }
    }
    to.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_version_0() {
        let value = Value::Dict(vec![
            ("a\n\\é", Value::List(vec![Value::Int(7), Value::Bool(true), Value::None])),
            ("b", Value::Tuple(vec![Value::str("x")])),
        ]);
        assert_eq!(value.pickle(), "(Va\\u000a\\u005c\\u00e9\n(L7L\nI01\nNlVb\n(Vx\ntd.");
    }
}
