"""A partition whose last owner died is handled with care, a bounded number of messages and a bounded time long."""

from hypothesis import given
from hypothesis import strategies as st

from marq.core.caution import CAREFUL_SECONDS, CLEAN, OPEN, Caution

HERE, THERE = ("t", 0), ("t", 1)


def test_a_partition_left_in_order_is_trusted():
    caution = Caution(100)
    assert caution.assigned(HERE, CLEAN, now=5.0)
    assert not caution.leases_first(HERE, 10)
    assert not caution.commits_now(5.0)


def test_a_dead_owner_and_no_owner_at_all_are_not():
    for metadata in (OPEN, None, "", "somebody else's note"):
        caution = Caution(100)
        assert not caution.assigned(HERE, metadata, now=5.0)
        assert caution.leases_first(HERE, 10)
        assert not caution.leases_first(THERE, 10)
        assert caution.commits_now(5.0 + CAREFUL_SECONDS - 0.1)
        assert not caution.commits_now(5.0 + CAREFUL_SECONDS)


@given(st.integers(1, 1000), st.lists(st.integers(1, 300), min_size=1, max_size=50))
def test_at_least_a_window_of_messages_is_leased_first_and_not_a_run_more(window, runs):
    caution = Caution(window)
    caution.assigned(HERE, OPEN, now=0.0)
    first = [caution.leases_first(HERE, count) for count in runs]
    leased = sum(count for count, leases in zip(runs, first, strict=True) if leases)
    assert leased >= min(window, sum(runs))
    assert first == sorted(first, reverse=True)
    last = max((count for count, leases in zip(runs, first, strict=True) if leases), default=0)
    assert leased - last < window


def test_what_was_announced_is_forgotten_with_the_partition():
    caution = Caution(10)
    caution.assigned(HERE, OPEN, now=0.0)
    assert caution.is_unannounced([HERE])
    caution.announced([HERE, THERE])
    assert not caution.is_unannounced([HERE, THERE])
    caution.dropped(HERE)
    assert caution.is_unannounced([HERE, THERE])
    assert not caution.leases_first(HERE, 1)


def test_who_has_not_looked_through_what_a_dead_owner_left_does_not_vouch_for_it():
    caution = Caution(10)
    caution.assigned(HERE, OPEN, now=0.0)
    caution.assigned(THERE, None, now=0.0)  # nobody was ever handed anything of it
    assert (caution.parting_word(HERE, 3), caution.parting_word(THERE, 3)) == (OPEN, CLEAN)
    caution.leases_first(HERE, 9)
    assert caution.parting_word(HERE, 9) == OPEN
    caution.leases_first(HERE, 1)
    assert caution.parting_word(HERE, 10) == CLEAN
    caution.assigned(HERE, OPEN, now=0.0)
    caution.dropped(HERE)
    assert caution.parting_word(HERE, 3) == CLEAN


def test_beyond_the_end_of_the_log_a_dead_owner_cannot_have_been():
    caution = Caution(10)
    caution.assigned(HERE, OPEN, now=0.0, end=7)
    assert caution.parting_word(HERE, 6) == OPEN
    assert caution.parting_word(HERE, 7) == CLEAN
