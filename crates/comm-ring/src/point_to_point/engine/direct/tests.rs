//! Tests of messages with and without operations between two engines in one thread.

use std::sync::{Arc, Mutex};

use comm_core::{ChannelId, ChannelKind, Fabric, GroupId, HostViewMut, Incoming, Loss, Result};
use comm_sim::in_process::{InProcessConfig, InProcessTransport, Release, run};

use super::super::{Payload, RecvBuffer};
use super::*;
use crate::RingConfig;
use crate::point_to_point::matching::MatchKey;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest message of these tests.
const LONGEST: usize = 300;
/// A key that matches all messages of the sender, which is rank 0.
const ALL: MatchKey = MatchKey { from: Source::Rank(0), tag: TagMatch::Any };

/// The tags and bytes of messages in the order in which they were received.
type Log = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

struct In(Vec<u8>, Log);

impl Incoming for In {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        Ok(HostViewMut::new(&mut self.0))
    }

    fn complete(mut self: Box<Self>, outcome: Result<Received>) {
        let received = outcome.unwrap();
        self.0.truncate(received.len);
        self.1.lock().unwrap().push((received.tag, self.0));
    }
}

struct End {
    engine: ProgressEngine,
    transport: InProcessTransport,
    log: Log,
}

impl End {
    fn pair(config: &InProcessConfig) -> [Self; 2] {
        let channel = ChannelId { group: GroupId::WORLD, kind: ChannelKind::PointToPoint };
        let ends = run(2, config, |fabric| {
            let transport = fabric.open(channel, fabric.now() + TIMEOUT).unwrap();
            let engine = ProgressEngine::new(fabric.group(), &RingConfig::default());
            End { engine, transport, log: Log::default() }
        });
        ends.try_into().ok().unwrap()
    }

    fn other(&self) -> usize {
        1 - self.engine.group.rank()
    }

    fn send_at_once(&mut self, tag: u64, message: &[u8]) -> Result<(), Option<PartlySent>> {
        let to = (self.other(), tag);
        self.engine.send_at_once(&mut self.transport, to, HostView::new(message))
    }

    fn other_key(&self) -> MatchKey {
        MatchKey { from: Source::Rank(self.other()), tag: TagMatch::Any }
    }

    /// Sends a message, or its rest after `partly`.
    fn send_with_operation(&mut self, tag: u64, message: &[u8], partly: Option<PartlySent>) {
        let payload = Payload::Copied(message.to_vec());
        let send = SendRequest::new((1, tag), (DType::U8, message.len()), payload);
        let request = self.engine.next_request();
        self.engine.send_rest(request, send, TIMEOUT, partly, &CallerBuffers::default());
    }

    fn recv_at_once(
        &mut self,
        key: MatchKey,
        buffer: &mut [u8],
        partly: &mut Option<PartlyReceived>,
    ) -> Result<Option<Received>, NeedsOperation> {
        self.recv_typed_at_once(key, (buffer, DType::U8), partly)
    }

    fn recv_typed_at_once(
        &mut self,
        key: MatchKey,
        buffer: (&mut [u8], DType),
        partly: &mut Option<PartlyReceived>,
    ) -> Result<Option<Received>, NeedsOperation> {
        let from = self.engine.only_source(key.from).ok_or(NeedsOperation)?;
        self.engine.recv_at_once(&mut self.transport, (from, key.tag), buffer, partly)
    }

    /// Receives a message, or its rest after `partly`, into `buffer`.
    fn recv_with_operation(&mut self, buffer: Vec<u8>, partly: Option<PartlyReceived>) {
        let capacity = (buffer.len(), DType::U8);
        let owned = RecvBuffer::Owned(Box::new(In(buffer, Arc::clone(&self.log))));
        let (request, recv) =
            (self.engine.next_request(), RecvRequest::new((ALL.from, ALL.tag), capacity, owned));
        self.engine.recv_rest(request, recv, TIMEOUT, partly, &mut CallerBuffers::default());
        self.notify_owners();
    }

    fn notify_owners(&mut self) {
        self.engine.take_finished().into_iter().for_each(|operation| operation.notify_owner(|error| error));
    }

    fn progress(&mut self) -> bool {
        let moved = self.engine.progress(&mut self.transport, &mut CallerBuffers::default(), true);
        self.notify_owners();
        moved
    }
}

fn message(tag: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (tag as usize).wrapping_mul(31).wrapping_add(at) as u8).collect()
}

