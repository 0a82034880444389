"""Values in sentences: whatever they are, what is shown of them is short."""

import re
from collections.abc import Sequence

SHOWN = 60
_ODD = re.compile(r"[^\x20-\x7e]")


def show(value: object) -> str:
    """Return a value as at most a line of printable text."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return _cut(repr(_ODD.sub("?", value[: SHOWN + 1])))
    if isinstance(value, tuple | list):
        more = ", ..." if len(value) > 8 else ""
        return f"[{', '.join(map(show, value[:8]))}{more}]"
    return _cut(_ODD.sub("?", repr(value)))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def spell(dtype: str, shape: Sequence[int]) -> str:
    """Return a tensor's dtype and shape, for example ``float32[2, 3]``."""
    return dtype + show(tuple(shape))
