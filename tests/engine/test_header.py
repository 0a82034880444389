"""Frame headers."""

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine.header import BLAME, HEADER, MAGIC, Header
from p2ptrain.errors import PeerError

U16, U32, U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))


@given(
    st.builds(
        Header,
        kind=st.integers(0, BLAME),
        view=U32,
        turn=U64,
        op=U16,
        origin=U16,
        start=U64,
        length=U64,
    )
)
def test_round_trip(header: Header) -> None:
    assert Header.unpack(header.pack()) == header


@given(st.binary(min_size=HEADER.size, max_size=HEADER.size))
def test_any_bytes_give_a_header_or_a_peer_error(data: bytes) -> None:
    try:
        header = Header.unpack(data)
    except PeerError:
        assert data[:4] != MAGIC or data[4] > BLAME
    else:
        assert header.pack() == data
