//! Tests of two engines in one thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Fabric, GroupId, HostView, HostViewMut, Incoming, Outgoing, Received, Result,
    Source, TagMatch,
};
use comm_sim::in_process::{InProcessConfig, InProcessTransport, run};

use super::*;
use crate::point_to_point::frame::Frame;
use crate::point_to_point::matching::MatchKey;

const TIMEOUT: Duration = Duration::from_secs(20);

/// The operations that have ended, in order: the length of a send, or the tag of a receive.
type Log = Arc<Mutex<Vec<u64>>>;

struct Out(Vec<u8>, Log);

impl Outgoing for Out {
    fn view(&self) -> Result<HostView<'_>> {
        Ok(HostView::new(&self.0))
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        outcome.unwrap();
        self.1.lock().unwrap().push(self.0.len() as u64);
    }
}

struct In(Vec<u8>, Log);

impl Incoming for In {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        Ok(HostViewMut::new(&mut self.0))
    }

    fn complete(self: Box<Self>, outcome: Result<Received>) {
        self.1.lock().unwrap().push(outcome.unwrap().tag);
    }
}

/// One rank: its engine, its transport and its log.
struct End {
    engine: ProgressEngine,
    transport: InProcessTransport,
    log: Log,
}

impl End {
    fn pair(config: &RingConfig) -> [Self; 2] {
        let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::PointToPoint };
        let ends = run(2, &InProcessConfig::default(), |fabric| {
            let transport = fabric.open(channel, fabric.now() + TIMEOUT).unwrap();
            End { engine: ProgressEngine::new(fabric.group(), config), transport, log: Log::default() }
        });
        ends.try_into().ok().unwrap()
    }

    fn send(&mut self, to: usize, tag: u64, len: usize) {
        let (request, message) =
            (self.engine.next_request(), Box::new(Out(vec![7; len], Arc::clone(&self.log))));
        self.engine.send(
            request,
            SendRequest::new((to, tag), (DType::U8, len), Payload::Owned(message)),
            TIMEOUT,
            &CallerBuffers::default(),
        );
    }

    fn recv(&mut self, from: Source, tag: TagMatch, len: usize) {
        let (request, buffer) =
            (self.engine.next_request(), Box::new(In(vec![0; len], Arc::clone(&self.log))));
        let recv = RecvRequest::new((from, tag), (len, DType::U8), RecvBuffer::Owned(buffer));
        self.engine.recv(request, recv, TIMEOUT, &mut CallerBuffers::default());
    }

    fn progress(&mut self) -> bool {
        let moved = self.engine.progress(&mut self.transport, &mut CallerBuffers::default(), true);
        self.engine.take_finished().into_iter().for_each(|operation| operation.notify_owner(|error| error));
        moved
    }

    fn log(&self) -> Vec<u64> {
        self.log.lock().unwrap().clone()
    }
}

/// Makes progress on both until nothing moves.
fn exchange_until_idle([a, b]: &mut [End; 2]) {
    while a.progress() | b.progress() {}
}

fn small() -> RingConfig {
    let mut config = RingConfig::default();
    (config.eager_bytes, config.part_bytes) = (10, 10);
    config
}

#[test]
fn sends_that_may_not_be_announced_wait_in_order() {
    let mut ends = End::pair(&small());
    ends[0].engine.rts_max = 2;
    (1..=6).for_each(|tag| ends[0].send(1, tag, 20));
    // This one is short enough to be eager, but must not overtake the others.
    ends[0].send(1, 7, 1);
    exchange_until_idle(&mut ends);
    assert_eq!(ends[1].engine.peers[0].received_rts.len(), 2);
    for count in 1..=7 {
        ends[1].recv(Source::Any, TagMatch::Any, 20);
        exchange_until_idle(&mut ends);
        assert_eq!(ends[1].log(), (1..=count).collect::<Vec<_>>());
    }
    assert_eq!(ends[0].log().len(), 7);
}

#[test]
fn engines_keep_no_state_after_all_operations_have_ended() {
    let mut ends = End::pair(&small());
    for round in 0..50 {
        for tag in 0..20_u64 {
            let len = (tag as usize * 7 + round) % 40;
            ends[0].send(1, tag, len);
            ends[1].send(0, tag, len);
        }
        if round % 2 == 0 {
            exchange_until_idle(&mut ends);
        }
        for end in &mut ends {
            (0..20).rev().for_each(|tag| end.recv(Source::Any, TagMatch::Is(tag), 40));
        }
        exchange_until_idle(&mut ends);
    }
    for (end, other) in [(&ends[0], 1), (&ends[1], 0)] {
        let (engine, peer) = (&end.engine, &end.engine.peers[other]);
        assert!(
            engine.operations.is_empty() && engine.messages.is_empty() && engine.deadlines.len() == (0, 0)
        );
        assert_eq!((engine.background, engine.any_source, peer.pending), (0, 0, 0));
        assert!(
            peer.sent_rts.is_empty() && peer.received_rts.is_empty() && peer.incoming_transfers.is_empty()
        );
        assert!(!peer.has_outgoing() && peer.unqueued.is_empty());
        // The peer has not returned the rest of the credit yet.
        assert_eq!(peer.spent, ends[other].engine.peers[1 - other].returnable);
        assert_eq!(end.log().len(), 50 * 40);
        assert!(engine.peek(MatchKey { from: Source::Any, tag: TagMatch::Any }).is_none());
    }
}

