"""What the markers say about leases."""

from hypothesis import given
from hypothesis import strategies as st

from marq.core.ledger import Ledger
from marq.core.records import Kind, Marker, encode
from marq.core.shelf import DictShelf
from marq.demo.log import LeaseBook

PLACE = ("t", 0)


def book_of(*markers):
    book = LeaseBook()
    for marker in markers:
        book.read(encode(marker))
    return book


def marker(kind, offsets, owner="A", attempt=1, **more):
    attempts = [attempt] if kind in {Kind.START, Kind.RETRY, Kind.REDELIVERED} else []
    return Marker(kind, "q", *PLACE, offsets=offsets, owner=owner, attempts=attempts, **more)


def test_a_lease_begins_and_ends():
    book = book_of(marker(Kind.START, [1, 2, 3]), marker(Kind.END, [2]))
    assert book.in_hands_of("A") == 2
    assert book.in_hands_of("B") == 0
    assert book.leased == 3
    assert book.returned == []


def test_a_retry_that_waits_is_in_nobodys_hands_until_its_attempt_begins():
    waits = marker(Kind.START, [1], attempt=2, waiting=True)
    book = book_of(waits)
    assert (book.in_hands_of("A"), book.leased, book.retries) == (0, 0, {(PLACE, 1, 2)})
    assert book_of(waits, marker(Kind.KEEPALIVE, [1])).in_hands_of("A") == 1


def test_the_pipeline_gives_a_lease_back():
    book = book_of(marker(Kind.START, [1]), marker(Kind.REDELIVERED, [1]))
    [returned] = book.returned
    assert (returned.place, returned.offset, returned.held.attempt, returned.held.waiting) == (PLACE, 1, 1, False)
    assert book.live == {}


def test_the_next_owner_of_a_partition_takes_a_lease_over():
    book = book_of(marker(Kind.START, [1], attempt=3), marker(Kind.START, [1], owner="B"))
    assert [lost.held.owner for lost in book.taken_over] == ["A"]
    assert book.in_hands_of("B") == 1
    assert book.live[PLACE, 1].attempt == 3
    assert book_of(marker(Kind.START, [1]), marker(Kind.START, [1])).taken_over == []


def test_what_speaks_of_no_lease_changes_nothing():
    book = book_of(marker(Kind.END, [1]), marker(Kind.KEEPALIVE, [2]), marker(Kind.REDELIVERED, [3]), Marker(Kind.TICK))
    assert book.live == {}
    assert book.returned == []


MARKERS = st.builds(
    marker,
    st.sampled_from([Kind.START, Kind.END, Kind.RETRY]),
    st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    attempt=st.integers(1, 3),
    waiting=st.booleans(),
    redeliver_after_ms=st.just([1_000_000]),
)


@given(st.lists(MARKERS, max_size=20))
def test_one_owners_leases_are_those_that_the_ledger_holds(markers):
    """A RETRY without a lease is nothing to the ledger, so it is left out here; the desk never writes one."""
    open_ones, kept = set(), []
    for each in markers:
        offsets = set(each.offsets)
        if each.kind == Kind.RETRY and not offsets <= open_ones:
            continue
        open_ones = open_ones - offsets if each.kind == Kind.END else open_ones | offsets
        kept.append(each)
    ledger = Ledger(DictShelf())
    for offset, each in enumerate(kept):
        ledger.apply(offset, 1_000 + offset, encode(each))
    assert len(book_of(*kept).live) == ledger.hot + ledger.cold == len(open_ones)
