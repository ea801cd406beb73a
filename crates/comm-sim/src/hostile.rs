//! Tests against bytes that no correct peer sends: [`hostile_bytes!`](crate::hostile_bytes) for
//! every decoder, and [`hostile_input!`](crate::hostile_input) for what has a state, such as a
//! handshake, a server, or memory that is shared with the peer.

mod fuzz;
mod input;

use std::fmt::Debug;

pub use fuzz::fuzz;
pub use input::Input;

/// The number of hostile messages that are created from each example.
const MESSAGES: u64 = 1000;
/// The number of bytes that a decoder may allocate per byte of a message, and for an empty message.
const ALLOCATED_PER_BYTE: u64 = 64;
const ALLOCATED_ANYWAY: u64 = 4096;

/// Defines a test of a decoder, given examples of its messages, a function that encodes a message,
/// and one that decodes bytes to a message if they are valid.
///
/// The test checks that
///
/// - each example is decoded to itself, but not if bytes are missing or added;
/// - no bytes make the decoder panic or allocate more than their length justifies;
/// - a message that is decoded from hostile bytes survives being encoded and decoded again.
///
/// The crate of the test must depend on `allocation-counter`.
///
/// ```
/// use comm_core::wire;
///
/// comm_sim::hostile_bytes!(numbers: [1_u16, 700], |number| number.to_le_bytes().to_vec(), |bytes| {
///     wire::decode(bytes, |r| r.get::<u16>()).ok()
/// });
/// ```
#[macro_export]
macro_rules! hostile_bytes {
    ($name:ident: $examples:expr, $encode:expr, $decode:expr) => {
        #[test]
        fn $name() {
            $crate::hostile::check($examples, $encode, $decode, |run| {
                ::allocation_counter::measure(run).bytes_max
            });
        }
    };
}

/// Runs the test that [`hostile_bytes!`](crate::hostile_bytes) defines. `measure` runs a function
/// and returns the largest number of bytes that it had allocated at any time.
pub fn check<T: Debug + PartialEq>(
    examples: impl IntoIterator<Item = T>,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Option<T>,
    measure: impl Fn(&mut dyn FnMut()) -> u64,
) {
    let decode = |bytes: &[u8]| {
        let mut decoded = None;
        let allocated = measure(&mut || decoded = decode(bytes));
        let most = ALLOCATED_ANYWAY + ALLOCATED_PER_BYTE * bytes.len() as u64;
        assert!(allocated <= most, "{allocated} bytes were allocated for {bytes:x?}");
        decoded
    };
    for example in examples {
        let bytes = encode(&example);
        assert_eq!(decode(&bytes).as_ref(), Some(&example), "{bytes:x?}");
        for end in 0..bytes.len() {
            assert_ne!(decode(&bytes[..end]).as_ref(), Some(&example), "cut at {end}: {bytes:x?}");
        }
        assert_ne!(
            decode(&[&bytes[..], &[0]].concat()).as_ref(),
            Some(&example),
            "a byte too many: {bytes:x?}"
        );
        for seed in 0..MESSAGES {
            let hostile = Input::new(&fuzz::input_of(seed)).alter(&bytes);
            if let Some(message) = decode(&hostile) {
                assert_eq!(decode(&encode(&message)).as_ref(), Some(&message), "{hostile:x?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_numbers(decode: impl Fn(&[u8]) -> Option<Vec<u8>>, allocated: impl Fn(&[u8]) -> u64) {
        let last = std::cell::RefCell::new(Vec::new());
        let decode = |bytes: &[u8]| {
            last.borrow_mut().clear();
            last.borrow_mut().extend_from_slice(bytes);
            decode(bytes)
        };
        let measure = |run: &mut dyn FnMut()| {
            run();
            allocated(&last.borrow())
        };
        check([vec![3, 2, 1]], |list| [&[list.len() as u8], &list[..]].concat(), decode, measure);
    }

    /// Decodes a count and that many bytes.
    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        let (&count, list) = bytes.split_first()?;
        (list.len() == usize::from(count)).then(|| list.to_vec())
    }

    #[test]
    fn a_strict_decoder_passes() {
        check_numbers(decode, |_| 0);
    }

    #[test]
    #[should_panic(expected = "a byte too many")]
    fn a_decoder_that_ignores_the_end_fails() {
        check_numbers(|bytes| bytes.get(1..=usize::from(*bytes.first()?)).map(<[u8]>::to_vec), |_| 0);
    }

    #[test]
    #[should_panic(expected = "bytes were allocated")]
    fn a_decoder_that_allocates_by_a_count_fails() {
        check_numbers(decode, |bytes| bytes.first().map_or(0, |count| u64::from(*count) << 10));
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_decoder_that_panics_fails() {
        check_numbers(|bytes| decode(&bytes[..bytes.len().max(1)]), |_| 0);
    }
}
