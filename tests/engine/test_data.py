"""The fast order equals its definition; feeds give every input of the same samples."""

import threading

import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core import stream
from p2ptrain.engine import data
from p2ptrain.engine.data import Feed, SampleOrder


@given(st.integers(0, 2**64), st.integers(0, 50), st.integers(1, 300))
def test_the_order_is_the_definition(seed, epoch, samples):
    order = SampleOrder(seed, samples)
    assert list(order(epoch)) == stream.permutation(seed, epoch, samples)


def test_two_permutations_are_kept_and_no_more(monkeypatch):
    drawn = []
    real = stream.epoch_keys

    def keys(seed, epoch, samples):
        drawn.append(epoch)
        return real(seed, epoch, samples)

    monkeypatch.setattr(stream, "epoch_keys", keys)
    order = SampleOrder(1, 8)
    for epoch in (0, 1, 0, 1, 2, 1, 3, 1, 0, 1):
        order(epoch)
    assert drawn == [0, 1, 2, 3, 0]
    assert len(order._kept) == data.KEPT


def test_lanes_may_ask_at_the_same_time():
    order, wrong = SampleOrder(3, 50), []
    truth = [stream.permutation(3, epoch, 50) for epoch in range(40)]

    def ask():
        wrong.extend(e for e in range(40) if list(order(e)) != truth[e])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Rows:
    def __init__(self, table):
        self.table = table

    def take(self, indices):
        return self.table[indices]


def test_a_feed_gives_every_input_of_the_same_samples():
    x, y = torch.randn(9, 2), torch.arange(9)
    feed = Feed({"x": Rows(x), "y": Rows(y)}, torch.device("cpu"))
    taken = feed.take([3, 3, 8])
    assert torch.equal(taken["x"], x[[3, 3, 8]])
    assert torch.equal(taken["y"], y[[3, 3, 8]])
