//! An agent that answers for the ranks of all hosts.
//!
//! A request is an entry of the store in which the agents meet, and so are the answers, so they are
//! authenticated like everything there, and no further port is open. Each agent watches the key of
//! the next request. A process of the same user passes a request to the agent of its host through
//! a Unix socket with an abstract name.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use comm::tcp::TcpStore;
use comm::{LastWill, Store};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::Deserialize;

use super::answer::{HostAnswer, RankAnswer};
use super::sockets;

/// The start of the name of the socket of an agent.
const PREFIX: &str = "comm-agent";
/// The number of requests so far.
const COUNT: &str = "top/count";
/// The time in which agents answer. Ranks that are silent take 0.2 s of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The time for which the client of an agent waits.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which an agent looks whether it has missed requests, as one that was stopped has.
const RESYNC: Duration = Duration::from_secs(10);
/// The time until the next attempt after an accept that failed.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The time for which a key is watched: longer than any job runs.
const FOREVER: Duration = Duration::from_secs(20 * 365 * 24 * 60 * 60);
/// The largest request in bytes.
const REQUEST_MAX: u64 = 256;
/// The number of calls of all ranks together in the answers to a request, which limits their bytes
/// in the store.
const CALLS_OF_ALL: usize = 8192;
const CALLS_MIN: usize = 4;

/// A request: one line of JSON.
#[derive(Debug, Deserialize)]
struct Request {
    calls: usize,
}

/// The hosts of a job.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) store: Arc<TcpStore>,
    /// The number of this host.
    pub(crate) own: usize,
    /// The names of all hosts.
    pub(crate) names: Vec<String>,
    pub(crate) ranks: usize,
}

/// The end of the threads that answer. They end when this is dropped; one that waits for a store
/// that is gone ends at the deadline of the store.
#[derive(Debug)]
pub(crate) struct Answering {
    ended: Arc<OwnedFd>,
}

impl Answering {
    /// Starts to answer requests of other agents, and of processes of this host.
    pub(crate) fn start(hosts: Hosts) -> io::Result<Self> {
        let ended = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let name = format!("{PREFIX}/{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        // Dropped, and so ends the first thread, if the second one cannot be started.
        let answering = Self { ended: Arc::clone(&ended) };
        let hosts = Arc::new(hosts);
        let (ours, theirs) = (Arc::clone(&hosts), Arc::clone(&ended));
        let thread = |name: &str| thread::Builder::new().name(name.into());
        thread("agent-answers").spawn(move || drop(ours.answer_requests(&theirs)))?;
        thread("agent-asks").spawn(move || drop(hosts.serve(&listener, &ended)))?;
        Ok(answering)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // If this fails, the threads end with the process.
        let _ = rustix::io::write(&*self.ended, &1_u64.to_ne_bytes());
    }
}

impl Hosts {
    /// Answers each request for the ranks of this host, until the end or until the store is gone.
    fn answer_requests(&self, ended: &OwnedFd) -> comm::Result<()> {
        let store = &self.store;
        let mut next = store.add(COUNT, 0)? + 1;
        loop {
            // This connection has no will: its end changes nothing.
            let will = LastWill { condition: (COUNT, b""), keys: &[], value: b"" };
            let Some(watched) = store.register_last_will(&will, &request_key(next), FOREVER)? else {
                return Ok(());
            };
            let request = loop {
                let readable = wait_for(&[ended.as_fd(), watched.descriptor()], RESYNC)
                    .map_err(|error| comm::Error::io("wait for requests", error))?;
                if readable == Some(0) {
                    return Ok(());
                }
                match watched.poll()? {
                    Some(request) => break Some(request),
                    None if store.add(COUNT, 0)? >= next => break None,
                    None => {}
                }
            };
            if let Some(request) = request {
                // The request of an earlier one that came too late is not removed by anyone else.
                store.delete(&answer_key(next - 1, self.own))?;
                store.set(&answer_key(next, self.own), &self.answer(&request))?;
                next += 1;
            } else {
                next = store.add(COUNT, 0)? + 1;
            }
        }
    }

