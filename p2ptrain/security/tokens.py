"""Join tokens: what a person carries from a cluster to a new node.

``p2p1-`` and 64 characters of base32: 4 bytes that name the token, 18 of secret
(144 bits), 16 of the authority's SHA-256, 2 of checksum against typing errors. The
joiner trusts only an authority with that hash. The cluster keeps no token, only a key
derived from the secret, with expiry and remaining uses; one file, changed under a lock.
"""

import base64
import binascii
import fcntl
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from p2ptrain.errors import AuthError, ConfigError, StorageError
from p2ptrain.ids import NodeId
from p2ptrain.security.authority import fingerprint_of, load_authority
from p2ptrain.security.files import write_private

PREFIX = "p2p1-"
TOKENS_MAX = 256
USES_MAX = 1000
TTL_S_MAX = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Token:
    """A token in the hands of the joiner."""

    name: str  # hex
    secret: bytes
    authority: str  # the first half of the authority's fingerprint, hex

    @property
    def text(self) -> str:
        """The token as people pass it on."""
        body = bytes.fromhex(self.name) + self.secret + bytes.fromhex(self.authority)
        data = body + sha256(body).digest()[:2]
        return PREFIX + base64.b32encode(data).decode().lower()

    @property
    def key(self) -> bytes:
        """What both sides prove to know; derived from the secret."""
        return sha256(b"p2ptrain token" + self.secret).digest()


@dataclass(frozen=True, slots=True)
class Row:
    """What the cluster keeps of a token; ``key`` in hex.

    ``nodes`` got a certificate with it: one that asks again, because the answer was
    lost, costs no further use.
    """

    key: str
    expires: float  # seconds of the wall clock
    uses: int
    nodes: tuple[str, ...] = ()


def parse_token(text: str) -> Token:
    """Read a token.

    Raises:
        AuthError: mistyped or cut off.
    """
    try:
        if not text.startswith(PREFIX):
            raise AuthError(f"a token begins with {PREFIX!r}")
        data = base64.b32decode(text.removeprefix(PREFIX).upper())
    except (binascii.Error, ValueError) as error:
        raise AuthError("the token is mistyped or cut off") from error
    if len(data) != 40 or sha256(data[:38]).digest()[:2] != data[38:]:
        raise AuthError("the token is mistyped or cut off")
    return Token(data[:4].hex(), data[4:22], data[22:38].hex())


def issue_token(folder: Path, ttl_s: float, uses: int) -> str:
    """Make a token on a node that holds the authority; returns its text.

    Args:
        folder: the node's security folder.
        ttl_s: for how many seconds it is good.
        uses: how many nodes may join with it.

    Raises:
        AuthError: this node does not hold the authority.
        ConfigError: ttl_s or uses out of range, or too many tokens.
    """
    if not 0 < ttl_s <= TTL_S_MAX or not 0 < uses <= USES_MAX:
        raise ConfigError(
            f"a token for {ttl_s:g} s and {uses} uses: at most {TTL_S_MAX:g} s and "
            f"{USES_MAX} uses are allowed"
        )
    authority = fingerprint_of(load_authority(folder).cert)[:32]
    token = Token(secrets.token_hex(4), secrets.token_bytes(18), authority)
    with _rows(folder) as rows:
        if len(rows) >= TOKENS_MAX:
            raise ConfigError(f"{TOKENS_MAX} tokens are open; let some expire first")
        rows[token.name] = Row(token.key.hex(), time.time() + ttl_s, uses)
    return token.text


def token_key(folder: Path, name: str) -> bytes:
    """Return the key of an open token.

    Raises:
        AuthError: unknown, expired or used up.
    """
    with _rows(folder) as rows:
        return bytes.fromhex(_open_row(rows, name).key)


def spend_token(folder: Path, name: str, node: NodeId) -> None:
    """Use a token for a node, durably; the same node again is free.

    Raises:
        AuthError: unknown, expired or used up.
    """
    with _rows(folder) as rows:
        row = _open_row(rows, name)
        if node in row.nodes:
            return
        if row.uses < 1:
            raise AuthError(_USED_UP)
        rows[name] = replace(row, uses=row.uses - 1, nodes=(*row.nodes, node))


_USED_UP = "the token has been used up: get a new one from 'p2ptrain token'"


def _open_row(rows: dict[str, Row], name: str) -> Row:
    row = rows.get(name)
    if row is None or row.expires <= time.time():
        raise AuthError(
            "the token is unknown here or has expired: get a new one from "
            "'p2ptrain token'"
        )
    return row


@contextmanager
def _rows(folder: Path) -> Iterator[dict[str, Row]]:
    """Give the rows, locked against other processes; write them if they changed."""
    path = folder / "ca" / "tokens.json"
    try:
        lock = path.with_suffix(".lock").open("ab")
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _read(path)
        now = time.time()
        rows = {name: row for name, row in before.items() if row.expires > now}
        yield rows
        if rows != before:
            plain = {name: asdict(row) for name, row in rows.items()}
            write_private(path, json.dumps(plain, indent=1).encode())


def _read(path: Path) -> dict[str, Row]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Row])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, OSError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
