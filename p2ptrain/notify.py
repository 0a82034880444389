"""systemd's notification protocol (sd_notify(3)): a datagram to ``NOTIFY_SOCKET``."""

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Notifier:
    """Says nothing when systemd did not start us.

    Args:
        address: the notify socket's path; a leading ``@`` means abstract.
        watchdog_s: how often systemd wants to hear from us, 0 for never.
    """

    address: str = ""
    watchdog_s: float = 0.0

    @classmethod
    def from_environment(cls) -> "Notifier":
        """Return the notifier that the environment describes."""
        address = os.environ.get("NOTIFY_SOCKET", "")
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = os.environ.get("WATCHDOG_USEC", "0")
        watchdog_s = int(usec) / 1e6 if ours and usec.isdecimal() else 0.0
        return cls(address=address, watchdog_s=watchdog_s)

    def ready(self, status: str) -> None:
        """Starting is done."""
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Shutdown has begun."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self.address:
            return
        name = self.address
        if name.startswith("@"):
            name = "\0" + name[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.sendto(text.encode(), name)
            except OSError:
                return  # systemd is gone or its queue is full: nothing to do about it
