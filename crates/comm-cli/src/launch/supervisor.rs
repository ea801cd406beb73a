//! Waits for all ranks, and terminates all of them when one fails.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::error::{LaunchError, ProcessExit, RankFailure};
use super::events::{Consequence, Events};
use super::guard::Guard;
use super::process::RankProcess;
use super::signals::StopSignals;

/// The interval between checks whether a process group is empty, for which there is no event.
const LEFTOVERS_POLL: Duration = Duration::from_millis(10);
/// The longest grace period, so that adding it to an instant does not overflow.
const GRACE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The time after a failure in which the other ranks may record their last calls.
const RECORDING: Duration = Duration::from_secs(1);
const SIGNALS: u64 = u64::MAX;
const OTHERS: u64 = u64::MAX - 1;

/// Supervises ranks until all have exited.
///
/// The first failure or stop signal determines the outcome and starts the grace period, after which
/// the remaining processes are killed. Later failures are consequences, and are not reported.
pub(super) struct Supervisor {
    members: Vec<Member>,
    signals: StopSignals,
    epoll: OwnedFd,
    grace: Duration,
    /// The time between the failure of a rank and the signals to the others.
    pause: Duration,
    /// Whether a rank has exited with code 0.
    has_succeeded: bool,
    ending: Option<Termination>,
    /// The progress of the agreement with other hosts.
    agreement: Agreement,
    /// Dropped after the members, which kill their groups.
    guard: Guard,
}

struct Member {
    rank: usize,
    process: RankProcess,
    state: State,
    /// Whether the rank had begun to exit when the first failure was detected.
    was_ending: bool,
}

enum State {
    Running,
    /// The rank was reaped; its process group may still have members.
    Leftovers {
        kill_at: Instant,
    },
    Gone,
}

/// The agreement with other hosts on the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agreement {
    /// The ranks of this host run.
    Open,
    /// The other hosts know that the ranks of this one have ended.
    Ended,
    /// The other hosts know why the ranks of this one are terminated.
    Failed,
    /// The end of all ranks is known, or there are no other hosts.
    Reached,
}

/// The state of a launch that is being terminated.
struct Termination {
    cause: LaunchError,
    /// When the ranks get SIGTERM, if they have not got it yet.
    term_at: Option<Instant>,
    kill_at: Instant,
    killed: bool,
}

