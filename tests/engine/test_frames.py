"""Frames survive any cut of the byte stream, and refuse what is no frame."""

import itertools
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import codec
from p2ptrain.engine import frames
from p2ptrain.engine.frames import Splitter
from p2ptrain.errors import PeerError
from p2ptrain.messages.trainer import Fault, HaltView, Quit, ToTrainer

TABLE = codec.kinds(ToTrainer)
MESSAGES = [HaltView(3, "enough", True), Quit(), HaltView(4, "x" * 300, False)]
STREAM = b"".join(map(frames.frame_of, MESSAGES))


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_messages(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    splitter = Splitter(TABLE)
    got = []
    for begin, end in itertools.pairwise(edges):
        got += splitter.feed(STREAM[begin:end])
    assert got == MESSAGES


def test_a_blocking_stream_is_read_to_its_end():
    stream = BytesIO(STREAM)
    got = [frames.read_frame(stream, TABLE) for _ in range(4)]
    assert got == [*MESSAGES, None]


@pytest.mark.parametrize("kept", [1, 3, 5, 20])
def test_a_cut_off_frame_is_the_end(kept):
    assert frames.read_frame(BytesIO(STREAM[:kept]), TABLE) is None


def test_a_length_over_the_bound_is_refused_before_memory_is_taken():
    header = (frames.FRAME_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(PeerError, match="exceeds the bound"):
        Splitter(TABLE).feed(header)
    with pytest.raises(PeerError, match="exceeds the bound"):
        frames.read_frame(BytesIO(header), TABLE)


def test_a_message_over_the_bound_is_not_framed():
    with pytest.raises(PeerError, match="Fault of 4194"):
        frames.frame_of(Fault("x" * frames.FRAME_BYTES_MAX))


def test_a_message_of_the_wrong_direction_is_refused():
    with pytest.raises(PeerError, match="unknown message kind 'Fault'"):
        Splitter(TABLE).feed(frames.frame_of(Fault("no")))