#[test]
fn a_short_message_needs_no_operation() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    let mut buffer = [0; 100];
    assert_eq!(b.recv_at_once(ALL, &mut buffer, &mut None), Ok(None));
    for (tag, length) in [(5, 0), (6, 1), (u64::MAX, 100)] {
        assert_eq!(a.send_at_once(tag, &message(tag, length)), Ok(()));
        let received = b.recv_at_once(ALL, &mut buffer, &mut None).unwrap().unwrap();
        assert_eq!((received.source, received.tag, received.len), (0, tag, length));
        assert_eq!(buffer[..length], message(tag, length));
    }
    assert_eq!((a.engine.next, b.engine.next), (0, 0));
    assert_eq!(a.engine.peers[1].spent, b.engine.peers[0].returnable);
}

#[test]
fn a_message_that_is_sent_at_once_may_be_longer_than_one_that_an_operation_sends_eagerly() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    let limit = 4 * LONGEST;
    a.engine.eager_bytes = LONGEST;
    assert_eq!(a.send_at_once(1, &message(1, limit + 1)), Err(None));
    assert_eq!(a.send_at_once(2, &message(2, limit)), Ok(()));
    // Nobody receives it yet, so it is stored.
    while b.progress() {}
    b.recv_with_operation(vec![0; limit], None);
    assert_eq!(b.log.lock().unwrap().pop(), Some((2, message(2, limit))));
}

#[test]
fn messages_keep_their_order_and_bytes_with_and_without_operations() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut config = InProcessConfig::default().capacity(random.usize(1..2 * LONGEST));
        config.dribble = random.bool().then_some(seed);
        let [mut a, mut b] = End::pair(&config);
        let lengths: Vec<usize> = (0..100).map(|_| random.usize(..=LONGEST)).collect();
        let mut sent = 0;
        let mut posted = 0;
        while b.log.lock().unwrap().len() < lengths.len() {
            if sent < lengths.len() && random.bool() {
                let (tag, bytes) = (sent as u64, message(sent as u64, lengths[sent]));
                let at_once = if random.bool() { a.send_at_once(tag, &bytes) } else { Err(None) };
                if let Err(partly) = at_once {
                    a.send_with_operation(tag, &bytes, partly);
                }
                sent += 1;
            }
            if posted < lengths.len() && random.bool() {
                let (mut buffer, mut partly) = (vec![0; LONGEST], None);
                let tries = random.usize(..4);
                let received = (0..tries)
                    .find_map(|_| b.recv_at_once(ALL, &mut buffer, &mut partly).unwrap_or_default());
                match received {
                    Some(received) => {
                        buffer.truncate(received.len);
                        b.log.lock().unwrap().push((received.tag, buffer));
                    }
                    None => b.recv_with_operation(buffer, partly),
                }
                posted += 1;
            }
            if random.bool() {
                a.progress();
                b.progress();
            }
        }
        for (tag, (received, bytes)) in b.log.lock().unwrap().iter().enumerate() {
            assert_eq!((*received, bytes), (tag as u64, &message(tag as u64, lengths[tag])), "seed {seed}");
        }
        while a.progress() | b.progress() {}
        assert!(a.engine.operations.is_empty() && b.engine.operations.is_empty(), "seed {seed}");
        assert_eq!(a.engine.peers[1].spent, b.engine.peers[0].returnable, "seed {seed}");
    }
}

#[test]
fn a_message_that_does_not_fit_or_match_stays_for_an_operation() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    assert_eq!(a.send_at_once(3, &message(3, 50)), Ok(()));
    let mut buffer = [0; 50];
    let other = MatchKey { tag: TagMatch::Is(4), ..ALL };
    assert_eq!(b.recv_at_once(other, &mut buffer, &mut None), Err(NeedsOperation));
    assert_eq!(b.recv_at_once(ALL, &mut buffer[..49], &mut None), Err(NeedsOperation));
    let floats = b.recv_typed_at_once(ALL, (&mut buffer, DType::F32), &mut None);
    assert_eq!(floats, Err(NeedsOperation));
    assert_eq!(buffer, [0; 50]);
    let received = b.recv_at_once(MatchKey { tag: TagMatch::Is(3), ..ALL }, &mut buffer, &mut None);
    assert_eq!((received.unwrap().unwrap().len, buffer.to_vec()), (50, message(3, 50)));
}

#[test]
fn a_message_belongs_to_the_receive_that_was_posted_first() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    b.recv_with_operation(vec![0; 10], None);
    assert_eq!(a.send_at_once(1, &message(1, 10)), Ok(()));
    assert_eq!(b.recv_at_once(ALL, &mut [0; 10], &mut None), Err(NeedsOperation));
    b.progress();
    assert_eq!(*b.log.lock().unwrap(), [(1, message(1, 10))]);
    // An unexpected message is older than one that has not been read yet.
    assert_eq!(a.send_at_once(2, &message(2, 10)), Ok(()));
    b.progress();
    assert_eq!(a.send_at_once(3, &message(3, 10)), Ok(()));
    assert_eq!(b.recv_at_once(ALL, &mut [0; 10], &mut None), Err(NeedsOperation));
}

