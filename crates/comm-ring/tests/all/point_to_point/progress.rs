//! The threads that make progress on background messages.

use std::io::IoSlice;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use comm_core::{
    ChannelId, ChannelKind, Comm, Error, Fabric, HostView, HostViewMut, Incoming, Outgoing, Received, Result,
    Source, StartedSend, TagMatch, Transport, Unsent, Until,
};
use comm_ring::{RingCommunicator, RingConfig};
use comm_sim::in_process::{self, InProcessConfig, InProcessFabric, InProcessTransport};
use comm_sim::{AlteredFabric, AlteredTransport};

use super::{networks, payload, run, run_everywhere, tight};

const PATIENCE: Duration = Duration::from_secs(120);

/// A message, and the number of messages that have ended well.
struct Counted(Vec<u32>, Arc<AtomicUsize>);

impl Outgoing for Counted {
    fn view(&self) -> Result<HostView<'_>> {
        Ok(HostView::new(&self.0))
    }

    fn complete(self: Box<Self>, outcome: Result<()>) {
        outcome.unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl Incoming for Counted {
    fn view_mut(&mut self) -> Result<HostViewMut<'_>> {
        Ok(HostViewMut::new(&mut self.0))
    }

    fn complete(self: Box<Self>, outcome: Result<Received>) {
        let received = outcome.unwrap();
        assert_eq!(self.0[..received.len], payload(received.source, received.tag, received.len));
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// Starts to receive a message, without a thread for it.
fn post_recv(comm: &Comm, tag: u64, len: usize, count: &Arc<AtomicUsize>) {
    let buffer = Box::new(Counted(vec![0; len], Arc::clone(count)));
    let _ = comm.communicator().post_recv(Source::Any, TagMatch::Is(tag), buffer, comm.options());
}

/// Starts to send a message, without a thread for it.
fn post_send(comm: &Comm, to: usize, tag: u64, len: usize, count: &Arc<AtomicUsize>) {
    let message = Box::new(Counted(payload(comm.rank(), tag, len), Arc::clone(count)));
    let _ = comm.communicator().post_send(to, tag, message, comm.options());
}

/// Makes progress until this many messages have ended.
fn await_all(comm: &Comm, messages: usize, count: &Arc<AtomicUsize>) {
    let progress = comm.communicator().progress().unwrap().upgrade().unwrap();
    progress.progress_until(&|| count.load(Ordering::SeqCst) == messages);
}

#[test]
fn a_thread_that_waits_needs_no_other_one() {
    run_everywhere(3, |comm| {
        let (count, others) = (Arc::default(), (0..3).filter(|rank| *rank != comm.rank()));
        let others: Vec<usize> = others.collect();
        for len in [1, 60, 500] {
            others.iter().for_each(|_| post_recv(&comm, len as u64, len, &count));
            others.iter().for_each(|other| post_send(&comm, *other, len as u64, len, &count));
        }
        await_all(&comm, 12, &count);
    });
}

/// Reports when it is dropped.
struct Reporter(Vec<u32>, mpsc::Sender<Vec<u32>>);

impl AsMut<[u32]> for Reporter {
    fn as_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

#[test]
fn messages_move_while_no_thread_makes_calls() {
    for network in networks() {
        crate::common::world(2, &network, &tight(), |comm| {
            let (other, (report, reported)) = (1 - comm.rank(), mpsc::channel());
            for len in [1, 60, 500] {
                let buffer = Reporter(vec![0; len], report.clone());
                drop(comm.recv_async(other, 7, buffer).unwrap());
                drop(comm.send_async(other, 7, payload(comm.rank(), 7, len)).unwrap());
                assert_eq!(reported.recv_timeout(PATIENCE).unwrap(), payload(other, 7, len));
            }
        });
    }
}

/// The background thread leaves some time after the last message.
#[test]
fn messages_move_however_long_after_the_last_ones_they_are_posted() {
    run(2, |comm| {
        let (other, (report, reported)) = (1 - comm.rank(), mpsc::channel());
        for round in 0..300 {
            thread::sleep(Duration::from_micros(5 * round));
            drop(comm.recv_async(other, round, Reporter(vec![0; 60], report.clone())).unwrap());
            drop(comm.send_async(other, round, payload(comm.rank(), round, 60)).unwrap());
            assert_eq!(reported.recv_timeout(PATIENCE).unwrap(), payload(other, round, 60));
        }
    });
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park_timeout(PATIENCE),
        }
    }
}

/// Returns whether a handle says within a long time that its message has arrived.
fn is_done_in_time<B>(work: &comm_core::Work<B>) -> bool {
    let began = std::time::Instant::now();
    while !work.is_done() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    work.is_done()
}

#[test]
fn a_message_moves_while_it_is_awaited_polled_or_waited_for_with_a_limit() {
    run_everywhere(2, |comm| {
        let (other, len) = (1 - comm.rank(), 500);
        for how in 0..3 {
            let coming = comm.recv_async(other, 7, vec![0_u32; len]).unwrap();
            drop(comm.send_async(other, 7, payload(comm.rank(), 7, len)).unwrap());
            let (received, _) = match how {
                0 => block_on(coming).unwrap(),
                1 => coming.wait_timeout(PATIENCE).ok().unwrap().unwrap(),
                _ => {
                    assert!(is_done_in_time(&coming));
                    coming.wait().unwrap()
                }
            };
            assert_eq!(received, payload(other, 7, len));
        }
    });
}

#[test]
fn calls_take_over_from_the_thread_that_drives_a_receive_that_takes_long() {
    run_everywhere(2, |comm| {
        let other = 1 - comm.rank();
        let last = comm.recv_async(other, 9, vec![0_u32; 60]).unwrap();
        for round in 0..30 {
            if round % 10 == 0 {
                // The background thread starts to drive.
                thread::sleep(Duration::from_millis(2));
            }
            let (message, mut into) = (payload(comm.rank(), 7, 60), [0; 60]);
            if (comm.rank() + round) % 2 == 0 {
                comm.send(other, 7, &message).unwrap();
                comm.recv(other, 7, &mut into).unwrap().exactly(60).unwrap();
            } else {
                comm.probe(other, 7).unwrap().exactly(60).unwrap();
                comm.recv(other, 7, &mut into).unwrap().exactly(60).unwrap();
                comm.send(other, 7, &message).unwrap();
            }
            assert_eq!(into[..], payload(other, 7, 60));
        }
        comm.send(other, 9, &payload(comm.rank(), 9, 60)).unwrap();
        assert_eq!(last.wait().unwrap().0, payload(other, 9, 60));
    });
}

#[test]
fn the_last_handle_can_be_dropped_while_another_thread_waits_for_long() {
    let (is_posted, is_dropped) = (Barrier::new(2), Barrier::new(2));
    run(2, |comm| {
        let other = 1 - comm.rank();
        if comm.rank() == 1 {
            is_posted.wait();
            comm.send(other, 7, &payload(1, 7, 5)).unwrap();
            is_dropped.wait();
            return comm.send(other, 9, &payload(1, 9, 5)).unwrap();
        }
        let own_worker = Comm::over(comm.shared_communicator());
        thread::scope(|scope| {
            let long = scope.spawn(move || {
                let mut into = [0; 5];
                own_worker.with_timeout(PATIENCE).recv(other, 9, &mut into).map(|_| into)
            });
            // The other thread drives, and the background thread goes to sleep.
            thread::sleep(Duration::from_millis(2));
            let coming = comm.recv_async(other, 7, [0_u32; 5]).unwrap();
            thread::sleep(Duration::from_millis(5));
            is_posted.wait();
            assert_eq!(coming.wait().unwrap().0[..], payload(1, 7, 5));
            drop(comm);
            is_dropped.wait();
            assert_eq!(long.join().unwrap().unwrap()[..], payload(1, 9, 5));
        });
    });
}

/// Runs a rank that counts the bytes of its messages that the transport accepted in each send.
fn run_counted(ranks: usize, rank: impl Fn(Comm, &AtomicUsize) + Sync) {
    in_process::run(ranks, &InProcessConfig::default(), |fabric| {
        let sends = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sends);
        let open =
            move |fabric: &InProcessFabric, channel: ChannelId, members: &[usize], until: Until<'_>| {
                let transport = fabric.open_among(channel, members, until)?;
                let (sends, is_it) = (Arc::clone(&counted), channel.kind == ChannelKind::PointToPoint);
                let send = move |transport: &mut InProcessTransport, to: usize, bytes: &[IoSlice<'_>]| {
                    let sent = transport.try_send(to, bytes)?;
                    sends.fetch_add(usize::from(is_it && sent > 0), Ordering::SeqCst);
                    Ok(sent)
                };
                Ok(AlteredTransport { transport, alteration: send })
            };
        let fabric = AlteredFabric { fabric, open };
        let comm = RingCommunicator::new(fabric, RingConfig::default(), PATIENCE).unwrap();
        rank(Comm::new(comm).with_timeout(PATIENCE), &sends);
    });
}

