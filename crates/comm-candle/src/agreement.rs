//! The agreement of all ranks before data moves: either all can continue, or all learn the first
//! rank that cannot and its error.

use comm_core::Comm;

use crate::{Error, Place, Result};

/// The size in bytes of a variable's name and of an error text that ranks exchange; longer ones are
/// truncated.
const WORDS: usize = 512;

/// Returns this rank's result if all ranks can continue. If one cannot, none does: that rank
/// returns its own error, and the others return it as [`Error::Refused`]. This is a collective;
/// without errors it costs one all-reduce of a few bytes.
///
/// Each of `marks` becomes the largest value of any rank. All ranks pass the same number of them.
pub(crate) fn agree_to_continue<M: Place, T>(
    comm: &Comm<M>,
    own: Result<T>,
    marks: &mut Vec<u8>,
) -> Result<T> {
    marks.push(u8::from(own.is_err()));
    M::largest(comm, marks)?;
    if marks.pop() == Some(0) {
        return own;
    }
    let own = own.err();
    let first = first_refusal(comm, own.as_ref())?;
    Err(own.unwrap_or(first))
}

/// Returns the error of the first rank that has one, as other ranks return it.
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

/// Encodes the variable and the text of an error.
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

/// Decodes a text of another process, without its padding.
fn decode(bytes: &[u8; WORDS]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_long_ones_are_truncated_between_characters() {
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
