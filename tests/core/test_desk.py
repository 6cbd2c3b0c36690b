"""The desk: which markers a consumer owes the log, and when a message counts as settled."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from marq.core.desk import Desk
from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, PENDING, Sheet
from marq.core.lease import Lease, Order, State, Terms
from marq.core.records import Kind, decode, encode

PLACE = ("t", 0)
TERMS = Terms(
    queue="q", owner="me", lease=30.0, mark_after=1.0, hold_max=60.0, hold_bytes=10_000, max_attempts=5,
    dead_letter_topic="dead",
)  # fmt: skip


@dataclass
class Record:
    at: int
    payload: bytes | None = b"x"
    head: list[tuple[str, bytes | None]] | None = field(default_factory=lambda: [("h", b"1")])
    millis: int = 1_000

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes:
        return b"q"

    def value(self) -> bytes | None:
        return self.payload

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.head

    def timestamp(self) -> tuple[int, int]:
        return 1, self.millis


class Bench:
    """A desk with one partition and a clock to move by hand."""

    def __init__(self, count: int = 3, terms: Terms = TERMS, records: Iterable[Record] | None = None) -> None:
        self.desk = Desk(terms)
        self.desk.assigned(PLACE, 0)
        rows = list(records) if records is not None else [Record(offset) for offset in range(count)]
        self.sheet = Sheet(None, PLACE, rows, rows[-1].at + 1)
        assert self.desk.received(self.sheet)
        self.sheet.handed = self.sheet.count
        self.now = 100.0

    def orders(self) -> list[Order]:
        return list(self.desk.orders(self.now))

    def write(self, after: float = 0.0) -> list[Order]:
        """All orders are durable, some time after they were given."""
        orders = self.orders()
        self.now += after
        for order in orders:
            self.desk.delivered(order, self.now)
        return orders

    def refuse(self, *, forever: bool = False) -> list[Order]:
        orders = self.orders()
        for order in orders:
            self.desk.failed(order, self.now, forever=forever)
        return orders

    def lease_all(self) -> list[Lease]:
        self.desk.lease_all(self.sheet)
        self.write()
        return [self.lease(index) for index in range(self.sheet.count)]

    def lease(self, index: int) -> Lease:
        lease = self.desk.find(self.sheet, index)
        assert lease is not None
        return lease

    def nack(self, index: int, delay: float) -> Lease:
        self.desk.nack(self.sheet, index, self.desk.find(self.sheet, index), delay)
        return self.lease(index)

    @property
    def position(self) -> int:
        self.desk.positions()
        return self.desk.frontiers[PLACE].position


def kinds(orders: list[Order]) -> list[tuple[int, list[int]]]:
    return [(order.marker.kind, order.marker.offsets) for order in orders]


# Slow messages


def test_what_takes_long_is_leased_in_one_marker_and_the_frontier_passes() -> None:
    bench = Bench()
    bench.desk.mark_slow(bench.now)
    bench.sheet.flags[1] = ACKED
    bench.desk.mark_slow(bench.now + 0.9)
    assert not bench.desk.has_orders
    bench.now += 1.0
    assert bench.desk.mark_slow(bench.now) == bench.now + 0.25
    assert bench.desk.has_orders
    assert bench.position == 0
    [order] = bench.write()
    marker = order.marker
    assert (marker.kind, marker.offsets, marker.owner, marker.waiting) == (Kind.START, [0, 2], "me", False)
    assert (marker.redeliver_after_ms, marker.attempts) == ([30_000, 30_000], [1, 1])
    assert (marker.max_attempts, marker.dead_letter_topic) == (5, "dead")
    assert (marker.keys, marker.values, marker.timestamps) == ([b"q"] * 2, [b"x"] * 2, [1_000] * 2)
    assert marker.headers == [[("h", b"1")]] * 2
    assert bench.position == 3
    assert bench.desk.unsettled() == 2
    assert bench.desk.counts["leased"] == 2
    assert not bench.desk.has_orders


def test_only_what_the_application_had_a_while_ago_is_leased() -> None:
    bench = Bench()
    bench.sheet.handed = 0
    bench.desk.mark_slow(bench.now)
    bench.sheet.handed = 2
    bench.desk.mark_slow(bench.now + 5)
    bench.sheet.handed = 3
    bench.desk.mark_slow(bench.now + 6)
    assert kinds(bench.orders()) == [(Kind.START, [0, 1])]
    bench.desk.mark_slow(bench.now + 7)
    assert kinds(bench.orders()) == [(Kind.START, [2])]


def test_an_ack_between_the_look_and_the_mark_is_not_overwritten() -> None:
    bench = Bench(1)
    bench.sheet.flags[0] = ACKED
    bench.desk._mark(bench.sheet, 0)
    assert bench.sheet.flags[0] == ACKED
    assert not bench.desk.has_orders
    bench.desk.extend(bench.sheet, 0, None, 60.0, bench.now)
    assert not bench.desk.leases


def test_a_record_without_headers_value_and_time_can_be_leased() -> None:
    bench = Bench(records=[Record(0, payload=None, head=None, millis=-1)])
    bench.desk.lease_all(bench.sheet)
    [order] = bench.write()
    assert (order.marker.values, order.marker.headers, order.marker.timestamps) == ([None], [[]], [0])


def test_the_attempt_is_in_the_headers() -> None:
    bench = Bench(records=[Record(0, head=[("marq-attempt", b"4")])])
    bench.desk.lease_all(bench.sheet)
    assert bench.orders()[0].marker.attempts == [4]


def test_large_batches_are_split() -> None:
    terms = Terms("q", "me", 30, 1, 60, 10_000, 5, "dead", marker_bytes=250)
    bench = Bench(terms=terms, records=[Record(offset, payload=b"x" * 100) for offset in range(3)])
    bench.desk.lease_all(bench.sheet)
    orders = bench.write()
    assert [(order.marker.offsets, len(order.leases)) for order in orders] == [([0], 1), ([1], 1), ([2], 1)]
    assert bench.position == 3


# Acks


def test_an_ack_of_a_lease_is_an_end() -> None:
    bench = Bench()
    first, second, third = bench.lease_all()
    for lease in (third, first):
        bench.desk.ack(lease)
    assert bench.sheet.flags[0] == ACKED
    [order] = bench.write()
    assert (order.marker.kind, order.marker.offsets) == (Kind.END, [0, 2])
    assert set(bench.desk.leases.values()) == {second}
    assert bench.desk.counts["acked_leased"] == 2


def test_an_ack_before_the_start_was_sent_takes_it_back() -> None:
    bench = Bench(2)
    bench.desk.lease_all(bench.sheet)
    bench.desk.ack(bench.lease(0))
    assert bench.desk.counts["acked_unmarked"] == 1
    assert kinds(bench.orders()) == [(Kind.START, [1])]
    bench.desk.ack(bench.lease(1))  # this one is on its way
    assert bench.sheet.flags == bytes((ACKED, ACKED))
    assert kinds(bench.orders()) == [(Kind.END, [1])]


def test_an_ack_after_a_refused_start_still_sends_an_end() -> None:
    """The refusal may have been a lost answer."""
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    bench.refuse()
    bench.desk.ack(bench.lease(0))
    assert kinds(bench.orders()) == [(Kind.END, [0])]


def test_an_ack_in_a_state_that_has_no_handle_does_nothing() -> None:
    bench = Bench(1)
    lease = bench.nack(0, 5.0)
    bench.desk.ack(lease)
    assert lease.state is State.RETRYING


def test_a_refused_end_is_written_again() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    bench.desk.ack(lease)
    assert kinds(bench.refuse()) == [(Kind.END, [0])]
    assert kinds(bench.write()) == [(Kind.END, [0])]
    assert not bench.desk.has_orders


# Nacks


def test_a_nack_is_durable_before_the_offset_is_settled_and_comes_back_on_time() -> None:
    bench = Bench(1)
    lease = bench.nack(0, 5.0)
    assert bench.sheet.flags[0] == PENDING
    [order] = bench.write(after=0.5)
    marker = order.marker
    assert (marker.kind, marker.attempts, marker.owner, marker.waiting) == (Kind.START, [2], "me", True)
    assert marker.redeliver_after_ms == [35_000]
    assert bench.position == 1
    assert (lease.state, lease.due) == (State.HELD, bench.now + 5.0)  # counted from the report
    assert bench.desk.next_due() == lease.due
    assert bench.desk.held_bytes == 201
    assert bench.desk.ready(lease.due - 0.001, 10) == []
    assert bench.desk.ready(lease.due, 10) == [lease]
    assert (lease.state, bench.desk.held_bytes, bench.desk.next_due()) == (State.LEASED, 0, float("inf"))
    [keep] = bench.write()
    assert (keep.marker.kind, keep.marker.redeliver_after_ms, keep.marker.attempts) == (Kind.KEEPALIVE, [30_000], [])


def test_a_reissued_lease_belongs_to_its_new_handle() -> None:
    bench = Bench(1)
    lease = bench.nack(0, 0.0)
    bench.write()
    bench.desk.ready(bench.now, 1)
    again = Sheet(None, PLACE, [lease.record], 0, flag=PARKED, attempt=lease.attempt)
    bench.desk.reissue(lease, again, 0)
    assert bench.desk.find(bench.sheet, 0) is None
    assert bench.desk.find(again, 0) is lease
    assert bench.desk.attempt_of(again, 0) == 2
    bench.desk.nack(again, 0, lease, 1.0)
    bench.orders()
    assert lease.attempt == 3


def test_no_more_than_asked_for_is_ready_at_once() -> None:
    bench = Bench(3)
    leases = [bench.nack(index, 0.0) for index in range(3)]
    bench.write()
    assert bench.desk.ready(bench.now, 0) == []
    assert bench.desk.ready(bench.now, -1) == []
    assert bench.desk.ready(bench.now, 2) == leases[:2]
    assert bench.desk.ready(bench.now, 2) == leases[2:]


def test_a_nack_of_a_lease_is_a_retry() -> None:
    bench = Bench(1)
    bench.lease_all()
    lease = bench.nack(0, 5.0)
    [order] = bench.write()
    marker = order.marker
    assert (marker.kind, marker.attempts, marker.waiting, marker.released) == (Kind.RETRY, [2], True, False)
    assert (marker.values, marker.redeliver_after_ms) == ([], [35_000])
    assert lease.state is State.HELD


def test_a_nack_may_spend_no_attempt() -> None:
    bench = Bench(1)
    bench.desk.nack(bench.sheet, 0, None, 1.0, spend=False)
    assert bench.orders()[0].marker.attempts == [1]


def test_a_keep_alive_that_was_asked_for_does_not_follow_a_retry() -> None:
    """It would tell the ledger that the attempt has begun, and move the deadline before the end of the delay."""
    bench = Bench(2)
    _first, second = bench.lease_all()
    bench.nack(0, 50.0)
    bench.now += 10.0
    bench.desk.renew(bench.now)
    bench.nack(1, 50.0)
    assert second.state is State.RETRYING
    assert kinds(bench.orders()) == [(Kind.RETRY, [0, 1])]


def test_not_even_when_it_was_asked_for_twice() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    bench.desk.extend(bench.sheet, 0, lease, 60.0, bench.now)
    bench.desk.extend(bench.sheet, 0, lease, 90.0, bench.now)
    bench.nack(0, 50.0)
    assert kinds(bench.orders()) == [(Kind.RETRY, [0])]


def test_a_nack_before_the_start_was_sent_replaces_it() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    bench.nack(0, 1.0)
    [order] = bench.orders()
    assert (order.marker.kind, order.marker.waiting, order.marker.attempts) == (Kind.START, True, [2])


def test_a_nack_while_the_start_is_on_its_way_waits_for_its_own_marker() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    lease = bench.nack(0, 1.0)
    [retry] = bench.orders()
    bench.desk.delivered(start, bench.now)
    assert (lease.state, lease.durable, bench.sheet.flags[0]) == (State.RETRYING, True, PENDING)
    bench.desk.delivered(retry, bench.now)
    assert (lease.state, bench.sheet.flags[0]) == (State.HELD, PARKED)


def test_a_refused_start_that_was_overtaken_by_a_nack_is_not_repeated() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    bench.nack(0, 1.0)
    bench.orders()
    bench.desk.failed(start, bench.now, forever=False)
    assert not bench.desk.has_orders


def test_a_longer_delay_than_may_be_held_is_the_pipeline_s() -> None:
    bench = Bench(1)
    lease = bench.nack(0, 61.0)
    assert lease.state is State.RELEASING
    [order] = bench.write()
    assert (order.marker.owner, order.marker.waiting, order.marker.redeliver_after_ms) == ("", True, [61_000])
    assert (bench.sheet.flags[0], bench.desk.leases, bench.desk.held_bytes) == (PARKED, {}, 0)
    assert bench.desk.counts["given_up"] == 1


def test_more_bytes_than_may_be_held_are_the_pipeline_s() -> None:
    bench = Bench(records=[Record(0, b"x" * 9_000), Record(1, b"x" * 9_000)])
    bench.lease_all()
    bench.nack(0, 1.0)
    bench.nack(1, 1.0)
    orders = bench.write()
    assert [(order.marker.kind, order.marker.released) for order in orders] == [(Kind.RETRY, False), (Kind.RETRY, True)]
    assert len(bench.desk.leases) == 1


def test_a_refused_retry_is_written_again_and_settles_nothing() -> None:
    bench = Bench(2)
    bench.nack(0, 1.0)
    bench.nack(1, 100.0)
    refused = bench.refuse()
    assert bench.sheet.flags == bytes((PENDING, PENDING))
    assert kinds(bench.write()) == kinds(refused)
    assert bench.position == 2


# Dead letters


def test_a_dead_letter_settles_only_when_it_is_durable() -> None:
    bench = Bench(2)
    lease = bench.desk.dying(bench.sheet, 0, None)
    assert (bench.position, bench.sheet.flags[0]) == (0, PENDING)
    bench.desk.died(lease)
    assert (bench.position, bench.sheet.flags[0]) == (1, PARKED)
    assert not bench.desk.has_orders
    assert bench.desk.counts["dead_lettered"] == 1


def test_a_dead_letter_ends_the_lease_even_one_whose_start_is_on_its_way() -> None:
    bench = Bench(2)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    dying = [bench.desk.dying(bench.sheet, index, bench.desk.find(bench.sheet, index)) for index in range(2)]
    bench.desk.died(dying[0])
    bench.desk.delivered(start, bench.now)
    bench.desk.died(dying[1])
    assert kinds(bench.orders()) == [(Kind.END, [0, 1])]


def test_a_message_whose_dead_letter_takes_long_is_kept_alive() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    bench.desk.dying(bench.sheet, 0, bench.desk.find(bench.sheet, 0))
    bench.desk.delivered(start, bench.now)
    bench.desk.renew(bench.now)
    assert kinds(bench.orders()) == [(Kind.KEEPALIVE, [0])]


def test_a_dead_letter_before_the_start_was_sent_takes_it_back() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    lease = bench.desk.dying(bench.sheet, 0, bench.lease(0))
    assert not bench.orders()
    bench.desk.died(lease)
    assert not bench.desk.has_orders


def test_a_refused_start_of_a_dying_message_is_not_repeated() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    bench.desk.dying(bench.sheet, 0, bench.lease(0))
    bench.desk.failed(start, bench.now, forever=False)
    assert not bench.desk.has_orders


# Keeping alive


def test_a_lease_is_kept_alive_thrice_in_its_time() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    sent = []
    for _ in range(61):
        bench.desk.renew(bench.now)
        sent += bench.write()
        bench.now += 1.0
    assert [order.marker.kind for order in sent] == [Kind.KEEPALIVE] * 6
    assert lease.expires_at > bench.now


def test_a_lease_that_ran_out_is_noticed_and_its_ack_is_still_sent() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    assert not lease.has_run_out(bench.now + 30.0)
    bench.now += 30.1
    assert lease.has_run_out(bench.now)
    bench.desk.renew(bench.now)
    assert lease.state is State.EXPIRED
    assert bench.desk.counts["expired"] == 1
    assert not bench.desk.has_orders
    bench.desk.ack(lease)
    assert kinds(bench.orders()) == [(Kind.END, [0])]


def test_an_expired_lease_that_nobody_acks_is_forgotten() -> None:
    bench = Bench(1)
    [_lease] = bench.lease_all()
    bench.now += 31
    bench.desk.renew(bench.now)
    bench.desk.renew(bench.now + 10)
    assert bench.desk.leases
    bench.desk.renew(bench.now + 31)
    assert not bench.desk.leases
    assert bench.sheet.flags[0] == LOST
    assert bench.position == 1


def test_a_held_message_whose_lease_ran_out_is_not_handed_out() -> None:
    for notice_by_renewing in (True, False):
        bench = Bench(1)
        lease = bench.nack(0, 5.0)
        bench.write()
        bench.desk.renew(bench.now)
        bench.now += 35.1
        if notice_by_renewing:
            bench.desk.renew(bench.now)
        assert bench.desk.ready(bench.now, 10) == []
        assert (lease.state, bench.desk.leases, bench.desk.held_bytes) == (State.EXPIRED, {}, 0)


def test_a_keep_alive_that_may_have_come_too_late_does_not_count() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    bench.now += 15
    bench.desk.renew(bench.now)
    expires_at = lease.expires_at
    bench.write(after=20.0)
    assert lease.expires_at == expires_at
    bench.desk.renew(bench.now)
    assert lease.state is State.EXPIRED


def test_a_retry_that_may_have_come_too_late_is_left_to_the_pipeline() -> None:
    bench = Bench(1)
    bench.lease_all()
    lease = bench.nack(0, 5.0)
    bench.write(after=31.0)
    assert (lease.state, bench.desk.leases, bench.desk.held_bytes) == (State.EXPIRED, {}, 0)
    assert bench.desk.ready(bench.now + 100, 10) == []


def test_answers_may_overtake_each_other() -> None:
    bench = Bench(1)
    [lease] = bench.lease_all()
    bench.now += 11
    bench.desk.renew(bench.now)
    [keep] = bench.orders()
    bench.now += 1
    bench.nack(0, 20.0)
    [retry] = bench.orders()
    bench.desk.delivered(retry, bench.now)
    expires_at = lease.expires_at
    bench.desk.delivered(keep, bench.now)
    assert lease.expires_at == expires_at == bench.now + 50.0


def test_a_refused_keep_alive_is_repeated_at_once() -> None:
    bench = Bench(1)
    bench.lease_all()
    bench.now += 11
    bench.desk.renew(bench.now)
    assert kinds(bench.refuse()) == [(Kind.KEEPALIVE, [0])]
    bench.desk.renew(bench.now)
    assert kinds(bench.write()) == [(Kind.KEEPALIVE, [0])]


def test_extend_asks_for_its_time_and_is_not_cut_short_by_a_keep_alive() -> None:
    bench = Bench(2)
    bench.desk.extend(bench.sheet, 0, None, 300.0, bench.now)
    [start] = bench.write()
    assert start.marker.redeliver_after_ms == [300_000]
    lease = bench.lease(0)
    assert lease.expires_at == bench.now + 300.0
    bench.now += 60
    bench.desk.extend(bench.sheet, 0, lease, 600.0, bench.now)
    [keep] = bench.write()
    assert (keep.marker.kind, keep.marker.redeliver_after_ms) == (Kind.KEEPALIVE, [600_000])
    bench.desk.renew(bench.now + 570)
    assert not bench.desk.has_orders
    bench.desk.renew(bench.now + 581)
    assert bench.orders()[0].marker.redeliver_after_ms == [30_000]


def test_extending_while_the_start_is_on_its_way_is_said_afterwards() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    lease = bench.lease(0)
    bench.desk.extend(bench.sheet, 0, lease, 300.0, bench.now)
    assert not bench.desk.has_orders
    bench.desk.delivered(start, bench.now)
    assert lease.expires_at == bench.now + 30.0  # as the log has it, and no later
    [keep] = bench.write()
    assert keep.marker.redeliver_after_ms == [300_000]
    assert lease.expires_at == bench.now + 300.0


# What no marker can carry


def test_a_message_too_large_for_any_marker_is_kept_in_place() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    bench.refuse(forever=True)
    lease = bench.lease(0)
    assert (lease.state, lease.in_place, bench.position) == (State.LEASED, True, 0)
    assert not lease.has_run_out(bench.now + 1e6)
    bench.desk.renew(bench.now + 1e6)
    assert not bench.desk.has_orders
    bench.nack(0, 100.0)
    bench.refuse(forever=True)
    assert (lease.state, bench.position) == (State.HELD, 0)
    assert bench.desk.ready(lease.due, 1) == [lease]
    assert not bench.desk.has_orders
    again = Sheet(None, PLACE, [lease.record], 0, flag=PARKED, attempt=2)
    bench.desk.reissue(lease, again, 0)
    bench.desk.nack(again, 0, lease, 0.0)
    bench.refuse(forever=True)
    bench.desk.ready(bench.now + 200, 1)
    third = Sheet(None, PLACE, [lease.record], 0, flag=PARKED, attempt=3)
    bench.desk.reissue(lease, third, 0)
    bench.desk.ack(lease)
    assert (bench.position, bench.sheet.flags[0], third.flags[0]) == (1, ACKED, ACKED)
    assert (bench.desk.leases, bench.desk.has_orders, bench.desk.held_bytes) == ({}, False, 0)


def test_nobody_needs_to_wait_for_what_is_kept_in_place() -> None:
    bench = Bench(2)
    assert not bench.desk.awaits(bench.sheet)
    bench.desk.lease_all(bench.sheet)
    assert bench.desk.awaits(bench.sheet)
    bench.refuse(forever=True)
    assert bench.sheet.flags == bytes((PENDING, PENDING))
    assert not bench.desk.awaits(bench.sheet)
    lease = bench.nack(0, 1.0)
    assert bench.desk.awaits(bench.sheet)
    bench.refuse(forever=True)
    bench.desk.ready(lease.due, 1)
    bench.desk.reissue(lease, Sheet(None, PLACE, [lease.record], 0, flag=PARKED, attempt=2), 0)
    assert not bench.desk.awaits(bench.sheet)


def test_what_waits_in_place_takes_no_room_from_others() -> None:
    bench = Bench(1)
    bench.nack(0, 5.0)
    [order] = bench.orders()
    bench.desk.failed(order, bench.now, forever=True)
    assert bench.lease(0).state is State.HELD
    assert bench.desk.unsettled() == 0
    bench.now += 6.0
    [lease] = bench.desk.ready(bench.now, 1)
    assert lease.state is State.LEASED
    assert bench.desk.unsettled() == 1


def test_one_given_up_in_vain_is_held_in_place() -> None:
    bench = Bench(1)
    lease = bench.nack(0, 100.0)
    assert lease.state is State.RELEASING
    bench.refuse(forever=True)
    assert (lease.state, lease.in_place, lease.due) == (State.HELD, True, bench.now + 100.0)
    assert bench.desk.held_bytes == 201


def test_one_in_place_can_die() -> None:
    bench = Bench(1)
    lease = bench.desk.dying(bench.sheet, 0, None)
    bench.desk.lease_all(bench.sheet)
    lease.in_place = True
    bench.desk.died(lease)
    assert (bench.position, bench.desk.has_orders) == (1, False)


def test_a_dying_message_whose_start_never_fits_dies_all_the_same() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    lease = bench.desk.dying(bench.sheet, 0, bench.lease(0))
    bench.desk.failed(start, bench.now, forever=True)
    assert (lease.state, lease.in_place) == (State.DYING, True)
    bench.desk.died(lease)
    assert not bench.desk.has_orders


# Partitions come and go


def test_a_partition_that_is_not_ours_gives_nothing() -> None:
    bench = Bench(1)
    bench.desk.dropped(PLACE)
    assert bench.sheet.flags[0] == LOST
    assert bench.desk.counts["lost"] == 1
    assert not bench.desk.received(bench.sheet)
    bench.desk.dropped(PLACE)
    bench.desk.lease_handed([PLACE])
    bench.desk.committed([(PLACE, 5)])
    assert bench.desk.positions() == {}


def test_handed_messages_are_leased_before_their_partition_goes() -> None:
    bench = Bench(3)
    bench.sheet.handed = 2
    bench.desk.lease_handed([PLACE])
    bench.write()
    assert bench.position == 2
    bench.desk.dropped(PLACE)
    assert bench.sheet.flags == bytes((PARKED, PARKED, LOST))
    assert len(bench.desk.leases) == 2
    bench.desk.ack(bench.lease(0))
    assert kinds(bench.orders()) == [(Kind.END, [0])]


def test_of_a_lost_partition_only_what_the_log_knows_is_spoken() -> None:
    bench = Bench(4)
    bench.desk.lease_all(bench.sheet)
    bench.orders()  # their STARTs are on their way
    unsent = Sheet(None, PLACE, [Record(offset) for offset in range(4, 8)], 8)
    bench.desk.received(unsent)
    bench.desk.extend(unsent, 0, None, 30.0, bench.now)
    bench.desk.nack(unsent, 1, None, 1.0)
    bench.desk.nack(unsent, 2, None, 100.0)
    dying = bench.desk.dying(unsent, 3, None)
    bench.desk.dropped(PLACE)
    assert not bench.orders()
    assert unsent.flags == bytes((LOST, LOST, LOST, PENDING))
    assert len(bench.desk.leases) == 5
    assert bench.desk.held_bytes == 0
    bench.desk.died(dying)
    assert not bench.desk.has_orders


def test_a_dead_letter_that_was_refused_is_left_to_the_next_owner() -> None:
    bench = Bench(2)
    on_its_way = bench.desk.dying(bench.sheet, 0, None)
    refused = bench.desk.dying(bench.sheet, 1, None)
    refused.letter_refused = True
    bench.desk.dropped(PLACE)
    assert on_its_way.state is State.DYING
    assert refused.state is State.EXPIRED
    assert bench.sheet.flags == bytes((PENDING, LOST))


def test_what_the_ledger_would_refuse_is_cut_to_what_it_takes() -> None:
    bench = Bench(1)
    bench.nack(0, 1e15)
    [order] = bench.orders()
    order.marker.attempts = [(1 << 30) - 1]
    assert decode(encode(order.marker)).redeliver_after_ms == [(1 << 45) - 1]


def test_a_refused_start_of_a_lost_partition_is_not_repeated() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    bench.desk.dropped(PLACE)
    bench.desk.assigned(PLACE, 0)
    bench.desk.failed(start, bench.now, forever=False)
    assert not bench.desk.has_orders
    assert bench.sheet.flags[0] == LOST
    assert not bench.desk.leases


def test_what_is_held_in_place_goes_with_its_partition() -> None:
    bench = Bench(1)
    bench.nack(0, 5.0)
    bench.refuse(forever=True)
    bench.desk.dropped(PLACE)
    assert bench.desk.ready(bench.now + 10, 10) == []
    assert (bench.desk.held_bytes, bench.desk.leases) == (0, {})


def test_a_message_that_comes_again_replaces_an_older_lease_on_it() -> None:
    bench = Bench(1)
    old = bench.nack(0, 5.0)
    bench.write()
    letter = Bench(1)  # only to have another sheet of the same message
    bench.desk.dropped(PLACE)
    bench.desk.assigned(PLACE, 0)
    assert bench.desk.received(letter.sheet)
    bench.desk.lease_all(letter.sheet)
    [new] = bench.desk.leases.values()
    assert new is not old
    assert (old.state, bench.desk.held_bytes) == (State.EXPIRED, 0)
    assert bench.desk.ready(bench.now + 10, 10) == []
    [start] = bench.orders()
    bench.desk.died(old)  # a late answer about the old one leaves the new one alone
    assert bench.desk.leases
    bench.desk.delivered(start, bench.now)
    assert new.state is State.LEASED
    assert not bench.desk.has_orders


def test_late_answers_about_what_is_gone_are_ignored() -> None:
    bench = Bench(1)
    bench.desk.lease_all(bench.sheet)
    [start] = bench.orders()
    bench.desk.ack(bench.lease(0))
    bench.desk.delivered(start, bench.now)
    bench.desk.failed(start, bench.now, forever=False)
    assert kinds(bench.orders()) == [(Kind.END, [0])]


def test_positions_are_told_once_and_again_after_a_refusal() -> None:
    bench = Bench(2)
    assert bench.desk.positions() == {PLACE: 0}
    bench.desk.committed([(PLACE, 0)])
    assert bench.desk.positions() == {}
    bench.sheet.flags[:] = bytes((ACKED, ACKED))
    assert bench.desk.positions() == {PLACE: 2}
    assert bench.desk.counts["acked"] == 2
    bench.desk.committed([(PLACE, 2)])
    bench.desk.commit_again()
    assert bench.desk.positions() == {PLACE: 2}


def test_acks_are_counted_when_the_partition_goes_too() -> None:
    bench = Bench(2)
    bench.sheet.flags[:] = bytes((ACKED, ACKED))
    bench.desk.frontiers[PLACE].advance()
    bench.desk.dropped(PLACE)
    assert (bench.desk.counts["acked"], bench.desk.counts["lost"]) == (2, 0)


# Closing


def test_close_gives_everything_to_the_pipeline_and_spends_no_attempt() -> None:
    bench = Bench(7)
    bench.sheet.handed = 6
    bench.desk.extend(bench.sheet, 0, None, 30.0, bench.now)
    bench.nack(1, 50.0)
    bench.write()  # 0 is leased, 1 is held
    bench.desk.extend(bench.sheet, 2, None, 30.0, bench.now)
    bench.nack(3, 9.0)
    in_the_air = bench.orders()  # 2 and 3 are on their way
    dying = bench.desk.dying(bench.sheet, 4, None)
    bench.now += 20.0
    bench.desk.renew(bench.now)  # a keep-alive for 0 is wanted, and withdrawn
    bench.desk.close(bench.now)
    orders = {
        (offset): (order.marker, position)
        for order in bench.orders()
        for position, offset in enumerate(order.marker.offsets)
    }
    said = {
        offset: (
            Kind.Name(marker.kind), marker.owner, marker.waiting, marker.released, marker.attempts[position],
            marker.redeliver_after_ms[position],
        )
        for offset, (marker, position) in orders.items()
    }  # fmt: skip
    assert said == {
        0: ("RETRY", "me", True, True, 1, 0),
        1: ("RETRY", "me", True, True, 2, 30_000),
        2: ("START", "", True, False, 1, 0),
        3: ("START", "", True, False, 2, 9_000),
        5: ("START", "", True, False, 1, 0),
    }
    for order in in_the_air:  # the first word on 2 and 3 does not settle them, the last one does
        bench.desk.delivered(order, bench.now)
    assert bench.sheet.flags[2] == PENDING
    assert dying.state is State.DYING
    assert bench.desk.held_bytes == 0
    assert bench.sheet.flags[6] == IN_FLIGHT


def test_close_takes_back_what_was_not_sent() -> None:
    bench = Bench(3)
    bench.desk.extend(bench.sheet, 0, None, 30.0, bench.now)
    bench.write()
    bench.desk.extend(bench.sheet, 1, None, 30.0, bench.now)
    bench.nack(0, 9.0)
    bench.nack(2, 9.0)
    bench.desk.close(bench.now)
    orders = bench.write()
    assert sorted((Kind.Name(o.marker.kind), o.marker.offsets, o.marker.waiting) for o in orders) == [
        ("RETRY", [0], True),
        ("START", [1, 2], True),
    ]
    assert (bench.desk.leases, bench.position) == ({}, 3)


def test_close_leaves_alone_what_is_on_its_way_out() -> None:
    bench = Bench(3)
    bench.desk.lease_all(bench.sheet)
    bench.refuse(forever=True)
    in_place = bench.lease(0)
    released = bench.nack(1, 5.0)
    released.in_place = False
    bench.desk._withdraw(Kind.START, released)
    bench.desk._release(released, 100.0)
    bench.orders()
    bench.desk.close(bench.now)
    assert not bench.desk.has_orders
    assert (in_place.state, released.state) == (State.LEASED, State.RELEASING)


@pytest.mark.parametrize("kind", list(State))
def test_every_state_says_what_it_means(kind: Any) -> None:
    assert len(kind.value) > 10
