"""``python -m tests.sim --seeds 50000``: the simulator for a whole night."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.sim.storm import play


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        broken = play(arguments.seed)
        say(broken or f"seed {arguments.seed} holds")
        return 1 if broken else 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    began, failed = time.monotonic(), 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for count, broken in enumerate(pool.map(play, seeds, chunksize=4), start=1):
            if broken:
                failed += 1
                say(broken)
            if count % 500 == 0 or count == len(seeds):
                rate = count / (time.monotonic() - began)
                say(f"{count} seeds, {failed} failed, {rate:.1f} a second")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
