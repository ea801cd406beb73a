//! Ranks as threads that meet in one room: the plainest communicator there is, which can be told to
//! fail.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use comm_core::{
    Allocate, Buffers, Call, CallOptions, Comm, Communicator, During, Error, Group, GroupId, Groups,
    HostCommunicator, HostView, HostViewMut, Incoming, Membership, Outgoing, PointToPoint, Received, RecvBuf,
    RecvFrom, ReduceOp, Reduction, Result, SendTo, Shape, Source, TagMatch,
};

/// One rank's call: what it is, and its contribution.
type Contribution = (String, Vec<u8>);

#[derive(Default)]
struct State {
    round: usize,
    arrived: usize,
    contributions: Vec<Option<Contribution>>,
    /// The contributions to the previous round.
    complete: Arc<Vec<Contribution>>,
    failure: Option<Error>,
}

struct Room {
    size: usize,
    state: Mutex<State>,
    change: Condvar,
    /// The rank and the round in which it fails.
    fault: Option<(usize, usize)>,
}

/// Runs `rank_main` on this many ranks and returns what they returned, in rank order.
pub(crate) fn on_ranks<R: Send>(size: usize, rank_main: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    meet(size, None, |comm, _| rank_main(comm))
}

/// The same, for ranks that want to know how far the others have come.
pub(crate) fn on_watching_ranks<R: Send>(
    size: usize,
    rank_main: impl Fn(Comm, &Watch) -> R + Sync,
) -> Vec<R> {
    meet(size, None, rank_main)
}

/// The same, but `rank` fails in its call number `round`, counting from 0.
pub(crate) fn with_fault<R: Send>(
    size: usize,
    (rank, round): (usize, usize),
    rank_main: impl Fn(Comm) -> R + Sync,
) -> Vec<R> {
    meet(size, Some((rank, round)), |comm, _| rank_main(comm))
}

/// Sees calls complete without taking part in them.
pub(crate) struct Watch(Arc<Room>);

impl Watch {
    /// Waits until so many calls of all ranks have completed.
    pub(crate) fn wait_for(&self, rounds: usize) {
        let mut state = self.0.state.lock().expect("nobody panics in the room");
        while state.round < rounds {
            state = self.0.wait(state);
        }
    }
}

