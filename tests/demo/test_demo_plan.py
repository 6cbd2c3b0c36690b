"""What is sent: the same for the same seed, and something of everything."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.demo import plan
from marq.demo.plan import ATTEMPTS, LONG_COUNT, LONG_SECONDS, Order


@given(st.integers(200, 3_000), st.integers())
def test_a_plan_has_everything_at_any_size(messages, seed):
    orders = plan.plan(messages, seed)
    assert [order.number for order in orders] == list(range(messages))
    kinds = Counter(order.kind for order in orders)
    assert kinds["poison"] == max(2, messages // 500)
    assert kinds["flaky"] == messages // 50
    assert kinds["slow"] == messages // 100 + LONG_COUNT
    assert kinds["plain"] > messages * 0.9
    assert plan.plan(messages, seed) == orders


def test_another_seed_is_another_plan():
    assert plan.plan(1000, 1) != plan.plan(1000, 2)


def test_the_longest_come_just_before_the_middle():
    longest = [order.number for order in plan.plan(10_000, 1) if order.seconds == LONG_SECONDS]
    assert len(longest) == LONG_COUNT
    assert 4_000 < min(longest) <= max(longest) < 5_000


@pytest.mark.parametrize(
    ("order", "failing"),
    [
        (Order(1), []),
        (Order(1, "slow", seconds=2.0), []),
        (Order(1, "flaky", failures=2), [1, 2]),
        (Order(1, "poison"), [1, 2, 3, 4]),
    ],
)
def test_which_attempts_fail(order, failing):
    assert [attempt for attempt in range(1, ATTEMPTS + 1) if plan.fails(order, attempt)] == failing


def test_a_flaky_order_survives_the_loss_of_an_attempt():
    worst = max(order.failures for order in plan.plan(10_000, 1))
    assert worst + 1 < ATTEMPTS
