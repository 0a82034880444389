"""The bulk plane's bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import codec
from p2ptrain.errors import PeerError
from p2ptrain.ids import Digest, digest_of
from p2ptrain.messages.bulk import (
    BULK_BYTES_MAX,
    PIECE_BYTES_MAX,
    PieceAsk,
    pack_piece,
    pack_problem,
    unpack_ask,
    unpack_reply,
)

DIGEST = digest_of(b"x")


def test_a_request_is_what_the_design_says() -> None:
    body = PieceAsk(DIGEST, 7, 100).pack()
    assert codec.decode(body) == [DIGEST, 7, 100]
    assert unpack_ask(body) == PieceAsk(DIGEST, 7, 100)


@pytest.mark.parametrize(
    "plain",
    [
        [DIGEST, 0],
        [DIGEST, 0, 1, 2],
        [DIGEST, -1, 1],
        [DIGEST, 1 << 63, 1],
        [DIGEST, 0, 0],
        [DIGEST, 0, -5],
        [DIGEST, 0, PIECE_BYTES_MAX + 1],
        [DIGEST, 0.0, 1],
        [DIGEST, True, 1],
        ["../../etc/passwd", 0, 1],
        [b"", 0, 1],
        {},
        None,
    ],
)
def test_other_requests_are_refused(plain: object) -> None:
    with pytest.raises(PeerError):
        unpack_ask(codec.encode(plain))


@pytest.mark.parametrize("data", [b"", b"x", bytes(PIECE_BYTES_MAX)])
def test_a_reply_carries_raw_bytes(data: bytes) -> None:
    body = pack_piece(data)
    assert body.endswith(data)
    assert len(body) <= BULK_BYTES_MAX
    header, got = unpack_reply(body)
    assert (header.ok, header.size, header.problem) == (True, len(data), "")
    assert got == data


def test_a_problem_is_a_bounded_sentence() -> None:
    body = pack_problem("blob is not held here" + "\u00e9" * 10_000)
    header, data = unpack_reply(body)
    assert not header.ok
    assert header.problem.startswith("blob is not held here")
    assert data == b""
    assert len(body) < 1024


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01\x00\x00",
        struct.pack("<I", 5) + b"abc",
        struct.pack("<I", 2000) + bytes(3000),
        struct.pack("<I", 1) + b"\x80",
        pack_piece(b"abc") + b"d",
        pack_piece(b"abc")[:-1],
    ],
)
def test_malformed_replies_are_refused(body: bytes) -> None:
    with pytest.raises(PeerError):
        unpack_reply(body)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_peer_error(data: bytes) -> None:
    for unpack in (unpack_ask, unpack_reply):
        try:
            unpack(data)
        except PeerError:
            continue


def test_the_digest_is_checked_before_it_is_used() -> None:
    with pytest.raises(PeerError, match="no digest"):
        unpack_ask(PieceAsk(Digest("z" * 64), 0, 1).pack())