#[test]
fn messages_that_begin_one_after_the_other_are_sent_together() {
    const MESSAGES: usize = 64;
    run_counted(2, |comm, sends| {
        let (other, count) = (1 - comm.rank(), Arc::default());
        (0..MESSAGES).for_each(|at| post_recv(&comm, at as u64, 5, &count));
        comm.barrier().unwrap();
        (0..MESSAGES).for_each(|at| post_send(&comm, other, at as u64, 5, &count));
        // The first one does not wait for others.
        assert!(count.load(Ordering::SeqCst) > 0);
        await_all(&comm, 2 * MESSAGES, &count);
        assert!(sends.load(Ordering::SeqCst) <= MESSAGES / 4, "{sends:?}");
        comm.barrier().unwrap();
    });
}

/// A message, and the number of times that it was posted.
struct CountedPosts {
    message: Option<Counted>,
    posts: usize,
}

impl Unsent for CountedPosts {
    fn view(&self) -> Result<HostView<'_>> {
        self.message.as_ref().unwrap().view()
    }

    fn post(&mut self) -> Result<Box<dyn Outgoing>> {
        self.posts += 1;
        Ok(Box::new(self.message.take().unwrap()))
    }
}

#[test]
fn a_message_is_posted_only_if_it_is_not_sent_at_once() {
    const LONG: usize = 1 << 20;
    run(2, |comm| {
        let count = Arc::default();
        if comm.rank() == 1 {
            [1, LONG].into_iter().for_each(|len| post_recv(&comm, len as u64, len, &count));
            return await_all(&comm, 2, &count);
        }
        let posts = [1, LONG].map(|len| {
            let message = Some(Counted(payload(0, len as u64, len), Arc::clone(&count)));
            let mut message = CountedPosts { message, posts: 0 };
            let started = comm.communicator().start_send(1, len as u64, &mut message, comm.options());
            (started, message.posts)
        });
        assert!(
            matches!(posts, [(StartedSend::Ended(Ok(())), 0), (StartedSend::Pending { .. }, 1)]),
            "{posts:?}"
        );
        await_all(&comm, 1, &count);
    });
}

