"""A deadline that follows what was seen."""

import pytest

from p2ptrain.core.patience import Patience


def learned(*seconds: float) -> Patience:
    patience = Patience(floor_s=4.0, cap_s=100.0, times=10.0)
    for each in seconds:
        patience.observe(each)
    return patience


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        ((), 4.0),
        ((0.01,) * 9, 4.0),
        ((2.0,) * 9, 20.0),
        ((1.0, 2.0, 3.0), 28.0),  # the spread is a second
        ((50.0,), 100.0),
    ],
)
def test_the_limit_follows_median_and_spread(seen: tuple[float, ...], limit: float):
    assert learned(*seen).limit_s == pytest.approx(limit)


def test_one_slow_step_among_many_changes_little() -> None:
    assert learned(*[1.0] * 20, 60.0).limit_s == pytest.approx(10.0)


def test_only_the_newest_count() -> None:
    patience = learned(*[9.0] * 64, *[1.0] * 64)
    assert patience.limit_s == pytest.approx(10.0)
    patience.forget()
    assert patience.limit_s == 4.0
