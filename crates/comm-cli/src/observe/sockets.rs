//! Finds the sockets of running ranks, and asks them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use comm::monitor::{MonitorName, MonitorReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

/// The list of all Unix sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";
/// The time without any byte after which ranks that have not answered count as silent.
const PATIENCE: Duration = Duration::from_millis(200);
/// The largest answer in bytes.
const BYTES_MAX: usize = 64 << 20;

/// The sockets of the ranks of each launch.
pub type Launches = BTreeMap<u64, Vec<MonitorName>>;

/// Returns the sockets of all ranks of this user on this host (for root, of all users), or of the
/// launch of this process: of a rank, or of a process that has started ranks, such as
/// `commctl run`.
///
/// # Errors
/// If the list of sockets cannot be read.
pub fn find(pid: Option<u32>) -> io::Result<Launches> {
    let list = list()?;
    let mut launches = Launches::new();
    let names = abstract_names(&list).filter_map(MonitorName::parse);
    for name in names.filter(|name| is_ours(name.pid)) {
        launches.entry(name.launch).or_default().push(name);
    }
    if let Some(pid) = pid {
        launches.retain(|_, names| names.iter().any(|name| descends_from(name.pid, pid)));
    }
    for names in launches.values_mut() {
        names.sort_by_key(|name| (name.rank, name.pid, name.number));
        names.dedup();
    }
    Ok(launches)
}

/// Returns the list of all Unix sockets.
pub(super) fn list() -> io::Result<String> {
    fs::read_to_string(SOCKETS)
}

/// Returns the abstract names in a list.
pub(super) fn abstract_names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| Some(line.split_once('@')?.1))
}

/// Returns whether a process belongs to this user, or this user is root. A process that has exited
/// belongs to nobody.
pub(super) fn is_ours(pid: u32) -> bool {
    let user = geteuid();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    owner.is_ok_and(|owner| user.is_root() || owner == user.as_raw())
}

/// Returns whether a process is this one or has been started by it.
pub(super) fn descends_from(mut process: u32, ancestor: u32) -> bool {
    // The chain ends at process 1; a process that exits meanwhile has no parent.
    while process > 1 {
        if process == ancestor {
            return true;
        }
        let Some(parent) = stat(process).and_then(|stat| stat.split_whitespace().nth(1)?.parse().ok()) else {
            return false;
        };
        process = parent;
    }
    false
}

/// Returns the fields of a process in `/proc` after its name.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain parentheses.
    Some(stat.rsplit_once(')')?.1.to_owned())
}

/// Returns the state letter of a process: `T` if a signal has stopped it. `None` after its end.
pub(super) fn state(pid: u32) -> Option<char> {
    stat(pid)?.trim_start().chars().next()
}

/// A rank that has been asked and has not answered completely.
struct Pending {
    at: usize,
    stream: UnixStream,
    answer: Vec<u8>,
}

/// Asks these ranks at once. Returns their answers in the same order, `None` for those that are
/// silent.
pub(super) fn ask(names: &[MonitorName], calls: usize) -> io::Result<Vec<Option<MonitorReport>>> {
    let mut answers: Vec<Option<MonitorReport>> = names.iter().map(|_| None).collect();
    let open = |(at, name): (usize, &MonitorName)| {
        // A refusal means that the process has just exited; a stopped one accepts no more
        // connections once its queue is full.
        open(&name.to_string(), calls).ok().map(|stream| Pending { at, stream, answer: Vec::new() })
    };
    let mut pending: Vec<Pending> = names.iter().enumerate().filter_map(open).collect();
    let mut deadline = Instant::now() + PATIENCE;
    while !pending.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut watched: Vec<PollFd<'_>> =
            pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::IN)).collect();
        let ready = match poll(&mut watched, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            ready => ready?,
        };
        if ready == 0 {
            break;
        }
        deadline = Instant::now() + PATIENCE;
        pending.retain_mut(|pending| match pending.read() {
            Ok(false) => true,
            Ok(true) => {
                answers[pending.at] = MonitorReport::parse(&pending.answer).ok();
                false
            }
            Err(_) => false,
        });
    }
    Ok(answers)
}

impl Pending {
    /// Reads the bytes that have arrived. Returns whether the answer is complete.
    fn read(&mut self) -> io::Result<bool> {
        let mut part = [0; 64 << 10];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(len) => self.answer.extend_from_slice(&part[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.answer.len() > BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
        }
    }
}

/// Connects to a process of the same user without waiting, and sends the request.
pub(super) fn open(name: &str, calls: usize) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let (ours, theirs) = (geteuid(), socket_peercred(&socket)?.uid);
    if theirs != ours && !ours.is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut stream = UnixStream::from(socket);
    writeln!(stream, "{{\"calls\": {calls}}}")?;
    Ok(stream)
}
