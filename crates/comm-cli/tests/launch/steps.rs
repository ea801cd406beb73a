//! A program whose ranks come and go, for tests of elastic launches.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use comm::{Config, ElasticGroup, GrowOptions, ReduceOp, ShrinkOptions};
use rustix::process::{Pid, getpid};

use crate::collectives::ROLE;
use crate::harness::wait_for;

/// Set for ranks that never admit others.
const CLOSED: &str = "COMM_TEST_CLOSED";
/// The least number of ranks that go on, 1 by default.
const SIZE_MIN: &str = "COMM_TEST_SIZE_MIN";
/// The number of elements of an all-reduce.
const LENGTH: usize = 1000;

/// Adds this program, whose ranks use a folder, to a command that ends with the options of
/// `commctl run`.
pub(crate) fn program(command: &mut Command, dir: &Path) {
    command.arg("--").arg(env::current_exe().unwrap());
    command.args(["--exact", "steps::rank", "--ignored", "--nocapture"]);
    command.env(ROLE, "1").env("DIR", dir);
}

/// Lets the ranks of a command admit no others.
pub(crate) fn closed(command: &mut Command) {
    command.env(CLOSED, "1");
}

/// Lets the ranks of a command go on only if this many are left.
pub(crate) fn size_min(command: &mut Command, ranks: usize) {
    command.env(SIZE_MIN, ranks.to_string());
}

/// Waits until the group whose rank 0 is on this node, and whose results are right, has members
/// that meet a condition. Returns their process ids by the ranks in their environment.
pub(crate) fn await_group(
    dir: &Path,
    node: usize,
    condition: impl Fn(&BTreeMap<usize, Pid>) -> bool,
) -> BTreeMap<usize, Pid> {
    let path = dir.join(format!("group.{node}"));
    wait_for("a group", || {
        let text = fs::read_to_string(&path).ok()?;
        let member = |text: &str| {
            let (rank, pid) = text.split_once(':').unwrap();
            (rank.parse().unwrap(), Pid::from_raw(pid.parse().unwrap()).unwrap())
        };
        let members: BTreeMap<usize, Pid> = text.split_whitespace().map(member).collect();
        condition(&members).then_some(members)
    })
}

/// Lets the ranks end.
pub(crate) fn finish(dir: &Path) {
    fs::write(dir.join("go"), "").unwrap();
}

struct Rank {
    dir: PathBuf,
    grows: bool,
    size_min: usize,
    step: u64,
    /// Depends on every earlier step.
    digest: u64,
    /// Whether this rank has the state of the others.
    is_complete: bool,
    reported: String,
}

#[test]
#[ignore = "started by the other tests"]
fn rank() {
    if env::var_os(ROLE).is_none() {
        return;
    }
    let mut group = ElasticGroup::join(&Config::from_env().unwrap()).unwrap();
    let dir = PathBuf::from(env::var_os("DIR").unwrap());
    let is_complete = !group.is_newcomer();
    let grows = env::var_os(CLOSED).is_none();
    let size_min = env::var(SIZE_MIN).map_or(1, |text| text.parse().unwrap());
    let mut rank = Rank { dir, grows, size_min, step: 0, digest: 0, is_complete, reported: String::new() };
    loop {
        match rank.advance(&mut group) {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => {
                assert!(error.is_fatal(), "{error}");
                group.shrink(&ShrinkOptions::default().size_min(rank.size_min)).unwrap();
                rank.is_complete = false;
            }
        }
    }
    group.comm().clone().finalize().unwrap();
}

impl Rank {
    /// Makes a step together with all others. Returns whether the ranks end.
    fn advance(&mut self, group: &mut ElasticGroup) -> comm::Result<bool> {
        let options = GrowOptions::default().timeout(Duration::from_secs(5)).size_min(self.size_min);
        if !self.is_complete || self.grows && group.grow(&options)? > 0 {
            let mut state = [self.step, self.digest];
            group.comm().broadcast(0, &mut state)?;
            ([self.step, self.digest], self.is_complete) = (state, true);
        }
        let comm = group.comm();
        let label = env::var("RANK").unwrap().parse::<u64>().unwrap();
        let members = comm.all_gather_scalar((label << 32) + getpid().as_raw_nonzero().get() as u64)?;
        let mut sums = [members[comm.rank()] + self.step; LENGTH];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let expected: u64 = members.iter().map(|member| member + self.step).sum();
        assert!(sums.iter().all(|sum| *sum == expected), "step {}", self.step);
        let digests = comm.all_gather_scalar(self.digest)?;
        assert!(digests.iter().all(|digest| *digest == self.digest), "step {}: {digests:?}", self.step);
        self.step += 1;
        self.digest = self.digest.wrapping_mul(31).wrapping_add(expected);
        let is_over = comm.rank() == 0 && self.dir.join("go").exists();
        let is_over = comm.all_reduce_scalar(u64::from(is_over), ReduceOp::Max)? > 0;
        if comm.rank() == 0 {
            self.report(&members);
        }
        // Leaves the processors to the launchers.
        sleep(Duration::from_millis(5));
        Ok(is_over)
    }

    fn report(&mut self, members: &[u64]) {
        let member = |member: &u64| format!("{}:{}", member >> 32, member & 0xffff_ffff);
        let text = members.iter().map(member).collect::<Vec<_>>().join(" ");
        if text != self.reported {
            let path = self.dir.join(format!("group.{}", env::var("GROUP_RANK").unwrap()));
            let new = path.with_extension(getpid().to_string());
            fs::write(&new, &text).unwrap();
            fs::rename(new, path).unwrap();
            self.reported = text;
        }
    }
}
