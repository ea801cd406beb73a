//! A rank that lies in every field of its control messages and of the headers of its data, in
//! virtual time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::IoSlice;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Comm, Error, Fabric, ReduceOp, Result, ShrinkOptions, Transport, Until,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::hostile::Input;
use comm_sim::network::{self, FaultPlan, NetworkFabric, NetworkTransport, VirtualClock};
use comm_sim::{AlteredFabric, AlteredTransport};

use crate::point_to_point::hostile::channels;

const RANKS: usize = 3;
const LIAR: usize = 1;
/// The other ranks.
const HONEST: [usize; 2] = [0, 2];
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time after its deadline by which a call has ended.
const GRACE: Duration = Duration::from_secs(1);
/// The length of the header of a message, also of one between two ranks.
const HEADER_BYTES: usize = 32;

/// Sends to a rank, in place of a transport.
type SendFn = Box<dyn FnMut(&mut NetworkTransport, usize, &[IoSlice<'_>]) -> Result<usize> + Send>;

/// Creates a communicator whose channels of each kind send with the function that `send` returns.
fn communicator(
    fabric: NetworkFabric,
    send: impl Fn(ChannelKind) -> SendFn + Send + Sync + 'static,
) -> Result<Comm> {
    let open = move |fabric: &NetworkFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
        let transport = fabric.open_among(channel, members, until)?;
        Ok(AlteredTransport { transport, alteration: send(channel.kind) })
    };
    let ring = RingCommunicator::new(AlteredFabric { fabric, open }, RingConfig::default(), TIMEOUT)?;
    Ok(Comm::new(ring).with_timeout(TIMEOUT))
}

/// Returns control frames of all kinds, which ranks have sent.
fn frames() -> &'static [Vec<u8>] {
    static FRAMES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FRAMES.get_or_init(|| {
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        for course in 0..4 {
            network::run(RANKS, 0, &FaultPlan::calm(), |fabric, clock| {
                let sent = Arc::clone(&sent);
                let comm = communicator(fabric, move |kind| recording(kind, Arc::clone(&sent))).unwrap();
                follow(comm, &clock, course);
            });
        }
        let sent = sent.lock().unwrap();
        let (mut rest, mut frames) = (&sent[..], Vec::new());
        while let Some((length, _)) = rest.split_first_chunk::<4>() {
            let (frame, more) = rest.split_at(4 + u32::from_le_bytes(*length) as usize);
            frames.push(frame.to_vec());
            rest = more;
        }
        frames.sort();
        frames.dedup();
        frames
    })
}

/// Sends, and keeps all bytes that are sent on a control channel.
fn recording(kind: ChannelKind, log: Arc<Mutex<Vec<u8>>>) -> SendFn {
    Box::new(move |transport, to, pieces| {
        let sent = transport.try_send(to, pieces)?;
        if kind == ChannelKind::Control {
            let bytes = pieces.iter().flat_map(|piece| piece.iter());
            log.lock().unwrap().extend(bytes.take(sent));
        }
        Ok(sent)
    })
}

/// Makes calls that end well, one of them late, that differ, or that are missing on a rank that
/// dies.
fn follow(comm: Comm, clock: &VirtualClock, course: usize) {
    let is_last = comm.rank() == RANKS - 1;
    if is_last && course == 1 {
        clock.sleep(TIMEOUT / 2);
    } else if is_last && course == 2 {
        clock.sleep(2 * TIMEOUT);
    }
    let count = if is_last && course == 3 { 5 } else { 4 };
    if comm.all_reduce(&mut vec![1_u64; count], ReduceOp::Sum).is_ok() {
        return drop(comm.finalize());
    }
    drop(comm.shrink(&ShrinkOptions::default().timeout(2 * TIMEOUT).patience(TIMEOUT / 2)));
}

/// Checks that an error is typed, and names ranks of the group.
fn check_error(error: &Error) {
    let named = match error.root_cause() {
        Error::PeerLost { peer, .. } => vec![*peer],
        Error::Aborted { by, .. } => vec![*by],
        Error::Timeout { waiting_for, .. } => waiting_for.clone(),
        Error::Internal(_) => panic!("{error}"),
        _ => Vec::new(),
    };
    assert!(named.iter().all(|rank| *rank < RANKS), "{error}");
}

/// Makes a call, which must end by its deadline.
fn timed<T>(clock: &VirtualClock, timeout: Duration, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = clock.elapsed();
    let outcome = call();
    let took = clock.elapsed() - began;
    assert!(took < timeout + GRACE, "it took {took:?} of {timeout:?}");
    outcome.inspect_err(check_error)
}