/// A message that cannot be posted.
struct Unpostable(Vec<u32>);

impl Unsent for Unpostable {
    fn view(&self) -> Result<HostView<'_>> {
        Ok(HostView::new(&self.0))
    }

    fn post(&mut self) -> Result<Box<dyn Outgoing>> {
        Err(Error::Cancelled)
    }
}

#[test]
fn a_message_whose_rest_cannot_be_posted_is_never_received() {
    let network = InProcessConfig::default().capacity(100);
    crate::common::world(2, &network, &tight(), |comm| {
        if comm.rank() == 1 {
            let received = comm.recv(0, 1, &mut [0_u32; 50]);
            assert!(received.is_err(), "{received:?}");
            return;
        }
        let started = comm.communicator().start_send(1, 1, &mut Unpostable(vec![7; 50]), comm.options());
        assert!(matches!(started, StartedSend::Ended(Err(Error::Cancelled))), "{started:?}");
        // It would be received as the rest of the message.
        let sent = comm.send(1, 1, &[8_u32; 50]);
        assert!(matches!(sent, Err(Error::Poisoned(_))), "{sent:?}");
    });
}

#[test]
fn sends_read_what_a_background_receive_waits_for() {
    const SENDS: usize = 16;
    run(2, |comm| {
        let count = Arc::default();
        if comm.rank() == 0 {
            post_recv(&comm, 7, 5, &count);
            comm.barrier().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), 0);
            (0..SENDS).for_each(|_| comm.send(1, 1, &[1_u8]).unwrap());
            assert_eq!(count.load(Ordering::SeqCst), 1);
        } else {
            comm.send(0, 7, &payload(1, 7, 5)).unwrap();
            comm.barrier().unwrap();
            (0..SENDS).for_each(|_| comm.recv(0, 1, &mut [0_u8]).unwrap().exactly(1).unwrap());
        }
    });
}