    /// Returns the answers of the ranks of this host.
    fn answer(&self, request: &[u8]) -> Vec<u8> {
        let calls = serde_json::from_slice(request).map_or(0, |Request { calls }| calls);
        let share = (CALLS_OF_ALL / self.ranks.max(1)).max(CALLS_MIN);
        let launches = sockets::find(Some(std::process::id())).unwrap_or_default();
        let names: Vec<_> = launches.into_values().flatten().collect();
        let ranks = RankAnswer::of_ranks(&names, calls.min(share)).ok();
        let host = self.names.get(self.own).cloned().unwrap_or_default();
        serde_json::to_vec(&HostAnswer { host, ranks }).unwrap_or_default()
    }

    /// Serves processes of this host.
    fn serve(&self, listener: &UnixListener, ended: &OwnedFd) -> io::Result<()> {
        loop {
            match wait_for(&[ended.as_fd(), listener.as_fd()], FOREVER)? {
                Some(0) => return Ok(()),
                // A client that gets no answer looks at its own host only.
                Some(_) => match listener.accept() {
                    Ok((client, _)) => drop(self.serve_client(client)),
                    // There may be no descriptor left for now.
                    Err(_) => thread::sleep(RETRY_AFTER),
                },
                None => {}
            }
        }
    }

    fn serve_client(&self, mut client: UnixStream) -> io::Result<()> {
        let user = socket_peercred(&client)?.uid;
        if user != geteuid() && !user.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut request = String::new();
        BufReader::new((&client).take(REQUEST_MAX)).read_line(&mut request)?;
        let answers = self.ask_all(request.as_bytes()).map_err(io::Error::other)?;
        client.write_all(&serde_json::to_vec(&answers)?)
    }

    /// Asks the agents of all hosts.
    pub(crate) fn ask_all(&self, request: &[u8]) -> comm::Result<Vec<HostAnswer>> {
        let number = self.store.add(COUNT, 1)?;
        self.store.set(&request_key(number), request)?;
        let keys: Vec<String> = (0..self.names.len()).map(|host| answer_key(number, host)).collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        match self.store.wait(&names, ANSWER_TIMEOUT) {
            Ok(()) | Err(comm::Error::Timeout { .. }) => {}
            Err(error) => return Err(error),
        }
        let answer = |(name, key): (&String, &String)| {
            let answer = self.store.get(key, Duration::ZERO).ok();
            let answer = answer.and_then(|answer| serde_json::from_slice(&answer).ok());
            answer.unwrap_or_else(|| HostAnswer { host: name.clone(), ranks: None })
        };
        let answers = self.names.iter().zip(&keys).map(answer).collect();
        for key in keys.iter().chain([&request_key(number)]) {
            self.store.delete(key)?;
        }
        Ok(answers)
    }
}

fn request_key(number: i64) -> String {
    format!("top/request/{number}")
}

fn answer_key(number: i64, host: usize) -> String {
    format!("top/answer/{number}/{host}")
}

/// Waits until one of these is readable, and returns the index of the first.
fn wait_for(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Option<usize>> {
    let timeout =
        Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    let mut watched: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut watched, Some(&timeout)) {
        Err(rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(watched.iter().position(|fd| !fd.revents().is_empty())),
    }
}

/// Returns the answers of all hosts, in their order, from the agent that has started one of these
/// processes. `None` if there is none, or it does not answer.
pub fn ask_agent_of(pids: &[u32], calls: usize) -> Option<Vec<HostAnswer>> {
    let list = sockets::list().ok()?;
    let agent = sockets::abstract_names(&list).find(|name| {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix('/')?.parse().ok());
        let started = |agent: u32| pids.iter().any(|pid| sockets::descends_from(*pid, agent));
        pid.is_some_and(|agent| sockets::is_ours(agent) && started(agent))
    })?;
    let mut stream = sockets::open(agent, calls).ok()?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT)).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    serde_json::from_slice(&answer).ok()
}