/// Makes calls among all ranks, then in a group of those that remain. The sums are those of all
/// ranks if the liar takes part with the right values.
fn work(comm: &Comm, clock: &VirtualClock, liar_takes_part: bool) -> Result<()> {
    let mut has_failed = false;
    for call in 0..4_u64 {
        let mut sum = [call + comm.rank() as u64; 9];
        let outcome = timed(clock, TIMEOUT, || comm.all_reduce(&mut sum, ReduceOp::Sum));
        if outcome.is_ok() {
            assert!(liar_takes_part && !has_failed, "a call succeeded without a rank");
            assert_eq!(sum, [3 * call + 3; 9]);
        }
        has_failed |= outcome.is_err();
    }
    let other = HONEST[usize::from(comm.rank() == HONEST[0])];
    let (mut got, value) = ([0_u64; 5], [comm.rank() as u64 + 7; 5]);
    if timed(clock, TIMEOUT, || comm.send_recv((other, 1), &value, (other, 1), &mut got)).is_ok() {
        assert_eq!(got, [other as u64 + 7; 5]);
    }
    let options = ShrinkOptions::default().timeout(2 * TIMEOUT).patience(TIMEOUT / 2);
    let shrunk = timed(clock, 2 * TIMEOUT, || comm.shrink(&options))?;
    let mut sum = [comm.rank() as u64 + 1];
    if timed(clock, TIMEOUT, || shrunk.comm.all_reduce(&mut sum, ReduceOp::Sum)).is_ok() {
        let expected: u64 = shrunk.ranks.iter().map(|rank| *rank as u64 + 1).sum();
        assert!(shrunk.ranks.contains(&LIAR) || sum == [expected], "{sum:?} of {:?}", shrunk.ranks);
    }
    Ok(())
}

/// Sends drawn bytes on all channels until the other ranks have left.
fn send_anything(fabric: &NetworkFabric, clock: &VirtualClock, input: &mut Input) {
    let mut channels = channels(fabric);
    let mut into = [0; 4096];
    let chosen: Vec<Vec<u8>> = (0..8).map(|_| input.pick(frames()).clone()).collect();
    let sent = input.stream(&chosen).concat();
    for piece in input.cut(&sent) {
        let to = *input.pick(&HONEST);
        // All are dropped if the other rank has left.
        drop(channels[0].try_send(to, &[IoSlice::new(piece)]));
        if input.one_in(4) {
            let bytes = input.alter(&[0; HEADER_BYTES]);
            drop(channels[1 + input.below(2)].try_send(to, &[IoSlice::new(&bytes)]));
        }
        clock.sleep(Duration::from_millis(1 << input.below(9)));
    }
    let end = clock.elapsed() + TIMEOUT * input.below(8) as u32;
    while clock.elapsed() < end {
        for from in HONEST {
            channels.iter_mut().for_each(|channel| drop(channel.try_recv(from, &mut into)));
        }
        clock.sleep(TIMEOUT / 4);
    }
}

/// Sends with drawn changes: of all bytes of a control channel, and otherwise of headers.
fn lying(kind: ChannelKind, input: Arc<Mutex<Input>>) -> SendFn {
    let mut rest: [Vec<u8>; RANKS] = Default::default();
    Box::new(move |transport, to, pieces| {
        if !rest[to].is_empty() {
            let sent = transport.try_send(to, &[IoSlice::new(&rest[to])])?;
            rest[to].drain(..sent);
            return Ok(0);
        }
        let mut input = input.lock().unwrap();
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let altered = match kind {
            _ if !input.one_in(6) => return transport.try_send(to, pieces),
            ChannelKind::Control => {
                let frame = input.pick(frames()).clone();
                input.stream(&[bytes.clone(), frame]).concat()
            }
            _ => {
                let (header, payload) = bytes.split_at(bytes.len().min(HEADER_BYTES));
                let mut altered = input.alter(header);
                // Otherwise the payload would be altered, which no rank can detect.
                altered.resize(header.len(), 0);
                [&altered, payload].concat()
            }
        };
        let sent = transport.try_send(to, &[IoSlice::new(&altered)])?;
        rest[to] = altered[sent..].to_vec();
        Ok(bytes.len())
    })
}

comm_sim::hostile_input!(a_rank_that_sends_anything_neither_hangs_nor_misleads_the_others: 400, |input| {
    let (seed, input) = (input.below(256) as u64, Mutex::new(input.clone()));
    network::run(RANKS, seed, &FaultPlan::calm(), |fabric, clock| {
        if fabric.group().rank() == LIAR {
            return send_anything(&fabric, &clock, &mut input.lock().unwrap());
        }
        let ring = timed(&clock, TIMEOUT, || RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT));
        if let Ok(ring) = ring {
            drop(work(&Comm::new(ring).with_timeout(TIMEOUT), &clock, false));
        }
    });
});

comm_sim::hostile_input!(a_rank_that_lies_about_its_messages_neither_hangs_nor_misleads_the_others: 400, |input| {
    let (seed, input) = (input.below(256) as u64, Arc::new(Mutex::new(input.clone())));
    network::run(RANKS, seed, &FaultPlan::calm(), |fabric, clock| {
        if fabric.group().rank() == LIAR {
            let input = Arc::clone(&input);
            let comm = communicator(fabric, move |kind| lying(kind, Arc::clone(&input)));
            let Ok(comm) = comm else { return };
            for call in 0..4_u64 {
                drop(comm.all_reduce(&mut [call + 1; 9], ReduceOp::Sum));
            }
            return drop(comm.shrink(&ShrinkOptions::default().timeout(2 * TIMEOUT).patience(TIMEOUT / 2)));
        }
        let ring = timed(&clock, TIMEOUT, || RingCommunicator::new(fabric, RingConfig::default(), TIMEOUT));
        if let Ok(ring) = ring {
            drop(work(&Comm::new(ring).with_timeout(TIMEOUT), &clock, true));
        }
    });
});
