"""A small network of its own: hosts in namespaces, joined by a bridge in another.

Nothing touches the machine's own network. Needs root, ``ip``, ``nft`` and ``tc``.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

TABLE = """
table inet chaos {
  chain in { type filter hook input priority 0; policy accept; }
  chain out { type filter hook output priority 0; policy accept; }
}
"""


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def why_not() -> str:
    """Return why namespaces cannot be made here, or nothing."""
    missing = [tool for tool in ("ip", "nft", "tc") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing:
        return f"{', '.join(missing)} is not installed"
    try:
        with lan(1):
            return ""
    except OSError as error:
        return f"no network namespaces here: {error}"


@dataclass
class Lan:
    """Hosts 0, 1, ... with addresses 10.77.0.1, 10.77.0.2, ..."""

    count: int
    name: str = field(default_factory=lambda: f"p2p{os.getpid()}")

    def host(self, index: int) -> str:
        return f"{self.name}h{index}"

    def address(self, index: int) -> str:
        return f"10.77.0.{index + 1}"

    def inside(self, index: int) -> tuple[str, ...]:
        """Return what a command begins with to run on a host."""
        return ("ip", "netns", "exec", self.host(index))

    def build(self) -> None:
        switch = f"{self.name}sw"
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "br0", "up")
        for index in range(self.count):
            host, port = self.host(index), f"p{index}"
            run("ip", "netns", "add", host)
            run(
                *("ip", "-n", switch, "link", "add", port, "type", "veth"),
                *("peer", "name", "eth0", "netns", host),
            )
            run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            run(
                "ip",
                "-n",
                host,
                "addr",
                "add",
                self.address(index) + "/24",
                "dev",
                "eth0",
            )
            run("ip", "-n", host, "link", "set", "eth0", "up")
            run("ip", "-n", host, "link", "set", "lo", "up")
            run(*self.inside(index), "nft", TABLE)

    def remove(self) -> None:
        for name in [*map(self.host, range(self.count)), f"{self.name}sw"]:
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, check=False
            )

    def rule(self, index: int, chain: str, rule: str) -> None:
        run(*self.inside(index), "nft", f"add rule inet chaos {chain} {rule}")

    def cut_one_way(self, source: int, target: int) -> None:
        """Drop what a host sends to another."""
        self.rule(source, "out", f"ip daddr {self.address(target)} drop")

    def isolate(self, index: int) -> None:
        """Drop all that a host sends and is sent."""
        self.rule(index, "out", 'oifname "eth0" drop')
        self.rule(index, "in", 'iifname "eth0" drop')

    def lose(self, index: int, percent: int) -> None:
        """Drop packets of a host at random, in both directions."""
        for chain, way in (("in", "iifname"), ("out", "oifname")):
            chance = f'{way} "eth0" numgen random mod 100 < {percent} drop'
            self.rule(index, chain, chance)

    def limit(self, index: int, mbit: int) -> None:
        """Limit what a host sends."""
        run(
            *(*self.inside(index), "tc", "qdisc", "replace", "dev", "eth0", "root"),
            *("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"),
        )

    def heal(self) -> None:
        """Let everything through again."""
        for index in range(self.count):
            for chain in ("in", "out"):
                run(*self.inside(index), "nft", f"flush chain inet chaos {chain}")


@contextmanager
def lan(count: int) -> Iterator[Lan]:
    """Build a network, and remove it whatever happens."""
    made = Lan(count)
    made.remove()
    try:
        made.build()
        yield made
    finally:
        made.remove()
