//! Detects misspelled names of variables.

use comm_core::{Result, VariableFault};

use super::environment::{Environment, fault};
use super::variables::{ALL, HOSTID, Variable, ZERO_COPY_BYTES};

const PREFIX: &str = "COMM_";

/// The largest edit distance at which a name counts as a misspelling of a known one.
const DISTANCE_MAX: usize = 2;

/// Former names of variables, each with its current name.
const RENAMED: [(&str, &Variable); 2] = [("COMM_HOST_PART", &HOSTID), ("COMM_LEND_BYTES", &ZERO_COPY_BYTES)];

/// Returns an error if the name of a variable is close to a known one, or a former one. Warns about
/// other `COMM_` variables that have no effect.
pub(super) fn check(environment: &Environment) -> Result<()> {
    for name in environment.names(PREFIX) {
        if let Some(known) = ALL.iter().find(|known| known.name == name) {
            if let Some((feature, false)) = known.feature {
                tracing::warn!(
                    variable = name,
                    feature,
                    "the variable has no effect: comm was built without the feature"
                );
            }
            continue;
        }
        if let Some(nearest) = nearest(&name) {
            let nearest = nearest.name.to_owned();
            let advice = "correct the name, or unset it";
            return Err(fault(name, VariableFault::Misspelt { nearest }, advice));
        }
        tracing::warn!(variable = name, "unknown variable: comm does not read it");
    }
    Ok(())
}

fn nearest(name: &str) -> Option<&'static Variable> {
    if let Some((_, current)) = RENAMED.iter().find(|(former, _)| *former == name) {
        return Some(current);
    }
    let distances = ALL.into_iter().map(|known| (distance(name, known.name), known));
    let near = distances.filter(|(distance, _)| *distance <= DISTANCE_MAX);
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Returns the number of letters to insert, remove, replace or transpose to turn one name into the
/// other (optimal string alignment distance).
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in to.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != other);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == to[j - 1] && from[i - 1] == *other {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters_that_differ() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "ac", 1),
            ("abc", "abd", 1),
            ("abc", "acb", 1),
            ("abcd", "badc", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(from, to), distance(to, from)), (expected, expected), "{from} {to}");
        }
    }
}
