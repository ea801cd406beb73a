//! The text form of the model, in which measurements are stored.

use std::fmt;
use std::str::FromStr;

use super::{Link, LinkModel};
use crate::Invalid;

const MODEL: [&str; 4] = ["within", "between", "reduce_gb_per_s", "ranks_per_host"];
const LINK: [&str; 3] = ["latency_us", "overhead_us", "gb_per_s"];

/// Formats as in `latency_us:6,overhead_us:4,gb_per_s:2.5`: times in microseconds, and the
/// bandwidth in 10^9 bytes per second, `inf` if bytes cost nothing. Numbers have nine significant
/// digits.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [latency, overhead] = [self.latency, self.overhead].map(|seconds| rounded(seconds * 1e6));
        write!(f, "latency_us:{latency},overhead_us:{overhead},gb_per_s:{}", inverse(self.per_byte))
    }
}

/// Formats as in `within=LINK between=LINK reduce_gb_per_s=10 ranks_per_host=8 processors=2
/// staged_from=8192`, where each `LINK` is formatted as [`Link`]; `processors` is omitted if there
/// is one for every rank, and `staged_from` if no message is read in place. Parsing it gives the
/// same model, except for digits beyond the ninth.
impl fmt::Display for LinkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { within, between, reduce, ranks_per_host, processors, staged_from } = self;
        let reduce = inverse(*reduce);
        write!(
            f,
            "within={within} between={between} reduce_gb_per_s={reduce} ranks_per_host={ranks_per_host}"
        )?;
        if *processors > 0 {
            write!(f, " processors={processors}")?;
        }
        staged_from.map_or(Ok(()), |bytes| write!(f, " staged_from={bytes}"))
    }
}

impl FromStr for LinkModel {
    type Err = Invalid;

    /// Parses the output of `Display`: every key once, in any order, separated by whitespace. Only
    /// `processors` and `staged_from` may be missing.
    ///
    /// # Errors
    /// [`Invalid::Setting`] if a key is missing, unknown or given twice, or if a value is out of
    /// range: a parsed model is always [sound](LinkModel::is_sound).
    fn from_str(text: &str) -> Result<Self, Invalid> {
        model(text).map_err(|reason| Invalid::Setting { name: "links".into(), value: text.into(), reason })
    }
}

/// Rounds away the errors that arithmetic leaves in the last digits.
fn rounded(number: f64) -> f64 {
    format!("{number:.8e}").parse().unwrap_or(number)
}

/// Converts between seconds per byte and 10^9 bytes per second, in either direction.
fn inverse(number: f64) -> f64 {
    rounded(1e-9 / number)
}

fn model(text: &str) -> Result<LinkModel, String> {
    let mut fields: Vec<&str> = text.split_whitespace().collect();
    let processors = optional(&mut fields, "processors")?.unwrap_or(0);
    let staged_from = optional(&mut fields, "staged_from")?;
    let [within, between, reduce, ranks_per_host] = values(fields.into_iter(), '=', MODEL)?;
    let ranks_per_host = whole("ranks_per_host", ranks_per_host)?;
    let reduce = 1e-9 / speed("reduce_gb_per_s", reduce)?;
    let (within, between) = (link(within)?, link(between)?);
    Ok(LinkModel { within, between, reduce, ranks_per_host, processors, staged_from })
}

/// Removes an optional key with a whole number from `fields`.
fn optional(fields: &mut Vec<&str>, key: &'static str) -> Result<Option<usize>, String> {
    let is_it = |field: &mut &str| field.split_once('=').is_some_and(|(name, _)| name == key);
    let found: Vec<&str> = fields.extract_if(.., is_it).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let [value] = values(found.into_iter(), '=', [key])?;
    whole(key, value).map(Some)
}

fn link(text: &str) -> Result<Link, String> {
    let [latency, overhead, bandwidth] = values(text.split(','), ':', LINK)?;
    Ok(Link {
        latency: time("latency_us", latency)?,
        overhead: time("overhead_us", overhead)?,
        per_byte: 1e-9 / speed("gb_per_s", bandwidth)?,
    })
}

fn whole(key: &str, value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{key} must be a whole number from 1 up, not {value:?}")),
    }
}

/// Parses microseconds and returns seconds.
fn time(key: &str, value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(micros) if micros.is_finite() && micros >= 0.0 => Ok(micros / 1e6),
        _ => Err(format!("{key} must be a finite number that is not negative, not {value:?}")),
    }
}

/// Parses a bandwidth in 10^9 bytes per second and returns seconds per byte. The smallest numbers
/// are rejected like zero, because their inverse is not finite.
fn speed(key: &str, value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(speed) if speed > 0.0 && (1e-9 / speed).is_finite() => Ok(speed),
        _ => Err(format!("{key} must be a positive number, not {value:?}")),
    }
}