#[test]
fn unexpected_messages_use_at_most_the_credit() {
    let mut ends = End::pair(&RingConfig::default());
    (0..100_000).for_each(|_| ends[0].send(1, 5, 0));
    (0..200).for_each(|_| ends[0].send(1, 6, 60_000));
    exchange_until_idle(&mut ends);
    let held = |message: &UnexpectedMessage| match &message.body {
        UnexpectedBody::Whole(bytes) | UnexpectedBody::Arriving(bytes) => credit_cost(bytes.len()),
        UnexpectedBody::Rts(_) | UnexpectedBody::Local(_) => 0,
    };
    let total: u64 = ends[1].engine.messages.values().map(held).sum();
    assert!(total <= CREDIT && total > CREDIT / 2, "{total}");
    (0..100_000).for_each(|_| ends[1].recv(Source::Rank(0), TagMatch::Is(5), 0));
    (0..200).for_each(|_| ends[1].recv(Source::Rank(0), TagMatch::Is(6), 60_000));
    exchange_until_idle(&mut ends);
    assert_eq!(ends[1].log().len(), 100_200);
    assert_eq!(ends[0].log().len(), 100_200);
}

/// Returns engines in the middle of a large message with tag 1, with both receives posted.
fn half_way(len: usize, others: usize) -> [End; 2] {
    let mut ends = End::pair(&small());
    ends[0].send(1, 1, len);
    ends[1].recv(Source::Rank(0), TagMatch::Is(1), len);
    (0..others).for_each(|_| ends[1].recv(Source::Rank(0), TagMatch::Is(2), 10));
    for at in [0, 1, 0] {
        ends[at].progress();
    }
    assert!(ends[0].engine.peers[1].has_frames(), "the whole message was sent at once");
    ends
}

#[test]
fn small_messages_interleave_with_the_parts_of_a_large_one() {
    let mut ends = half_way(200_000, 5);
    (0..5).for_each(|_| ends[0].send(1, 2, 10));
    exchange_until_idle(&mut ends);
    assert_eq!(ends[1].log(), [2, 2, 2, 2, 2, 1]);
}

#[test]
fn many_small_messages_do_not_block_a_large_one() {
    let mut ends = half_way(20_000, 10_000);
    (0..10_000).for_each(|_| ends[0].send(1, 2, 10));
    exchange_until_idle(&mut ends);
    let at = ends[1].log().iter().position(|tag| *tag == 1).unwrap();
    assert!(at < 9000, "after {at} small messages");
}

/// Returns a random frame and its body. The numbers are so small that they are often valid.
fn some_frame(random: &mut fastrand::Rng) -> Vec<u8> {
    let (tag, length, id) = (random.u64(..3), random.u64(..30), random.u64(..4));
    let frame = match random.u8(..20) {
        0..=4 => Frame::Eager { tag, dtype: DType::U8, length },
        5..=9 => Frame::Rts { tag, dtype: DType::U8, length, id },
        10..=12 => Frame::Cts { id },
        13..=16 => Frame::Data { length, id },
        17 => Frame::Credit { amount: length },
        18 if random.u8(..5) == 0 => Frame::Goodbye,
        19 if random.u8(..5) == 0 => Frame::Abort { length, by: id },
        _ => Frame::Eager { tag, dtype: DType::F32, length: 4 * length },
    };
    let mut bytes = frame.encode().to_vec();
    if random.u8(..50) == 0 {
        bytes[random.usize(..Frame::BYTES)] ^= 1 << random.u8(..8);
    }
    let payload = match frame {
        Frame::Eager { length, .. } | Frame::Data { length, .. } | Frame::Abort { length, .. } => length,
        _ => 0,
    };
    bytes.extend((0..payload).map(|_| random.u8(..)));
    bytes
}

#[test]
fn random_frames_are_handled_or_refused() {
    let mut ended = 0;
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ends = End::pair(&small());
        for _ in 0..random.usize(1..40) {
            match random.u8(..3) {
                0 => ends[1].send(0, random.u64(..3), random.usize(..30)),
                1 => ends[1].recv(Source::Any, TagMatch::Is(random.u64(..3)), random.usize(..60)),
                _ => {}
            }
            let bytes = some_frame(&mut random);
            if ends[0].transport.try_send(1, &[std::io::IoSlice::new(&bytes)]).is_err() {
                break;
            }
            while ends[1].engine.progress(&mut ends[1].transport, &mut CallerBuffers::default(), true) {}
            // The operations may have failed or completed.
            ends[1].engine.take_finished().clear();
        }
        let engine = &ends[1].engine;
        ended += usize::from(engine.poison.is_some() || !engine.peers[0].is_alive());
        assert!(engine.peers[0].peer_spent <= CREDIT);
    }
    // Most frames are invalid, and are refused.
    assert!(ended > 300, "{ended}");
}

/// Also if the message that exceeds it is short, and a receive waits for it.
#[test]
fn a_peer_that_exceeds_its_credit_is_lost() {
    const PAYLOAD: usize = 2000;
    let [mut a, mut b] = End::pair(&RingConfig::default());
    let mut send = |tag| {
        let frame = Frame::Eager { tag, dtype: DType::U8, length: PAYLOAD as u64 };
        let bytes = [&frame.encode()[..], &[7; PAYLOAD]].concat();
        assert_eq!(a.transport.try_send(1, &[std::io::IoSlice::new(&bytes)]).unwrap(), bytes.len());
    };
    let messages = CREDIT / credit_cost(PAYLOAD);
    for _ in 0..messages {
        send(1);
        while b.progress() {}
    }
    assert!(b.engine.peers[0].is_alive());
    b.engine.recv(
        0,
        RecvRequest::new(
            (Source::Rank(0), TagMatch::Is(2)),
            (PAYLOAD, DType::U8),
            RecvBuffer::Staged(vec![]),
        ),
        TIMEOUT,
        &mut CallerBuffers::default(),
    );
    send(2);
    while b.progress() {}
    assert!(!b.engine.peers[0].is_alive());
    assert!(b.engine.take_outcome(0).unwrap().result.is_err());
}
