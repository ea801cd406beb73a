//! The client against a server that sends altered, repeated and reordered answers in pieces.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use comm_sim::hostile::Input;

use super::*;
use crate::store::frame::FrameError;
use crate::store::torch::conversation::Conversation;

/// The longest value that is accepted: shorter than one that is sent, or far longer.
const LONGEST: [usize; 2] = [4000, 1 << 20];
/// The most memory that an operation allocates besides twice the bytes that were sent.
const ALLOCATED_MAX: u64 = 3 * (64 << 10);

fn answers() -> Vec<Vec<u8>> {
    let field = |value: &[u8]| [&(value.len() as u64).to_le_bytes(), value].concat();
    vec![
        field(b"value"),
        vec![0],
        1_i64.to_le_bytes().to_vec(),
        vec![1],
        field(&[9; 5000]),
        0_i64.to_le_bytes().to_vec(),
        field(b""),
    ]
}

/// Runs a drawn operation, and returns the value that it has read.
fn operate(conversation: &Conversation, operation: usize) -> Result<Option<Vec<u8>>, FrameError> {
    let soon = Instant::now() + Duration::from_millis(5);
    let number = |number: i64| Some(number.to_le_bytes().to_vec());
    Ok(match operation {
        0 => conversation.compare_set("k", b"", b"v")?,
        1 => conversation.set("k", b"v").map(|()| None)?,
        2 => number(conversation.add("k", 1)?),
        3 => conversation.delete("k").map(|_| None)?,
        4 => number(conversation.num_keys()?.cast_signed()),
        5 => conversation.get("k", soon)?,
        6 => conversation.peek("k")?,
        7 => conversation.missing(&["k", "k2"]).map(|_| None)?,
        _ => {
            assert!(!conversation.greet()?, "it cannot know the number");
            None
        }
    })
}

fn answer_wrongly(input: &mut Input) {
    let valid = answers();
    let start = input.below(valid.len());
    let sent = input.stream(&valid[start..]).concat();
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(&sent).unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    let (socket, bytes_max) = (Socket::from(OwnedFd::from(near)), *input.pick(&LONGEST));
    let conversation = Conversation { socket, deadline: Instant::now() + SOON, bytes_max };
    for _ in 0..4 {
        let (operation, mut outcome) = (input.below(9), None);
        let memory = allocation_counter::measure(|| outcome = Some(operate(&conversation, operation)));
        let most = ALLOCATED_MAX + 2 * sent.len() as u64;
        assert!(memory.bytes_max <= most, "{} bytes were allocated", memory.bytes_max);
        match outcome.unwrap() {
            Ok(None) => {}
            Ok(Some(value)) => {
                let is_sent = value.is_empty() || sent.windows(value.len()).any(|part| part == value);
                assert!(is_sent && value.len() <= bytes_max, "{value:?} was not sent");
            }
            Err(FrameError::TimedOut) => panic!("it waits after the end of the connection"),
            Err(FrameError::Corrupted(corruption)) => panic!("{corruption}"),
            Err(FrameError::Closed | FrameError::TooLong(_) | FrameError::Io(_)) => return,
        }
    }
}

comm_sim::hostile_input!(hostile_answers_are_errors: 3000, answer_wrongly);
