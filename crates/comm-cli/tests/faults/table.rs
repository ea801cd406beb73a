//! The table of all faults.

use crate::page;

/// A fault, and the words that the first line that a user sees must contain.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) injection: &'static str,
    /// The program that prints the line.
    pub(crate) printed_by: &'static str,
    /// The rank or host at fault, or the two that disagree, and the cause.
    texts: &'static [&'static str],
    pub(crate) test: &'static str,
}

const DOCTOR: &str = "`commctl doctor`";
const TOP: &str = "`commctl top`";

const fn fault(
    test: &'static str,
    [name, injection, printed_by]: [&'static str; 3],
    texts: &'static [&'static str],
) -> Fault {
    Fault { name, injection, printed_by, texts, test }
}

pub(crate) const FAULTS: [Fault; 24] = [
    fault(
        "a_stopped_rank_is_named",
        ["stopped rank", "SIGSTOP to rank 1 of 3", TOP],
        &["rank 1 does not answer", "all others wait for it"],
    ),
    fault(
        "a_slow_rank_is_named",
        ["slow rank", "rank 2 of 3 sleeps 200 ms before each call", TOP],
        &["rank 2 ", " ms after the first rank"],
    ),
    fault(
        "a_half_open_link_is_named",
        ["half-open link", "a relay between ranks 0 and 1 forwards no more bytes, and closes nothing", TOP],
        &["ranks 0 and 1 wait for each other", "check the link between them"],
    ),
    fault(
        "a_disk_that_hangs_is_named",
        ["slow disk", "a file system that `fsfreeze` has frozen", DOCTOR],
        &["node1: writing to /mnt/checkpoints has not ended"],
    ),
    fault(
        "another_call_is_named",
        ["another call", "rank 1 calls `barrier`, rank 0 `all_reduce`", "rank 0"],
        &["rank 1 in barrier("],
    ),
    fault(
        "another_length_is_named",
        ["another length", "rank 1 passes 5 elements, rank 0 4", "rank 0"],
        &["rank 1 in all_reduce(sum, 5 x f32"],
    ),
    fault(
        "another_type_is_named",
        ["another type", "rank 1 passes `u32`, rank 0 `f32`", "rank 0"],
        &["rank 1 in all_reduce(sum, 4 x u32"],
    ),
    fault(
        "another_operator_is_named",
        ["another operator", "rank 1 asks for the maximum, rank 0 for the sum", "rank 0"],
        &["rank 1 in all_reduce(max, 4 x f32"],
    ),
    fault(
        "another_root_is_named",
        ["another root", "rank 1 broadcasts from root 1, rank 0 from root 0", "rank 0"],
        &["rank 1 in broadcast(", "root 1"],
    ),
    fault(
        "a_nan_is_named",
        ["NaN", "one element of rank 2 of 3, with `COMM_NAN_CHECK=1`", "rank 0"],
        &["aborted by rank 2", "is NaN at element 1"],
    ),
    fault(
        "a_slow_link_is_named",
        ["slow link", "50 Mbit/s at the interface of one of three hosts (`tc`)", DOCTOR],
        &["the links of rank 2 (node2)", "where others reach"],
    ),
    fault(
        "packets_that_are_dropped_are_named",
        ["dropped packets", "hosts 1 and 2 send each other's packets to no interface (`ip neigh`)", "rank 2"],
        &["rank 1 was lost", "no answer at 10.99.0.2"],
    ),
    fault(
        "an_interface_that_is_down_is_named",
        ["interface down", "`ip link set eth0 down`", DOCTOR],
        &["node0: no interface is up"],
    ),
    fault(
        "a_clock_that_is_off_is_named",
        ["clock off by 10 s", "a library that one of two hosts loads first (`LD_PRELOAD`)", DOCTOR],
        &["node1: its clock is 10.0 s ahead of node0's"],
    ),
    fault(
        "a_name_that_is_loopback_is_named",
        ["name on 127.0.1.1", "a file mounted over `/etc/hosts`", DOCTOR],
        &["node1: its name resolves to 127.0.1.1"],
    ),
    fault(
        "a_full_dev_shm_is_named",
        ["/dev/shm full", "1 MiB mounted there", DOCTOR],
        &["node1: /dev/shm has 1 MiB left"],
    ),
    fault(
        "a_limit_of_descriptors_is_named",
        ["limit of descriptors", "`ulimit -n 100`, for 40 ranks", DOCTOR],
        &["HOST: a rank of 40 opens 181 files, and 100 are allowed"],
    ),
    fault(
        "a_quota_of_the_control_group_is_named",
        ["quota of the control group", "a file `cpu.max` mounted over the real one", DOCTOR],
        &["node1: its control group allows 0.5 cores for 1 rank"],
    ),
    fault(
        "too_many_ranks_are_named",
        ["more ranks than cores", "64 ranks", DOCTOR],
        &["node1: 64 ranks share "],
    ),
    fault(
        "a_duplicate_rank_is_named",
        ["duplicate rank", "two of three processes are rank 1", "one of the two"],
        &["rank 1 is already taken by another process"],
    ),
    fault(
        "a_wrong_secret_is_named",
        ["wrong secret", "rank 1 has another one than rank 0", "rank 1"],
        &["the store at 127.0.0.1", "secret"],
    ),
    fault(
        "another_version_is_named",
        ["another version of the protocol", "a store whose greeting has version 99", "rank 1"],
        &["the store at 127.0.0.1", "version 99"],
    ),
    fault(
        "a_port_in_use_is_named",
        ["two jobs on one port", "rank 0 of two jobs", "rank 0 of the second"],
        &["rank 0 cannot listen on 127.0.0.1:", "the port is in use"],
    ),
    fault(
        "a_dead_store_is_named",
        ["dead store", "no process listens", "rank 1"],
        &["the store at 127.0.0.1", "refused"],
    ),
];

/// Returns the fault of a test.
pub(crate) fn fault_of(test: &str) -> &'static Fault {
    FAULTS.iter().find(|fault| fault.test == test).unwrap()
}

impl Fault {
    /// Returns whether a line names the fault.
    pub(crate) fn is_named_in(&self, line: &str) -> bool {
        self.texts.iter().all(|text| line.contains(text))
    }

    /// Asserts that a line names the fault, and that the page has it.
    #[track_caller]
    pub(crate) fn check(&self, line: &str) {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let line = line.replace(name.trim(), "HOST");
        assert!(self.is_named_in(&line), "{}: {line}", self.name);
        page::check(self, &line);
    }
}