impl Supervisor {
    /// `records` is whether ranks record their last calls when another one has failed.
    pub(super) fn new(signals: StopSignals, grace: Duration, records: bool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &signals, EventData::new_u64(SIGNALS), EventFlags::IN)?;
        Ok(Self {
            members: Vec::new(),
            signals,
            epoll,
            grace: grace.min(GRACE_MAX),
            pause: if records { RECORDING } else { Duration::ZERO },
            has_succeeded: false,
            ending: None,
            agreement: Agreement::Open,
            guard: Guard::start()?,
        })
    }

    /// Adds the next rank. Each rank must be added before another one starts, so that the order of
    /// exits is known.
    pub(super) fn add(&mut self, rank: usize, process: RankProcess) -> io::Result<()> {
        let at = self.members.len() as u64;
        epoll::add(&self.epoll, &process, EventData::new_u64(at), EventFlags::IN)?;
        self.guard.watch(process.pid());
        let state = State::Running;
        self.members.push(Member { rank, process, state, was_ending: false });
        Ok(())
    }

    /// Returns when all processes in the ranks' process groups have exited or been killed, and the
    /// outcome of all hosts is known.
    pub(super) fn run(mut self, launch: &mut dyn Events) -> Result<(), LaunchError> {
        let watching = |source| LaunchError::System { what: "watch the ranks", source };
        let mut events = Vec::with_capacity(self.members.len() + 2);
        match launch.others().and_then(|others| others.descriptor()) {
            Some(others) => {
                let readable = EventData::new_u64(OTHERS);
                epoll::add(&self.epoll, others, readable, EventFlags::IN)
                    .map_err(|error| watching(error.into()))?;
            }
            None => self.agreement = Agreement::Reached,
        }
        while self.is_running() || self.agreement != Agreement::Reached {
            let timeout = self.next_deadline(launch).and_then(|limit| Timespec::try_from(limit).ok());
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(watching(error.into())),
            }
            // epoll reports events in the order in which they occurred, so the first failure comes
            // first even if several ranks have exited.
            for event in events.drain(..) {
                match event.data.u64() {
                    SIGNALS => self.on_signals(),
                    OTHERS => self.on_others(launch).map_err(watching)?,
                    at => self.on_end(at as usize, launch).map_err(watching)?,
                }
            }
            self.on_clock();
            self.check_group(launch);
            self.tell_others(launch);
        }
        self.ending.map_or(Ok(()), |ending| Err(ending.cause))
    }

    fn is_running(&self) -> bool {
        self.members.iter().any(|member| !matches!(member.state, State::Gone))
    }

    fn on_others(&mut self, launch: &mut dyn Events) -> io::Result<()> {
        let Some(others) = launch.others() else { return Ok(()) };
        let outcome = others.poll();
        if outcome.is_some() {
            others.descriptor().map_or(Ok(()), |others| epoll::delete(&self.epoll, others))?;
            self.agreement = Agreement::Reached;
        }
        if let (Some(Err(cause)), None) = (outcome, &self.ending) {
            self.note_ending();
            self.end(Signal::TERM, cause);
        }
        Ok(())
    }

    /// Ends the launch if the processes that wait to join the group wait in vain.
    fn check_group(&mut self, launch: &mut dyn Events) {
        if self.ending.is_none()
            && launch.next_check().is_some_and(|left| left.is_zero())
            && let Some(cause) = launch.check_group()
        {
            self.end(Signal::TERM, cause);
        }
    }

    /// Reports the end of the ranks of this host to the other hosts.
    fn tell_others(&mut self, launch: &mut dyn Events) {
        let Some(others) = launch.others() else {
            // There are none, or this host goes on without them.
            self.agreement = Agreement::Reached;
            return;
        };
        match (self.agreement, &self.ending) {
            (Agreement::Open | Agreement::Ended, Some(ending)) => {
                others.failed(&ending.cause);
                self.agreement = Agreement::Failed;
            }
            (Agreement::Open, None) if !self.is_running() => {
                self.agreement = Agreement::Ended;
                if let Err(error) = others.ended() {
                    self.end(Signal::TERM, error);
                }
            }
            _ => {}
        }
    }

    fn on_end(&mut self, at: usize, launch: &mut dyn Events) -> io::Result<()> {
        let member = &mut self.members[at];
        let Some(exit) = member.process.exit()? else { return Ok(()) };
        epoll::delete(&self.epoll, member.process.as_fd())?;
        // The id of the group is valid only until the rank is reaped.
        if self.ending.is_none() {
            member.process.signal_group(Signal::TERM);
        }
        member.process.reap()?;
        let kill_at = self.ending.as_ref().map_or_else(|| Instant::now() + self.grace, |end| end.kill_at);
        member.state = State::Leftovers { kill_at };
        let (rank, pid) = (member.rank, member.process.pid());
        let failure = RankFailure { rank, pid, exit, node: None, last_lines: Vec::new() };
        if !exit.is_success() {
            return self.on_failure(at, failure, launch);
        }
        if !std::mem::replace(&mut self.has_succeeded, true) {
            launch.first_success();
        }
        Ok(())
    }

    /// Lets the launch decide on the consequence of a failure. While ranks are being terminated,
    /// failures are consequences, with one exception: a peer may detect the death of a killed rank
    /// and exit before the killed rank becomes a zombie. So a rank that was killed, and had begun
    /// to exit before the launcher sent signals, replaces a rank that exited.
    fn on_failure(&mut self, at: usize, failure: RankFailure, launch: &mut dyn Events) -> io::Result<()> {
        let was_ending = self.members[at].was_ending;
        match &mut self.ending {
            None => match launch.failed(failure) {
                Consequence::GoOn => {}
                Consequence::Replaced(process) => self.add(self.members[at].rank, process)?,
                Consequence::End(cause) => {
                    self.note_ending();
                    self.end(Signal::TERM, cause);
                }
            },
            Some(Termination { cause: LaunchError::RankFailed(first), .. })
                if was_ending
                    && matches!(first.exit, ProcessExit::Code(_))
                    && matches!(failure.exit, ProcessExit::Signal(_)) =>
            {
                *first = failure;
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Notes the ranks that have begun to exit before the launcher sends signals.
    fn note_ending(&mut self) {
        for member in &mut self.members {
            member.was_ending = matches!(member.state, State::Running) && member.process.is_ending();
        }
    }

    fn on_signals(&mut self) {
        for signal in self.signals.take() {
            // A SIGHUP may directly follow a SIGTERM, and does not kill.
            if self.ending.is_some() && signal != Signal::HUP {
                self.kill_all();
            } else if self.ending.is_some() {
                self.signal_all(signal);
            } else {
                self.end(signal, LaunchError::Interrupted { signal: signal.as_raw() });
            }
        }
    }

    /// Terminates all ranks, unless that has already begun.
    fn end(&mut self, signal: Signal, cause: LaunchError) {
        if self.ending.is_some() {
            return;
        }
        let is_failure = matches!(cause, LaunchError::RankFailed(_));
        let pause = if is_failure { self.pause } else { Duration::ZERO };
        let ends = Instant::now() + pause;
        let (term_at, kill_at) = ((!pause.is_zero()).then_some(ends), ends + self.grace);
        self.ending = Some(Termination { cause, term_at, kill_at, killed: false });
        if term_at.is_none() {
            self.signal_all(signal);
        }
    }

    fn on_clock(&mut self) {
        let now = Instant::now();
        if let Some(ending) = &mut self.ending
            && ending.term_at.take_if(|term_at| *term_at <= now).is_some()
        {
            self.signal_all(Signal::TERM);
        }
        if self.ending.as_ref().is_some_and(|ending| !ending.killed && now >= ending.kill_at) {
            self.kill_all();
        }
        for member in &mut self.members {
            let State::Leftovers { kill_at } = member.state else { continue };
            if member.process.group_is_empty() {
                member.state = State::Gone;
                self.guard.forget(member.process.pid());
            } else if now >= kill_at {
                member.process.signal_group(Signal::KILL);
                // The exit is not awaited: in a container without an init process, zombies stay
                // forever.
                member.state = State::Gone;
                self.guard.forget(member.process.pid());
            }
        }
    }

    fn kill_all(&mut self) {
        self.signal_all(Signal::KILL);
        if let Some(ending) = &mut self.ending {
            (ending.term_at, ending.killed) = (None, true);
            ending.kill_at = Instant::now();
        }
    }

    fn signal_all(&self, signal: Signal) {
        for member in &self.members {
            match member.state {
                State::Running => member.process.signal_group(signal),
                State::Leftovers { .. } if !member.process.group_is_empty() => {
                    member.process.signal_group(signal)
                }
                State::Leftovers { .. } | State::Gone => {}
            }
        }
    }

    /// Returns the time to the next check, or `None` to wait for an event.
    fn next_deadline(&self, launch: &dyn Events) -> Option<Duration> {
        if self.members.iter().any(|member| matches!(member.state, State::Leftovers { .. })) {
            return Some(LEFTOVERS_POLL);
        }
        let Some(ending) = &self.ending else { return launch.next_check() };
        let is_due = !ending.killed && self.is_running();
        let next = ending.term_at.unwrap_or(ending.kill_at);
        is_due.then(|| next.saturating_duration_since(Instant::now()))
    }
}
