//! Hosts with networks of their own: network namespaces that are joined by switches.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests; each program uses a part of this")]

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

const PREFIX: &str = "comm-test";

/// Hosts, each with an interface to every switch: `eth0` to the first, `ib0` to the second. They
/// are removed when this is dropped, also by a panic.
pub(crate) struct Hosts {
    /// The start of the names of all namespaces.
    name: String,
    hosts: usize,
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The address of a host on a switch.
pub(crate) fn address(family: Family, switch: usize, host: usize) -> String {
    match family {
        Family::V4 => format!("10.99.{switch}.{}", host + 1),
        Family::V6 => format!("fd99:{switch}::{}", host + 1),
    }
}

pub(crate) const INTERFACES: [&str; 2] = ["eth0", "ib0"];

/// The number of bytes that an interface of this host has received.
pub(crate) fn received(interface: &str) -> u64 {
    let counters = fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = counters.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:")));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

impl Hosts {
    /// Creates hosts, or states on the terminal why this system cannot.
    pub(crate) fn new(hosts: usize, switches: usize) -> Option<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        remove_those_of_dead_tests();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("{PREFIX}-{}-{count}", std::process::id()), hosts };
        if let Err(reason) = ip(&["netns", "add", &network.hub()]) {
            // Unlike a macro, this is not captured.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: this test needs network namespaces, which take root and iproute2: {reason}"
            );
            return None;
        }
        for switch in 0..switches {
            let bridge = format!("switch{switch}");
            network.hub_ip(&["link", "add", &bridge, "type", "bridge"]);
            network.hub_ip(&["link", "set", &bridge, "up"]);
        }
        for host in 0..hosts {
            ip(&["netns", "add", &network.host(host)]).unwrap();
            network.host_ip(host, &["link", "set", "lo", "up"]);
            (0..switches).for_each(|switch| network.connect(host, switch));
        }
        Some(network)
    }

    fn connect(&self, host: usize, switch: usize) {
        let (interface, port) = (INTERFACES[switch], port(switch, host));
        let peer = ["type", "veth", "peer", "name", &port, "netns", &self.hub()];
        self.host_ip(host, &[&["link", "add", interface][..], &peer].concat());
        for (family, bits) in [(Family::V4, 24), (Family::V6, 64)] {
            let address = format!("{}/{bits}", address(family, switch, host));
            // Without a check for duplicates, an IPv6 address can be used at once.
            let nodad = if family == Family::V6 { &["nodad"][..] } else { &[] };
            self.host_ip(host, &[&["addr", "add", &address, "dev", interface], nodad].concat());
        }
        self.host_ip(host, &["link", "set", interface, "up"]);
        self.hub_ip(&["link", "set", &port, "master", &format!("switch{switch}"), "up"]);
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn host(&self, host: usize) -> String {
        format!("{}-{host}", self.name)
    }

    fn hub_ip(&self, arguments: &[&str]) {
        ip(&[&["-n", &self.hub()], arguments].concat()).unwrap();
    }

    pub(crate) fn host_ip(&self, host: usize, arguments: &[&str]) {
        ip(&[&["-n", &self.host(host)], arguments].concat()).unwrap();
    }

    /// Puts a host behind another one, which forwards these TCP ports of its own address on the
    /// first switch to it. States on the terminal if the system cannot translate addresses.
    pub(crate) fn hide_behind(&self, router: usize, host: usize, ports: &str) -> bool {
        let (hidden, gateway) = (address(Family::V4, 1, host), address(Family::V4, 1, router));
        let rules = format!(
            "echo 1 > /proc/sys/net/ipv4/ip_forward && exec nft '
                table ip nat {{
                    chain incoming {{ type nat hook prerouting priority dstnat;
                        iifname eth0 tcp dport {ports} dnat to {hidden}; }}
                    chain outgoing {{ type nat hook postrouting priority srcnat;
                        oifname eth0 masquerade; }}
                }}'"
        );
        if let Err(reason) = ip(&["netns", "exec", &self.host(router), "sh", "-c", &rules]) {
            let _ = writeln!(std::io::stderr(), "skipped: this test needs nftables: {reason}");
            return false;
        }
        self.host_ip(host, &["link", "set", "eth0", "down"]);
        self.host_ip(host, &["route", "add", "default", "via", &gateway]);
        true
    }

    /// Limits the rate at which a host sends on a switch. States on the terminal if the system
    /// cannot do that.
    pub(crate) fn limit_link(&self, host: usize, switch: usize, megabits: u32) -> bool {
        let rate = format!("{megabits}mbit");
        let tc = ["tc", "qdisc", "add", "dev", INTERFACES[switch], "root", "tbf", "rate", &rate];
        let rest = ["burst", "128kb", "latency", "20ms"];
        let limited = ip(&[&["netns", "exec", &self.host(host)], &tc[..], &rest].concat());
        if let Err(reason) = &limited {
            let _ = writeln!(std::io::stderr(), "skipped: this test needs tc with tbf: {reason}");
        }
        limited.is_ok()
    }

    /// Limits the rate at which each connection of a host sends on the first switch, and the rate
    /// of all together. Connections whose source ports differ in the low byte are limited
    /// separately. States on the terminal if the system cannot do that.
    pub(crate) fn limit_connections(&self, host: usize, megabits: u32, total_megabits: u32) -> bool {
        let mut rules = String::from("qdisc add dev eth0 root handle 1: htb\n");
        rules += &format!(
            "class add dev eth0 parent 1: classid 1:fff htb rate {total_megabits}mbit quantum 60000\n"
        );
        let filter = "filter add dev eth0 parent 1: protocol ip prio 1";
        rules += &format!("{filter} handle 2: u32 divisor 256\n");
        for (at, class) in (0..256).map(|at| (at, at + 1)) {
            rules += &format!(
                "class add dev eth0 parent 1:fff classid 1:{class:x} htb rate 1mbit ceil {megabits}mbit \
                 quantum 60000\n"
            );
            rules += &format!("{filter} u32 ht 2:{at:x}: match u32 0 0 flowid 1:{class:x}\n");
        }
        // The source port of TCP follows the 20 bytes of the header of IP.
        rules += &format!(
            "{filter} u32 ht 800:: match ip protocol 6 0xff hashkey mask 0x00ff0000 at 20 link 2:\n"
        );
        let mut command = self.command(host);
        command
            .args(["tc", "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let limited = command.spawn().and_then(|mut tc| {
            tc.stdin.take().unwrap().write_all(rules.as_bytes())?;
            tc.wait_with_output()
        });
        let reason = match limited {
            Ok(output) if output.status.success() => return true,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(std::io::stderr(), "skipped: this test needs tc with htb and u32: {reason}");
        false
    }

    /// Cuts a host off the first switch: packets are lost in both directions, without any sign to
    /// the other hosts.
    pub(crate) fn cut_off(&self, host: usize) {
        self.hub_ip(&["link", "set", &port(0, host), "down"]);
    }

    /// Waits until all interfaces are in the state in which others use them.
    pub(crate) fn await_interfaces(&self) {
        let are_up = |host: usize| {
            let links = ip(&["-n", &self.host(host), "-oneline", "link", "show", "type", "veth"]).unwrap();
            links.lines().all(|link| link.contains("state UP"))
        };
        while !(0..self.hosts).all(are_up) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Makes a switch lose all packets from and to a host, without any sign to any host.
    pub(crate) fn isolate(&self, host: usize, switch: usize) {
        self.hub_ip(&["link", "set", &port(switch, host), "nomaster"]);
    }

    pub(crate) fn reconnect(&self, host: usize) {
        self.hub_ip(&["link", "set", &port(0, host), "up"]);
    }

    /// Returns a command that runs the program and the arguments that are added to it on a host.
    pub(crate) fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host)]);
        command
    }

    pub(crate) const fn count(&self) -> usize {
        self.hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let hosts = (0..self.hosts).map(|host| self.host(host));
        for namespace in hosts.chain([self.hub()]) {
            // It does not exist if the system cannot create it.
            let _ = ip(&["netns", "del", &namespace]);
        }
    }
}

/// The switch's end of the cable to a host.
fn port(switch: usize, host: usize) -> String {
    format!("s{switch}h{host}")
}

/// Runs `ip`, and returns the reason if it fails.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run `ip`: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!("`ip {}`: {}", arguments.join(" "), text(&output.stderr)))
}

/// Removes namespaces of tests that were killed.
fn remove_those_of_dead_tests() {
    for namespace in ip(&["netns", "list"]).unwrap_or_default().split_whitespace() {
        let process = namespace.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        if process.is_some_and(|process| !fs::exists(format!("/proc/{process}")).unwrap_or(true)) {
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}
