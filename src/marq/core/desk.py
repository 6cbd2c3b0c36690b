"""The lease desk: what one consumer has in its hands, and which markers that calls for.

It is the consumer's side of the ledger and as pure: events and monotonic times go in, orders (markers to write) come
out, and the host says what became of them. One thread at a time; acking a message that has no lease never comes here.

The life of a message that does come here:

    MARKING ── durable ──> LEASED ── ack ──> gone (END)
       │                     │  └─ lease ran out ──> EXPIRED ── ack ──> gone (END, which may come too late)
       └───── nack ──────> RETRYING ── durable ──> HELD ── its time ──> LEASED, handed out again
                             └── durable, but not ours to hold ──> gone (the pipeline delivers it)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, PENDING, Frontier, Place, Sheet
from marq.core.lease import KEPT, Lease, Order, State, Terms
from marq.core.records import ATTEMPT_MAX, DURATION_MS_MAX, Kind, Marker, at, provenance, split

KEEP_ALIVES_PER_LEASE = 3


def _awaits(marker: Marker) -> State:
    """The state of a lease that waits for this START or RETRY to be durable."""
    if not marker.waiting:
        return State.MARKING
    return State.RELEASING if marker.released or not marker.owner else State.RETRYING


class Desk:
    """The state machine of one consumer."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.frontiers: dict[Place, Frontier] = {}
        self.leases: dict[tuple[Place, int], Lease] = {}
        self.held_bytes = 0
        self.counts: Counter[str] = Counter()
        self._held: list[tuple[float, int, Lease]] = []
        self._sequence = 0
        self._wanted: dict[tuple[int, Place, str, bool, bool], list[Lease]] = {}
        self._ends: dict[Place, list[int]] = {}
        self._next_renewal = float("inf")

    # Partitions come and go

    def assigned(self, place: Place, start: int) -> None:
        self.frontiers[place] = Frontier(start)

    def dropped(self, place: Place) -> None:
        """A partition is no longer ours. Leases stay: they are real whoever has the partition.

        What the log does not know of, and is not being told, belongs to the next owner: nothing more is said about it.
        """
        for lease in [lease for lease in self.leases.values() if lease.place == place]:
            is_being_buried = lease.state is State.DYING and not lease.letter_refused
            if lease.in_place or not (lease.sent or is_being_buried):
                self._withdraw(Kind.START, lease)
                self._forsake(lease)
        frontier = self.frontiers.pop(place, None)
        if frontier is not None:
            self.counts["lost"] += frontier.abandon()
            self.counts["acked"] += frontier.acked

    def _forsake(self, lease: Lease) -> None:
        """Somebody else has this message, or will get it."""
        if lease.state in {State.HELD, State.RETRYING}:
            self._unhold(lease)
        lease.state = State.EXPIRED
        self._close(lease, LOST)
        self.counts["lost"] += 1

    def positions(self) -> dict[Place, int]:
        """What may be committed and has not been."""
        wanted: dict[Place, int] = {}
        for place, frontier in self.frontiers.items():
            position = frontier.advance()
            if frontier.acked:
                self.counts["acked"] += frontier.acked
                frontier.acked = 0
            if position != frontier.committed:
                wanted[place] = position
        return wanted

    def commit_again(self) -> None:
        for frontier in self.frontiers.values():
            frontier.committed = -1

    def committed(self, positions: Iterable[tuple[Place, int]]) -> None:
        for place, position in positions:
            frontier = self.frontiers.get(place)
            if frontier is not None:
                frontier.committed = position

    def unsettled(self) -> int:
        """Messages that the application has, or will be given without another fetch."""
        leases = self.leases.values()
        parked = sum((lease.state is State.LEASED) - lease.is_kept_in_place for lease in leases)
        for frontier in self.frontiers.values():
            frontier.advance()  # lets go of what is settled, so that little is left to count
            parked += frontier.unsettled()
        return parked

    def awaits(self, sheet: Sheet) -> bool:
        """Whether something of this run is on its way to the log. What is kept in place is pending, but stays."""
        pending = sheet.flags.count(PENDING)
        if pending:
            homes = [lease.home or (lease.sheet, 0) for lease in self.leases.values() if lease.is_kept_in_place]
            pending -= sum(1 for home, _ in homes if home is sheet)
        return pending > 0

    # Messages come in

    def received(self, sheet: Sheet) -> bool:
        """A polled run. False: its partition was taken away meanwhile, so it must not be handed out."""
        frontier = self.frontiers.get(sheet.place)
        if frontier is None:
            return False
        frontier.add(sheet)
        return True

    def attempt_of(self, sheet: Sheet, index: int) -> int:
        if sheet.attempt is not None:
            return sheet.attempt
        return provenance(sheet.records[index].headers()).attempt

    def lease_all(self, sheet: Sheet) -> None:
        """Lease a run before it is handed out: what its last owner died of may be in it."""
        for index in sheet.waiting(sheet.count):
            self._mark(sheet, index)

    def mark_slow(self, now: float) -> float:
        """Lease what the application has had for `mark_after`. Returns when to look again."""
        wait = self.terms.mark_after
        for frontier in self.frontiers.values():
            for sheet in frontier.sheets:
                if sheet.seen and now - sheet.seen_at >= wait:
                    for index in sheet.waiting(sheet.seen):
                        self._mark(sheet, index)
                    sheet.seen = 0
                if not sheet.seen and sheet.handed:
                    sheet.seen, sheet.seen_at = sheet.handed, now
        return now + wait / 4

    def lease_handed(self, places: Iterable[Place]) -> None:
        """Lease everything the application has of partitions that are about to go to somebody else."""
        for place in places:
            frontier = self.frontiers.get(place)
            for sheet in frontier.sheets if frontier is not None else ():
                for index in sheet.waiting(sheet.handed):
                    self._mark(sheet, index)

    def _mark(self, sheet: Sheet, index: int) -> None:
        flags = sheet.flags
        if flags[index] != IN_FLIGHT:  # acked since it was seen
            return
        flags[index] = PENDING  # no call stands between the look and this, so the ack of another thread does not either
        self._want(Kind.START, self._open(sheet, index, State.MARKING), self.terms.owner, waiting=False)

    def _open(self, sheet: Sheet, index: int, state: State) -> Lease:
        record = sheet.records[index]
        attempt = self.attempt_of(sheet, index)
        lease = Lease(sheet, index, record, sheet.place, record.offset(), attempt, state, term=self.terms.lease)
        older = self.leases.get(lease.key)
        if older is not None:  # the partition was lost and has come back, with this message still uncommitted
            self._forsake(older)
        lease.mark(PENDING)
        self.leases[lease.key] = lease
        return lease

    # Messages are settled

    def find(self, sheet: Sheet, index: int) -> Lease | None:
        """The lease behind a handle, or None when the message is simply in flight, settled, or out again as another."""
        lease = self.leases.get((sheet.place, sheet.records[index].offset()))
        return lease if lease is not None and lease.sheet is sheet and lease.index == index else None

    def ack(self, lease: Lease) -> None:
        """Processed. An END counts from anyone, so it is sent even when the lease has run out."""
        if lease.state is State.MARKING or lease.state is State.LEASED or lease.state is State.EXPIRED:
            self._withdraw(Kind.START, lease)
            if lease.sent and not lease.in_place:
                self._ends.setdefault(lease.place, []).append(lease.offset)
            self._close(lease, ACKED)
            self.counts["acked_leased" if lease.sent else "acked_unmarked"] += 1

    def nack(self, sheet: Sheet, index: int, lease: Lease | None, delay: float, *, spend: bool = True) -> None:
        """Again, after a delay: the next attempt is durable before this one is given up."""
        if lease is None:
            lease = self._open(sheet, index, State.RETRYING)
        elif lease.state is State.MARKING and self._withdraw(Kind.START, lease):
            lease.durable = False
        self._withdraw(Kind.KEEPALIVE, lease)  # written after the RETRY it would undo the delay
        lease.attempt += spend
        lease.delay = delay
        lease.state = State.RETRYING
        self._retry(lease)
        self.counts["nacked"] += 1

    def _retry(self, lease: Lease) -> None:
        """Hold it ourselves where that is allowed: then a retry is on time to the millisecond."""
        size = len(lease.record.value() or b"") + 200
        holds = lease.delay <= self.terms.hold_max and self.held_bytes + size <= self.terms.hold_bytes
        if lease.in_place or holds:
            self.held_bytes += size
            lease.term = lease.delay + self.terms.lease
            self._want(Kind.RETRY if lease.durable else Kind.START, lease, self.terms.owner, waiting=True)
        else:
            self._release(lease, lease.delay)

    def _release(self, lease: Lease, delay: float) -> None:
        self._withdraw(Kind.KEEPALIVE, lease)
        lease.state = State.RELEASING
        lease.term = delay
        if lease.durable:
            self._want(Kind.RETRY, lease, self.terms.owner, waiting=True, released=True)
        else:
            self._want(Kind.START, lease, "", waiting=True)
        self.counts["given_up"] += 1

    def dying(self, sheet: Sheet, index: int, lease: Lease | None) -> Lease:
        """A dead letter is about to be written. Until it is durable nothing is settled."""
        if lease is None:
            lease = self._open(sheet, index, State.DYING)
        elif lease.state is State.MARKING and self._withdraw(Kind.START, lease):
            lease.durable = False
        lease.state = State.DYING
        return lease

    def died(self, lease: Lease) -> None:
        """The dead letter is durable."""
        self.counts["dead_lettered"] += 1
        if self.leases.get(lease.key) is not lease:
            return
        if lease.sent and not lease.in_place:
            self._ends.setdefault(lease.place, []).append(lease.offset)
        self._close(lease, PARKED)

    def extend(self, sheet: Sheet, index: int, lease: Lease | None, term: float, now: float) -> None:
        """A lease of this length from now; automatic keep-alives go on when it nears its end."""
        if lease is None:
            self._mark(sheet, index)
            lease = self.find(sheet, index)
        if lease is None:  # acked meanwhile, in another thread
            return
        lease.term = term
        if lease.state is State.LEASED:
            self._want(Kind.KEEPALIVE, lease, self.terms.owner, waiting=False)
            lease.renew_at = now + max(term - self.terms.lease * 2 / 3, term / KEEP_ALIVES_PER_LEASE)

    def _close(self, lease: Lease, flag: int) -> None:
        lease.mark(flag)
        if self.leases.get(lease.key) is lease:
            del self.leases[lease.key]

    # What time brings

    def ready(self, now: float, limit: int) -> list[Lease]:
        """At most so many held messages whose time has come. Their attempt begins now, and the log is told."""
        out: list[Lease] = []
        while len(out) < limit and self._held and self._held[0][0] <= now:
            lease = heapq.heappop(self._held)[2]
            if lease.state is not State.HELD:
                continue
            if not lease.in_place and now > lease.expires_at:
                self._outlived(lease)
                continue
            self._unhold(lease)
            lease.state = State.LEASED
            lease.term = self.terms.lease
            if not lease.in_place:
                self._want(Kind.KEEPALIVE, lease, self.terms.owner, waiting=False)
            self._renew_after(lease, now)
            out.append(lease)
        return out

    def reissue(self, lease: Lease, sheet: Sheet, index: int) -> None:
        """The lease now belongs to a new handle; the old one is settled."""
        if lease.in_place and lease.home is None:
            lease.home = (lease.sheet, lease.index)
        lease.sheet, lease.index = sheet, index

    def next_due(self) -> float:
        """When the next held message is due."""
        return self._held[0][0] if self._held else float("inf")

    def renew(self, now: float) -> None:
        """Keep leases alive, and notice the ones that ran out while nobody could."""
        if now < self._next_renewal:
            return
        self._next_renewal = float("inf")
        for lease in list(self.leases.values()):
            if lease.durable and not lease.in_place and lease.state in KEPT:
                self._next_renewal = min(self._next_renewal, self._renew(lease, now))

    def _renew(self, lease: Lease, now: float) -> float:
        """Returns when to look at this lease again."""
        if lease.state is State.EXPIRED:
            forget_at = lease.expires_at + self.terms.lease
            if now > forget_at:  # whoever had the handle has dropped it, or acks too late to matter
                self._close(lease, LOST)
            return forget_at
        if now > lease.expires_at:
            self._outlived(lease)
            return now
        if lease.state is State.HELD:
            return lease.expires_at
        if now >= lease.renew_at:
            lease.term = self.terms.lease
            self._want(Kind.KEEPALIVE, lease, self.terms.owner, waiting=False)
            self._renew_after(lease, now)
        return min(lease.renew_at, lease.expires_at)

    def _outlived(self, lease: Lease) -> None:
        """The pipeline gives it to somebody else. Whoever has the handle may still ack it; a held one has none."""
        if lease.state is State.HELD:
            self._unhold(lease)
            self._close(lease, PARKED)
        lease.state = State.EXPIRED
        self.counts["expired"] += 1

    def _renew_after(self, lease: Lease, now: float) -> None:
        lease.renew_at = now + self.terms.lease / KEEP_ALIVES_PER_LEASE
        self._next_renewal = min(self._next_renewal, lease.renew_at)

    def _unhold(self, lease: Lease) -> None:
        self.held_bytes -= len(lease.record.value() or b"") + 200

    def close(self, now: float) -> None:
        """The consumer ends: everything goes back to the pipeline, with what is left of its delay, no attempt spent."""
        self.lease_handed(self.frontiers)
        for lease in list(self.leases.values()):
            if lease.in_place or lease.state in {State.DYING, State.RELEASING, State.EXPIRED}:
                continue
            if lease.state is State.HELD:
                self._unhold(lease)
                self._release(lease, max(0.0, lease.due - now))
            elif lease.state is State.RETRYING:
                self._unhold(lease)
                self._withdraw(Kind.START, lease)
                self._withdraw(Kind.RETRY, lease)
                self._release(lease, lease.delay)
            else:
                if lease.state is State.MARKING:
                    self._withdraw(Kind.START, lease)
                self._release(lease, 0.0)

    # Markers go out, and their fate comes back

    def _want(self, kind: int, lease: Lease, owner: str, *, waiting: bool, released: bool = False) -> None:
        self._wanted.setdefault((kind, lease.place, owner, waiting, released), []).append(lease)

    def _withdraw(self, kind: int, lease: Lease) -> bool:
        """Take back what was not sent yet."""
        found = False
        for (wanted, place, _, _, _), leases in self._wanted.items():
            if wanted == kind and place == lease.place and lease in leases:
                leases[:] = [each for each in leases if each is not lease]  # a keep-alive may be asked for twice
                found = True
        return found

    @property
    def has_orders(self) -> bool:
        return bool(self._wanted or self._ends)

    def orders(self, now: float) -> Iterator[Order]:
        """What must be written now, in the order in which it must be written."""
        wanted, self._wanted = self._wanted, {}
        ends, self._ends = self._ends, {}
        for (kind, place, owner, waiting, released), leases in wanted.items():
            if leases:
                marker = self._marker(kind, place, owner, leases, waiting=waiting, released=released)
                yield from self._parts(marker, leases, now)
        for place, offsets in ends.items():
            yield Order(Marker(Kind.END, self.terms.queue, *place, offsets=sorted(set(offsets))), [], now)

    def _marker(
        self, kind: int, place: Place, owner: str, leases: list[Lease], *, waiting: bool, released: bool
    ) -> Marker:
        marker = Marker(
            kind,
            self.terms.queue,
            *place,
            offsets=[lease.offset for lease in leases],
            owner=owner,
            redeliver_after_ms=[min(-int(-lease.term * 1000 // 1), DURATION_MS_MAX - 1) for lease in leases],
            attempts=[min(lease.attempt, ATTEMPT_MAX - 1) for lease in leases] if kind != Kind.KEEPALIVE else [],
            waiting=waiting,
            released=released,
        )
        if kind == Kind.START:
            marker.max_attempts = self.terms.max_attempts
            marker.dead_letter_topic = self.terms.dead_letter_topic
            marker.keys = [lease.record.key() for lease in leases]
            marker.values = [lease.record.value() for lease in leases]
            marker.headers = [lease.record.headers() or [] for lease in leases]
            marker.timestamps = [min(max(0, lease.record.timestamp()[1]), DURATION_MS_MAX - 1) for lease in leases]
        return marker

    def _parts(self, marker: Marker, leases: list[Lease], now: float) -> Iterator[Order]:
        if marker.kind == Kind.START:
            for lease in leases:
                lease.sent = True
        first = 0
        for part in split(marker, self.terms.marker_bytes):
            last = first + len(part.offsets)
            yield Order(part, leases[first:last], now)
            first = last

    def delivered(self, order: Order, now: float) -> None:
        """A marker is durable. Times count from before it was sent, except a delay, which counts from now."""
        marker = order.marker
        for position, lease in enumerate(order.leases):
            if self.leases.get(lease.key) is not lease:
                continue
            in_time = now <= lease.expires_at or marker.kind == Kind.START
            term = at(marker.redeliver_after_ms, position, 0) / 1000
            if in_time and order.ordered_at >= lease.told_at:  # else it may have run out, and the ledger took no notice
                lease.expires_at, lease.told_at = order.ordered_at + term, order.ordered_at
            lease.durable = True
            if marker.kind == Kind.KEEPALIVE:
                self._next_renewal = min(self._next_renewal, lease.expires_at)
            elif lease.state is State.DYING:
                self._next_renewal = now  # keeps it, should its dead letter take long
            elif lease.state is not _awaits(marker):  # it was nacked or given up since this was written
                continue
            elif lease.state is State.MARKING:
                self._leased(lease, now, term)
            elif lease.state is State.RELEASING:
                self._close(lease, PARKED)
            else:
                self._hold(lease, now)
                if not in_time:
                    self._outlived(lease)

    def _leased(self, lease: Lease, now: float, term: float) -> None:
        lease.state = State.LEASED
        lease.mark(PARKED)
        lease.renew_at = now + max(lease.term - self.terms.lease * 2 / 3, lease.term / KEEP_ALIVES_PER_LEASE)
        self._next_renewal = min(self._next_renewal, lease.renew_at, lease.expires_at)
        if lease.term > term:  # extended while its START was on its way
            self._want(Kind.KEEPALIVE, lease, self.terms.owner, waiting=False)
        self.counts["leased"] += 1

    def _hold(self, lease: Lease, now: float) -> None:
        lease.mark(PENDING if lease.in_place else PARKED)
        lease.state = State.HELD
        lease.due = now + lease.delay
        self._sequence += 1
        heapq.heappush(self._held, (lease.due, self._sequence, lease))
        if not lease.in_place:
            self._next_renewal = min(self._next_renewal, lease.expires_at)
        self.counts["held"] += 1

    def failed(self, order: Order, now: float, *, forever: bool) -> None:
        """A marker could not be written. Nothing was settled, so nothing is lost; what matters is asked for again."""
        kind = order.marker.kind
        for lease in order.leases:
            if self.leases.get(lease.key) is not lease:
                continue
            if kind == Kind.KEEPALIVE:
                lease.renew_at = now
                self._next_renewal = min(self._next_renewal, now)
            elif not self._still_has(lease):
                self._forsake(lease)
            elif forever:
                self._keep_in_place(lease, now)
            elif lease.state is _awaits(order.marker):
                marker = order.marker
                self._want(kind, lease, marker.owner, waiting=marker.waiting, released=marker.released)
        if kind == Kind.END:
            self._ends.setdefault((order.marker.topic, order.marker.partition), []).extend(order.marker.offsets)

    def _still_has(self, lease: Lease) -> bool:
        """Whether the message is protected by its uncommitted offset, or by the log."""
        frontier = self.frontiers.get(lease.place)
        return lease.durable or (frontier is not None and lease.sheet in frontier.sheets)

    def _keep_in_place(self, lease: Lease, now: float) -> None:
        """No marker can carry it: let the frontier wait for it instead."""
        lease.in_place = True
        if lease.state is State.MARKING:
            lease.state = State.LEASED
        elif lease.state is State.RETRYING:
            self._hold(lease, now)
        elif lease.state is State.RELEASING:
            self.held_bytes += len(lease.record.value() or b"") + 200
            self._hold(lease, now)
