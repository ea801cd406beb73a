//! What ranks tell each other before data moves: that all can go on, or which one cannot and why.

use comm_core::Comm;

use crate::{Error, Place, Result};

/// So many bytes of a name, and of why, are told: enough for whoever looks for the variable.
const WORDS: usize = 512;

/// Answers what this rank found, if all ranks can go on. If one cannot, none does: that one gets
/// its own error, and the others are told it. A collective; it costs one all-reduce of a few bytes
/// if all is well.
///
/// Each of `marks`, of which all ranks have as many, becomes the largest that any rank has.
pub(crate) fn go_on<M: Place, T>(comm: &Comm<M>, own: Result<T>, marks: &mut Vec<u8>) -> Result<T> {
    marks.push(u8::from(own.is_err()));
    M::largest(comm, marks)?;
    if marks.pop() == Some(0) {
        return own;
    }
    let own = own.err();
    let first = first_refusal(comm, own.as_ref())?;
    Err(own.unwrap_or(first))
}

/// The error of the first rank that has one, as other ranks get it.
fn first_refusal<M: Place>(comm: &Comm<M>, own: Option<&Error>) -> Result<Error> {
    let mut all = vec![0; comm.size() * 2 * WORDS];
    M::all_gather(comm, &encode(own), &mut all)?;
    let (records, _) = all.as_chunks::<WORDS>();
    let (records, _) = records.as_chunks::<2>();
    let found = records.iter().map(|record| record.each_ref().map(decode)).enumerate();
    let refusal = found.into_iter().find(|(_, [_, why])| !why.is_empty());
    let lost = || comm_core::Error::malformed("the refusal of another rank", "it does not say why");
    let (rank, [name, why]) = refusal.ok_or_else(lost)?;
    Ok(Error::Refused { rank, name, why })
}

/// The variable, and what is wrong with it.
fn encode(refusal: Option<&Error>) -> [u8; 2 * WORDS] {
    let mut record = [0; 2 * WORDS];
    if let Some(error) = refusal {
        let (name, why) = record.split_at_mut(WORDS);
        for (place, text) in [(name, error.variable().unwrap_or_default()), (why, &error.to_string())] {
            let len = text.floor_char_boundary(place.len());
            place[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
    }
    record
}

/// A text of another process, up to where it is filled up.
fn decode(bytes: &[u8; WORDS]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_the_way_and_long_ones_are_cut_between_characters() {
        let there_and_back = |name: &str| {
            let record = encode(Some(&Error::Integers { name: name.into() }));
            let (halves, _) = record.as_chunks::<WORDS>();
            [decode(&halves[0]), decode(&halves[1])]
        };
        let [name, why] = there_and_back("körper.w");
        assert_eq!((name.as_str(), why.contains("körper.w")), ("körper.w", true));
        let long = format!("x{}", "ö".repeat(WORDS));
        let [name, why] = there_and_back(&long);
        assert_eq!((name.len(), why.is_empty()), (WORDS - 1, false));
        assert!(long.starts_with(&name));
        assert_eq!(encode(None), [0; 2 * WORDS]);
    }
}