fn meet<R: Send>(
    size: usize,
    fault: Option<(usize, usize)>,
    rank_main: impl Fn(Comm, &Watch) -> R + Sync,
) -> Vec<R> {
    let state = State { contributions: (0..size).map(|_| None).collect(), ..State::default() };
    let room = Arc::new(Room { size, state: Mutex::new(state), change: Condvar::new(), fault });
    thread::scope(|scope| {
        let start = |rank| {
            let comm = Comm::new(Member { rank, room: Arc::clone(&room) });
            let (watch, rank_main) = (Watch(Arc::clone(&room)), &rank_main);
            scope.spawn(move || rank_main(comm, &watch))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

struct Member {
    rank: usize,
    room: Arc<Room>,
}

impl Room {
    fn fail(&self, state: &mut State, error: Error) -> Error {
        state.failure.get_or_insert_with(|| Error::Poisoned(Arc::new(error.clone())));
        self.change.notify_all();
        error
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let limit = Duration::from_secs(20);
        let (state, timeout) = self.change.wait_timeout(state, limit).expect("nobody panics in the room");
        assert!(!timeout.timed_out(), "a rank never came");
        state
    }
}

impl Member {
    /// Brings a contribution and takes those of all ranks.
    fn exchange(&self, call: String, bytes: Vec<u8>) -> Result<Arc<Vec<Contribution>>> {
        let mut state = self.room.state.lock().expect("nobody panics in the room");
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let round = state.round;
        if self.room.fault == Some((self.rank, round)) {
            let (waiting_for, after) = (vec![self.rank], Duration::from_millis(1));
            let error = Error::Timeout { waiting_for, after, during: During::Idle };
            return Err(self.room.fail(&mut state, error));
        }
        state.contributions[self.rank] = Some((call, bytes));
        state.arrived += 1;
        if state.arrived == self.room.size {
            self.close(&mut state)?;
        }
        while state.round == round {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            state = self.room.wait(state);
        }
        Ok(Arc::clone(&state.complete))
    }

    /// The last to arrive checks that all are in the same call.
    fn close(&self, state: &mut State) -> Result<()> {
        let complete: Vec<Contribution> = state.contributions.iter_mut().filter_map(Option::take).collect();
        let unlike = complete.iter().find(|other| other.0 != complete[0].0);
        if let Some(unlike) = unlike {
            let error = Error::Internal(format!("{} meets {}", complete[0].0, unlike.0));
            return Err(self.room.fail(state, error));
        }
        (state.round, state.arrived, state.complete) = (state.round + 1, 0, Arc::new(complete));
        self.room.change.notify_all();
        Ok(())
    }
}

impl Member {
    fn all_reduce(&self, buffer: HostViewMut<'_>, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, buffer.dtype())?;
        let all = self.exchange(describe("all_reduce", &buffer), buffer.as_view().bytes().to_vec())?;
        let result = buffer.into_bytes();
        result.copy_from_slice(&all[0].1);
        reduction.start(result, self.room.size);
        for (_, bytes) in &all[1..] {
            let mut bytes = bytes.clone();
            reduction.start(&mut bytes, self.room.size);
            reduction.combine(result, None, RecvBuf::from_slice(&bytes));
        }
        reduction.finish(result, self.room.size);
        Ok(())
    }
}

impl Communicator for Member {
    fn group(&self) -> Group {
        Group::new(GroupId::WORLD, Membership { rank: self.rank, size: self.room.size })
            .expect("the rank is below the size")
    }

    fn run(&self, call: Call<'_>, _: &CallOptions) -> Result<()> {
        match call {
            Call::AllReduce { buffers: Buffers::InPlace(buffer), op } => self.all_reduce(buffer, op),
            Call::Broadcast { root, buffer } => {
                let all = self.exchange(describe("broadcast", &buffer), buffer.as_view().bytes().to_vec())?;
                buffer.into_bytes().copy_from_slice(&all[root].1);
                Ok(())
            }
            Call::AllGather { buffers: Buffers::Separate { send, recv }, .. } => {
                let all =
                    self.exchange(describe::<HostView<'_>>("all_gather", &send), send.bytes().to_vec())?;
                let all: Vec<u8> = all.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
                recv.into_bytes().copy_from_slice(&all);
                Ok(())
            }
            Call::Barrier => self.exchange("barrier".into(), Vec::new()).map(drop),
            _ => Err(unused()),
        }
    }

    fn abort(&self, reason: &str) {
        let mut state = self.room.state.lock().expect("nobody panics in the room");
        self.room.fail(&mut state, Error::Aborted { by: self.rank, reason: reason.into() });
    }
}

/// A group as the trait for hosts has it.
type Made = Box<dyn HostCommunicator>;

impl Groups for Member {
    fn split(&self, _: Option<u64>, _: i64, _: &CallOptions) -> Result<Option<Made>> {
        Err(unused())
    }

    fn new_group(&self, _: &[usize], _: &CallOptions) -> Result<Option<Made>> {
        Err(unused())
    }

    /// In the same room, so that rounds and faults are counted over both.
    fn duplicate(&self, _: &CallOptions) -> Result<Made> {
        Ok(Box::new(Self { rank: self.rank, room: Arc::clone(&self.room) }))
    }
}

impl Allocate for Member {}

impl PointToPoint for Member {
    fn send(&self, _: usize, _: u64, _: HostView<'_>, _: &CallOptions) -> Result<()> {
        Err(unused())
    }

    fn recv(&self, _: Source, _: TagMatch, _: HostViewMut<'_>, _: &CallOptions) -> Result<Received> {
        Err(unused())
    }

    fn send_recv(
        &self,
        _: SendTo,
        _: HostView<'_>,
        _: RecvFrom,
        _: HostViewMut<'_>,
        _: &CallOptions,
    ) -> Result<Received> {
        Err(unused())
    }

    fn probe(&self, _: Source, _: TagMatch, _: &CallOptions) -> Result<Received> {
        Err(unused())
    }

    fn try_probe(&self, _: Source, _: TagMatch) -> Result<Option<Received>> {
        Err(unused())
    }

    fn post_send(&self, _: usize, _: u64, message: Box<dyn Outgoing>, _: &CallOptions) {
        message.complete(Err(unused()));
    }

    fn post_recv(&self, _: Source, _: TagMatch, buffer: Box<dyn Incoming>, _: &CallOptions) {
        buffer.complete(Err(unused()));
    }

    fn drive(&self) {}

    fn cancel_recvs(&self) {}
}

fn describe<V: Shape>(collective: &str, buffer: &V) -> String {
    format!("{collective} of {} x {}", buffer.len(), buffer.dtype())
}

fn unused() -> Error {
    Error::Internal("data-parallel training does not make this call".into())
}
