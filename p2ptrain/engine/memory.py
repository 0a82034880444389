"""Makes the C library keep freed memory between steps.

Every step of a graph needs the same memory again. By default glibc gives large blocks
back to the kernel as they are freed, and the kernel clears them anew, page by page,
when they are next asked for; a small GPT spends a tenth of its step there.
"""

import ctypes
from typing import Final

TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD of <malloc.h>
MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD
KEPT_BYTES: Final = 256 * 1024 * 1024
BLOCK_BYTES: Final = 32 * 1024 * 1024  # the largest that glibc admits


def keep_freed_memory() -> bool:
    """Let the process keep up to ``KEPT_BYTES`` of freed memory.

    Returns:
        Whether the C library can be told so; it is glibc's alone to understand.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    done = [
        mallopt(MMAP_THRESHOLD, BLOCK_BYTES),
        mallopt(TRIM_THRESHOLD, KEPT_BYTES),
    ]
    return all(done)
