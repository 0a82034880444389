"""Finding each other by multicast DNS, on the loopback interface."""

import sys
from collections.abc import Callable

import pytest
import trio

from p2ptrain.errors import ConfigError
from p2ptrain.ids import NodeId
from p2ptrain.net import mdns
from p2ptrain.net.mdns import Announcement, MdnsBeacon

LOOPBACK = ("127.0.0.1",)


def announcement(digit: str, cluster: str, port: int) -> Announcement:
    return Announcement(NodeId(digit * 32), cluster, LOOPBACK, port)


@pytest.mark.net
async def test_members_of_one_cluster_find_each_other_and_no_one_else() -> None:
    seen: dict[int, set[str]] = {1: set(), 2: set(), 3: set()}
    both = trio.Event()

    def note(index: int) -> Callable[[str], None]:
        def found(address: str) -> None:
            seen[index].add(address)
            if seen[1] and seen[2]:
                both.set()

        return found

    async with trio.open_nursery() as nursery:
        for index, cluster in ((3, "other"), (1, "lab"), (2, "lab")):
            mine = announcement(str(index), cluster, 7000 + index)
            nursery.start_soon(MdnsBeacon(mine, LOOPBACK).run, note(index))
        with trio.fail_after(20.0):
            await both.wait()
        nursery.cancel_scope.cancel()
    assert seen == {1: {"127.0.0.1:7002"}, 2: {"127.0.0.1:7001"}, 3: set()}


@pytest.mark.net
async def test_it_stops_when_cancelled() -> None:
    beacon = MdnsBeacon(announcement("4", "lab", 7004), LOOPBACK)
    with trio.fail_after(10.0):
        with trio.move_on_after(0.3):
            await beacon.run(lambda _: None)


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"p2ptrain\[mdns\]"):
        MdnsBeacon(announcement("1", "lab", 1))


def test_a_host_name_is_no_address() -> None:
    mine = Announcement(NodeId("1" * 32), "lab", ("box.lan",), 1)
    with pytest.raises(ConfigError, match=r"box\.lan"):
        MdnsBeacon(mine)


def test_ipv6_addresses_get_brackets() -> None:
    assert mdns._address("fd00::2", 7) == "[fd00::2]:7"
    assert mdns._address("10.0.0.2", 7) == "10.0.0.2:7"


def test_importing_the_module_does_not_import_the_package() -> None:
    assert "zeroconf" not in vars(mdns)
    assert sys.modules["p2ptrain.net.mdns"] is mdns
