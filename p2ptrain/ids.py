"""Identifiers, their text forms, and how they are made; validation is total.

A digest is the BLAKE3 of bytes as 64 lower-case hex digits. A node id is 32 hex digits:
with TLS the head of the BLAKE3 of the node's public key, without TLS drawn once and
kept. A session id follows from the key that the client chose, so that submitting twice
names the same session.
"""

import re
from typing import NewType

from blake3 import blake3

NodeId = NewType("NodeId", str)
SessionId = NewType("SessionId", str)
Digest = NewType("Digest", str)
ClusterId = NewType("ClusterId", str)

_NODE = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SESSION = re.compile(r"s-[0-9a-f]{12}")


def digest_of(data: bytes | bytearray | memoryview) -> Digest:
    """Return the BLAKE3 digest of data; hash more than 1 MB off the trio thread."""
    return Digest(blake3(data).hexdigest())


def session_of(key: str) -> SessionId:
    """Return the session id that follows from a client's submission key."""
    return SessionId("s-" + blake3(b"session:" + key.encode()).hexdigest()[:12])


def node_of(public_key: bytes) -> NodeId:
    """Return the node id that follows from a public key (DER)."""
    return NodeId(blake3(b"node:" + public_key).hexdigest()[:32])


def is_node(text: str) -> bool:
    """Tell whether text is a node id."""
    return _NODE.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    """Tell whether text is a digest."""
    return _DIGEST.fullmatch(text) is not None


def is_session(text: str) -> bool:
    """Tell whether text is a session id."""
    return _SESSION.fullmatch(text) is not None
