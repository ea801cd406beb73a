//! Faults of one host, in namespaces of their own, which `commctl doctor` names.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::ranks::Processes;
use crate::table::fault_of;

/// Returns the first line of `commctl doctor` after a script.
fn doctor(arguments: &str, script: &str) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", &with_doctor(arguments, script)]);
    first_line(&mut command)
}

fn with_doctor(arguments: &str, script: &str) -> String {
    format!("{script} exec {} doctor {arguments}", env!("CARGO_BIN_EXE_commctl"))
}

fn first_line(command: &mut Command) -> String {
    let mut processes = Processes::default();
    let doctor = processes.start(command.stdout(Stdio::piped()).stderr(Stdio::null()));
    processes.first_output(doctor)
}

/// The same with mounts and a name that no other process sees. `None` without the right to make
/// them.
fn doctor_with_mounts(arguments: &str, script: &str) -> Option<String> {
    let unshare = ["--mount", "--uts", "--propagation", "private", "sh", "-c"];
    if !Command::new("unshare").args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        // Unlike a macro, this is not captured.
        let _ = writeln!(std::io::stderr(), "skipped: this test needs the right to mount");
        return None;
    }
    let script = format!("set -e; echo node1 > /proc/sys/kernel/hostname; {script}");
    let mut command = Command::new("unshare");
    command.args(unshare).arg(with_doctor(arguments, &script));
    Some(first_line(&mut command))
}

/// Checks the first line for a job of two ranks here, and these arguments.
fn check_mounted(test: &str, arguments: &str, script: &str) {
    if let Some(line) = doctor_with_mounts(arguments, script) {
        fault_of(test).check(&line);
    }
}

/// The script after which the name of the host resolves to this address.
fn name_resolves_to(address: &str) -> String {
    format!(
        "mount -t tmpfs none /mnt; echo {address} node1 > /mnt/hosts; mount --bind /mnt/hosts /etc/hosts;"
    )
}

#[test]
fn a_limit_of_descriptors_is_named() {
    let line = doctor("-n 1 --world 40", "ulimit -n 100;");
    fault_of("a_limit_of_descriptors_is_named").check(&line);
}

#[test]
fn a_name_that_is_loopback_is_named() {
    let script = name_resolves_to("127.0.1.1");
    check_mounted("a_name_that_is_loopback_is_named", "-n 1 --world 2", &script);
}

#[test]
fn a_full_dev_shm_is_named() {
    let script = name_resolves_to("10.0.0.1") + "mount -t tmpfs -o size=1m none /dev/shm;";
    check_mounted("a_full_dev_shm_is_named", "-n 1", &script);
}

#[test]
fn a_quota_of_the_control_group_is_named() {
    let quota = "mount -t tmpfs none /sys/fs/cgroup; echo '50000 100000' > /sys/fs/cgroup/cpu.max;";
    let script = name_resolves_to("10.0.0.1") + quota;
    check_mounted("a_quota_of_the_control_group_is_named", "-n 1", &script);
}

#[test]
fn too_many_ranks_are_named() {
    let script = name_resolves_to("10.0.0.1");
    check_mounted("too_many_ranks_are_named", "-n 64", &script);
}

#[test]
fn a_disk_that_hangs_is_named() {
    // A frozen file system blocks writes, as a file server does that does not answer.
    let freeze = "truncate -s 8m /mnt/image; mkfs.ext4 -q /mnt/image; mkdir /mnt/checkpoints; \
        mount -o loop /mnt/image /mnt/checkpoints; fsfreeze -f /mnt/checkpoints;";
    // The process can end only once the file system continues.
    let thaw = "mkfifo /mnt/out; { head -n 1 < /mnt/out; fsfreeze -u /mnt/checkpoints; } & exec > /mnt/out;";
    let script = format!("{}{freeze}{thaw}", name_resolves_to("10.0.0.1"));
    check_mounted("a_disk_that_hangs_is_named", "-n 1 --folder /mnt/checkpoints", &script);
}
