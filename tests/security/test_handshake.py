"""The frames and proofs of enrolment, over streams in memory."""

from collections.abc import Callable
from itertools import combinations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import PeerError
from p2ptrain.security.handshake import (
    FRAME_MAX,
    Grant,
    Open,
    Refusal,
    Transcript,
    receive_frame,
    send_frame,
)


def run_with(data: bytes) -> object:
    async def main() -> object:
        left, right = trio.testing.memory_stream_pair()
        await left.send_all(data)
        await left.send_eof()
        return await receive_frame(right, Open)

    return trio.run(main)


async def test_frames_go_through() -> None:
    left, right = trio.testing.memory_stream_pair()
    for frame in (Open(1, "aa", b"n"), Refusal("no")):
        await send_frame(left, frame)
        assert await receive_frame(right, Open) == frame


async def test_another_kind_is_refused() -> None:
    left, right = trio.testing.memory_stream_pair()
    await send_frame(left, Grant(b"", ()))
    with pytest.raises(PeerError, match="Grant where Open belongs"):
        await receive_frame(right, Open)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        run_with(data)


def test_a_long_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match="at most"):
        run_with((FRAME_MAX + 1).to_bytes(4, "little"))


def test_every_part_of_a_transcript_counts() -> None:
    same = Transcript(b"k", b"j", b"s", b"c")
    others = [
        Transcript(b"K", b"j", b"s", b"c"),
        Transcript(b"k", b"J", b"s", b"c"),
        Transcript(b"k", b"j", b"S", b"c"),
        Transcript(b"k", b"j", b"s", b"C"),
        Transcript(b"k", b"js", b"", b"c"),
    ]
    proofs: list[Callable[[Transcript], bytes]] = [
        Transcript.server_proof,
        lambda one: one.joiner_proof(b"request"),
        lambda one: one.joiner_proof(b"another"),
    ]
    seen = [proof(one) for one in (same, *others) for proof in proofs]
    assert all(a != b for a, b in combinations(seen, 2))
    assert same.server_proof() == Transcript(b"k", b"j", b"s", b"c").server_proof()
