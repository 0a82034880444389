"""A count of changes that tasks wait on: level-triggered, so no change is missed."""

import trio


class Changes:
    """Rises with every change of something that others watch."""

    def __init__(self) -> None:
        self.count = 0
        self._lot = trio.lowlevel.ParkingLot()

    def bump(self) -> None:
        """Something has changed."""
        self.count += 1
        self._lot.unpark_all()

    async def wait(self, seen: int) -> int:
        """Wait until the count is not ``seen`` any more, and return it."""
        await trio.lowlevel.checkpoint()
        while self.count == seen:
            await self._lot.park()
        return self.count
