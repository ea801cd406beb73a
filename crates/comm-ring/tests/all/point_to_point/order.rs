//! The order in which messages match receives.

use std::sync::atomic::{AtomicBool, Ordering};

use comm_core::{ANY_TAG, Source, TagMatch};

use super::{payload, run, run_everywhere};

#[test]
fn messages_between_two_ranks_do_not_overtake() {
    run_everywhere(2, |comm| {
        // Some are eager, others wait until the receiver asks for them, but all arrive in the order
        // of the sends.
        let lens = [1, 200, 0, 65, 64, 3, 500, 2];
        if comm.rank() == 0 {
            let sends: Vec<_> = lens
                .iter()
                .enumerate()
                .map(|(number, &len)| comm.send_async(1, 5, payload(0, number as u64, len)).unwrap())
                .collect();
            sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
        } else {
            for (number, len) in lens.into_iter().enumerate() {
                let mut buffer = vec![0; 500];
                let tag: TagMatch = if number % 2 == 0 { 5.into() } else { ANY_TAG };
                let from = if number % 3 == 0 { Source::Any } else { Source::Rank(0) };
                let received = comm.recv(from, tag, &mut buffer).unwrap();
                assert_eq!(received.len, len);
                assert_eq!(buffer[..len], payload(0, number as u64, len));
            }
        }
    });
}

#[test]
fn pending_receives_match_messages_in_the_order_of_posting() {
    run_everywhere(2, |comm| {
        if comm.rank() == 0 {
            let first = comm.recv_async(Source::Any, ANY_TAG, vec![0_u32; 300]).unwrap();
            let second = comm.recv_async(1, 7, vec![0_u32; 300]).unwrap();
            let third = comm.recv_async(1, ANY_TAG, vec![0_u32; 300]).unwrap();
            let fourth = comm.recv_async(Source::Any, 7, vec![0_u32; 300]).unwrap();
            comm.send(1, 0, &[0_u8]).unwrap();
            let got = [first, second, third, fourth].map(|work| {
                let (buffer, received) = work.wait().unwrap();
                (received.tag, buffer[0])
            });
            // The message with tag 3 skips the receives of tag 7, and no others.
            assert_eq!(got, [(7, 1), (7, 2), (3, 3), (7, 4)]);
        } else {
            comm.recv(0, 0, &mut [0_u8]).unwrap().exactly(1).unwrap();
            comm.send(0, 7, &vec![1_u32; 300]).unwrap();
            comm.send(0, 7, &[2_u32]).unwrap();
            comm.send(0, 3, &vec![3_u32; 300]).unwrap();
            comm.send(0, 7, &[4_u32]).unwrap();
        }
    });
}

#[test]
fn tags_are_received_in_any_order() {
    run_everywhere(2, |comm| {
        let tags = || 0..20_u64;
        let len = |tag: u64| tag as usize * 10;
        if comm.rank() == 0 {
            let sends: Vec<_> =
                tags().map(|tag| comm.send_async(1, tag, payload(0, tag, len(tag))).unwrap()).collect();
            sends.into_iter().for_each(|send| drop(send.wait().unwrap()));
        } else {
            for tag in tags().rev() {
                let mut buffer = vec![0; len(tag)];
                comm.recv(0, tag, &mut buffer).unwrap().exactly(buffer.len()).unwrap();
                assert_eq!(buffer, payload(0, tag, len(tag)));
            }
        }
    });
}

#[test]
fn a_receive_from_any_source_starves_no_rank() {
    const LAST: u64 = 2;
    let (has_received, quiet) = (AtomicBool::new(false), AtomicBool::new(true));
    run(5, |comm| match comm.rank() {
        0 => {
            let (mut flood, mut ended) = (0_u64, 0);
            while ended < 3 {
                let received = comm.recv(Source::Any, ANY_TAG, &mut [0_u64]).unwrap();
                flood += 1;
                if flood == 1000 {
                    quiet.store(false, Ordering::Relaxed);
                }
                if received.source == 4 {
                    has_received.store(true, Ordering::Relaxed);
                }
                ended += u64::from(received.tag == LAST);
            }
        }
        4 => {
            while quiet.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            comm.send(0, 1, &[0_u64]).unwrap();
        }
        // These do not stop until the message of rank 4 has been received.
        _ => {
            while !has_received.load(Ordering::Relaxed) {
                comm.send(0, 1, &[0_u64]).unwrap();
            }
            comm.send(0, LAST, &[0_u64]).unwrap();
        }
    });
}