/// Returns the values of exactly these keys.
fn values<'a, const N: usize>(
    fields: impl Iterator<Item = &'a str>,
    mark: char,
    keys: [&str; N],
) -> Result<[&'a str; N], String> {
    let mut found = [None; N];
    for field in fields {
        let (key, value) =
            field.split_once(mark).ok_or_else(|| format!("{field:?} is not of the form KEY{mark}VALUE"))?;
        let at = keys.iter().position(|known| *known == key);
        let slot = at.and_then(|at| found.get_mut(at));
        let slot = slot.ok_or_else(|| format!("there is no {key:?}, only {}", keys.join(", ")))?;
        if slot.replace(value).is_some() {
            return Err(format!("{key} is given twice"));
        }
    }
    match keys.iter().zip(&found).find(|(_, value)| value.is_none()) {
        Some((key, _)) => Err(format!("{key} is missing")),
        None => Ok(found.map(Option::unwrap_or_default)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "within=latency_us:0.5,overhead_us:0.1,gb_per_s:8 \
        between=latency_us:6,overhead_us:4,gb_per_s:2.5 reduce_gb_per_s=10 ranks_per_host=8";

    fn example() -> LinkModel {
        LinkModel {
            within: Link { latency: 5e-7, overhead: 1e-7, per_byte: 1.25e-10 },
            between: Link { latency: 6e-6, overhead: 4e-6, per_byte: 4e-10 },
            reduce: 1e-10,
            ranks_per_host: 8,
            processors: 0,
            staged_from: None,
        }
    }

    #[track_caller]
    fn assert_close(a: &LinkModel, b: &LinkModel) {
        let costs = |m: &LinkModel| {
            let of = |l: &Link| [l.latency, l.overhead, l.per_byte];
            [&of(&m.within)[..], &of(&m.between), &[m.reduce]].concat()
        };
        for (a, b) in costs(a).into_iter().zip(costs(b)) {
            assert!((a - b).abs() <= 1e-8 * b.abs(), "{a} {b}");
        }
        let numbers = |m: &LinkModel| (m.ranks_per_host, m.processors, m.staged_from);
        assert_eq!(numbers(a), numbers(b));
    }

    #[test]
    fn a_displayed_model_has_no_noise_of_arithmetic() {
        assert_eq!(example().to_string(), TEXT);
    }

    #[test]
    fn a_displayed_model_parses_back_to_itself() {
        assert_close(&TEXT.parse().unwrap(), &example());
        let free = Link { latency: 0.0, overhead: 0.0, per_byte: 0.0 };
        let odd = Link { latency: 1.0 / 3.0, overhead: 1e-12 / 7.0, per_byte: 1.0 / 11.0 };
        let (ranks_per_host, processors, staged_from) = (usize::MAX, 7, Some(5));
        let model =
            LinkModel { within: free, between: odd, reduce: 0.0, ranks_per_host, processors, staged_from };
        assert_close(&model.to_string().parse().unwrap(), &model);
    }

    #[test]
    fn parsing_ignores_order_and_whitespace() {
        let shuffled = "ranks_per_host=8\n reduce_gb_per_s=1e1 \
            between=gb_per_s:2.5,overhead_us:4,latency_us:6 \
            within=latency_us:0.5,overhead_us:0.1,gb_per_s:8\n";
        assert_close(&shuffled.parse().unwrap(), &example());
    }

    #[test]
    fn malformed_models_are_refused_with_the_reason() {
        let refused = |from: &str, to: &str, reason: &str| {
            assert!(TEXT.contains(from), "{from}");
            let text = TEXT.replace(from, to);
            let error = text.parse::<LinkModel>().unwrap_err();
            let Invalid::Setting { name, value, reason: found } = error else { panic!("{error}") };
            assert_eq!((&*name, &value), ("links", &text));
            assert!(found.contains(reason), "{to}: {found}");
        };
        refused(" ranks_per_host=8", "", "ranks_per_host is missing");
        refused("ranks_per_host=8", "ranks_per_host=0", "whole number from 1");
        refused("ranks_per_host=8", "ranks_per_host=1.5", "whole number from 1");
        refused("ranks_per_host=8", "ranks=8", "there is no \"ranks\"");
        refused("ranks_per_host=8", "reduce_gb_per_s=1", "reduce_gb_per_s is given twice");
        refused("ranks_per_host=8", "ranks_per_host=8 processors=0", "whole number from 1");
        refused(
            "ranks_per_host=8",
            "ranks_per_host=8 processors=1 processors=2",
            "processors is given twice",
        );
        refused("ranks_per_host=8", "ranks_per_host=8 staged_from=0", "whole number from 1");
        refused("ranks_per_host=8", "ranks_per_host=8 staged_from=", "whole number from 1");
        refused("reduce_gb_per_s=10", "reduce_gb_per_s=0", "positive");
        refused("reduce_gb_per_s=10", "reduce_gb_per_s=1e-318", "positive");
        refused("reduce_gb_per_s=10", "fast", "KEY=VALUE");
        refused("latency_us:6", "latency_us:-6", "not negative");
        refused("latency_us:6", "latency_us:inf", "finite");
        refused("latency_us:6", "latency_us:", "finite");
        refused("gb_per_s:2.5", "gb_per_s:NaN", "positive");
        refused(",gb_per_s:2.5", "", "gb_per_s is missing");
        refused(",gb_per_s:2.5", ",", "KEY:VALUE");
        assert!("".parse::<LinkModel>().is_err());
    }
}
