import pytest
import trio
import trio.testing

from p2ptrain.errors import PeerError
from p2ptrain.frames import FrameStream


def pair(bytes_max: int = 100) -> tuple[trio.abc.Stream, FrameStream]:
    left, right = trio.testing.memory_stream_pair()
    return left, FrameStream(right, bytes_max)


async def test_frames_come_whole_however_the_bytes_come() -> None:
    raw, frames = pair()
    for byte in b"\x03\x00\x00\x00abc\x00\x00\x00\x00\x01\x00\x00\x00d":
        await raw.send_all(bytes([byte]))
    assert [await frames.receive() for _ in range(3)] == [b"abc", b"", b"d"]


async def test_what_is_sent_is_received() -> None:
    left, right = trio.testing.memory_stream_pair()
    sender, receiver = FrameStream(left, 10), FrameStream(right, 10)
    await sender.send(b"hello")
    await left.aclose()
    assert await receiver.receive() == b"hello"
    assert await receiver.receive() is None


@pytest.mark.parametrize("data", [b"\x03", b"\x03\x00\x00\x00", b"\x03\x00\x00\x00ab"])
async def test_an_end_in_a_frame_is_a_fault(data: bytes) -> None:
    raw, frames = pair()
    await raw.send_all(data)
    await raw.aclose()
    with pytest.raises(PeerError, match="ended in a frame"):
        await frames.receive()


async def test_a_frame_over_the_bound_is_refused_before_it_is_read() -> None:
    raw, frames = pair(bytes_max=100)
    await raw.send_all(b"\x65\x00\x00\x00")
    with pytest.raises(PeerError, match="frame of 101 bytes; at most 100"):
        await frames.receive()
