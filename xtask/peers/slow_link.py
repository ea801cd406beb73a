"""Runs one rank of a program in each of two network namespaces, joined by a slow link.

    python3 xtask/peers/slow_link.py --mbit 100 --delay-ms 50 -- PROGRAM [ARGUMENT...]

Every packet crosses this process, which sends each direction at the given rate and delivers packets after the given
one-way delay, so no queueing discipline of the kernel is needed. A queue holds one round trip of packets and drops what
does not fit. Needs root, `ip` and /dev/net/tun. Prints the bytes of each direction as JSON, and exits with the first
status of a rank that is not 0.
"""

import argparse
import collections
import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1500


class Direction:
    """Packets from one device to the other."""

    def __init__(self, source, destination, bytes_per_second, delay):
        self.source, self.destination = source, destination
        self.bytes_per_second, self.delay = bytes_per_second, delay
        self.packets_max = max(64, int(bytes_per_second * 2 * delay / MTU))
        self.queue, self.changed = collections.deque(), threading.Condition()
        self.bytes = self.dropped = 0
        for run in (self.receive, self.deliver):
            threading.Thread(target=run, daemon=True).start()

    def receive(self):
        idle_from = 0.0
        while True:
            try:
                packet = os.read(self.source, MTU + 64)
            except OSError:
                return  # The device is gone: its namespace was removed.
            now = time.monotonic()
            with self.changed:
                # A packet waits in the queue until those before it are sent, and is then in flight.
                waiting = (idle_from - now) * self.bytes_per_second / MTU
                if waiting > self.packets_max:
                    self.dropped += 1
                    continue
                idle_from = max(idle_from, now) + len(packet) / self.bytes_per_second
                self.bytes += len(packet)
                self.queue.append((idle_from + self.delay, packet))
                self.changed.notify()

    def deliver(self):
        while True:
            with self.changed:
                while not self.queue:
                    self.changed.wait()
                due, packet = self.queue.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                os.write(self.destination, packet)
            except OSError:
                return


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def open_device(number, namespace):
    """Creates a device in a namespace, and returns the file from which its packets are read."""
    name = f"comm{number}"
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    ip("link", "set", name, "netns", namespace)
    ip("-n", namespace, "addr", "add", address(number), "peer", address(1 - number), "dev", name)
    ip("-n", namespace, "link", "set", name, "mtu", str(MTU), "up")
    ip("-n", namespace, "link", "set", "lo", "up")
    return device


def address(number):
    return f"10.99.0.{number + 1}"


def start(rank, namespace, command):
    environment = dict(
        os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", COMM_HOSTID=namespace,
        MASTER_ADDR=address(0), MASTER_PORT="29500", COMM_SECRET=os.environ.get("COMM_SECRET", namespace_secret))
    return subprocess.Popen(["ip", "netns", "exec", namespace, *command], env=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mbit", type=float, default=100, help="rate of each direction in Mbit/s")
    parser.add_argument("--delay-ms", type=float, default=50, help="one-way delay in milliseconds")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    namespaces = [f"comm-{os.getpid()}-{number}" for number in range(2)]
    made, ranks = [], []
    try:
        for namespace in namespaces:
            ip("netns", "add", namespace)
            made.append(namespace)
        devices = [open_device(number, namespace) for number, namespace in enumerate(namespaces)]
        rate, delay = options.mbit * 125_000, options.delay_ms / 1000
        directions = [Direction(*pair, rate, delay) for pair in (devices, devices[::-1])]
        ranks = [start(rank, namespace, options.command) for rank, namespace in enumerate(namespaces)]
        status = [rank.wait() for rank in ranks]
        report = {f"rank_{number}": {"bytes": link.bytes, "dropped": link.dropped} for number, link in enumerate(directions)}
        print(json.dumps({"sent_by": report}), flush=True)
    finally:
        for rank in ranks:
            rank.kill()
        for namespace in made:
            ip("netns", "del", namespace)
    sys.exit(next((code for code in status if code != 0), 0))


namespace_secret = os.urandom(16).hex()

if __name__ == "__main__":
    main()