#[test]
fn messages_sent_at_once_use_at_most_the_credit_and_get_it_back() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default().capacity(4 << 20));
    let (bytes, mut buffer) = (message(0, 50_000), vec![0; 50_000]);
    let cost = credit_cost(bytes.len());
    for _ in 0..3 {
        let mut sent = 0;
        while a.send_at_once(0, &bytes) == Ok(()) {
            sent += 1;
        }
        assert!(sent > 0 && a.engine.peers[1].spent <= CREDIT);
        assert!(a.engine.peers[1].spent + cost > CREDIT);
        for _ in 0..sent {
            assert!(b.recv_at_once(ALL, &mut buffer, &mut None).unwrap().is_some());
        }
        // The credit has arrived, and must be read before the next message.
        assert_eq!(a.send_at_once(0, &bytes), Err(None));
        a.progress();
    }
}

/// Ends the engine of a rank, and sends the reason.
fn abort(end: &mut End) {
    end.engine.end_all(Error::Internal("the program stopped".into()));
    end.progress();
    while end.engine.linger(&mut end.transport).is_some() {}
}

#[test]
fn a_rank_that_only_sends_hears_of_the_end() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    abort(&mut b);
    assert_eq!(a.send_at_once(0, &[1]), Ok(()));
    assert!(matches!(a.engine.check_usable(), Err(Error::Poisoned(_))));
    assert_eq!(a.send_at_once(0, &[1]), Err(None));
}

#[test]
fn a_send_leaves_a_message_that_has_arrived_to_its_receive() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default());
    let mut buffer = [0; 100];
    assert_eq!(a.send_at_once(1, &message(1, 100)), Ok(()));
    for tag in 2..20 {
        for end in [&mut b, &mut a] {
            assert_eq!(end.send_at_once(tag, &message(tag, 100)), Ok(()));
            let received = end.recv_at_once(end.other_key(), &mut buffer, &mut None).unwrap().unwrap();
            assert_eq!(received.len, 100);
            assert_eq!(buffer[..], message(received.tag, 100));
        }
    }
    assert_eq!(b.send_at_once(20, &[]), Ok(()));
    abort(&mut b);
    assert_eq!(a.send_at_once(20, &[]), Ok(()));
    assert!(a.engine.check_usable().is_ok());
    a.progress();
    assert!(matches!(a.engine.check_usable(), Err(Error::Poisoned(_))));
}

#[test]
fn nothing_is_sent_at_once_while_something_else_waits() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default().capacity(4 << 20));
    a.engine.peers[1].queue.push_back(QueuedFrame::bare(Frame::Credit { amount: 1 }));
    assert_eq!(a.send_at_once(0, &[1]), Err(None));
    a.engine.peers[1].queue.clear();
    let (request, probe) = (a.engine.next_request(), MatchKey { from: Source::Any, tag: TagMatch::Any });
    a.engine.probe(request, probe, TIMEOUT);
    // A longer message would delay what others wait for.
    let (short, long) = (message(0, a.engine.eager_bytes), message(0, a.engine.eager_bytes + 1));
    assert_eq!(a.send_at_once(0, &long), Err(None));
    assert_eq!(b.recv_at_once(ALL, &mut [0], &mut None), Ok(None));
    assert_eq!(a.send_at_once(0, &short), Ok(()));
    assert!(a.engine.cancel(request, Error::Cancelled));
    assert_eq!(a.send_at_once(0, &long), Ok(()));
}

#[test]
fn a_message_whose_memory_is_still_read_is_not_sent_yet() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default().release(Release::OnConsume));
    let (bytes, mut buffer) = (message(1, 100), [0; 100]);
    for tag in [1, 2] {
        let partly = a.send_at_once(tag, &bytes).unwrap_err();
        assert!(partly.is_some());
        a.send_with_operation(tag, &bytes, partly);
        assert!(!a.progress() && a.engine.operations.len() == 1);
        assert!(b.recv_at_once(ALL, &mut buffer, &mut None).unwrap().is_some());
        assert!(a.progress() && a.engine.operations.is_empty());
    }
}

#[test]
fn nothing_follows_a_message_that_was_cut() {
    let [mut a, mut b] = End::pair(&InProcessConfig::default().capacity(100));
    b.recv_with_operation(vec![0; 150], None);
    let partly = a.send_at_once(1, &message(1, 150)).unwrap_err();
    a.send_with_operation(1, &message(1, 150), partly);
    a.engine.end_all(Error::Internal("the program stopped".into()));
    a.engine.report_death(2, &Loss::Reported { by: 3, detail: "as long as the rest".repeat(10) });
    for _ in 0..10 {
        assert!(b.log.lock().unwrap().is_empty(), "the report is not the rest of the message");
        a.engine.linger(&mut a.transport);
        b.progress();
    }
}
