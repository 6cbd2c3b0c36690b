"""The aim of ticks: never a deadline forgotten, never a tick without a reason."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marq.core.aim import RETRY_MS, Aim

HEARTBEAT = 15_000


def started(partitions=1, *, time=1_000_000, moment=500):
    """An aim whose first ticks have been delivered."""
    aim = Aim(range(partitions), heartbeat_ms=HEARTBEAT)
    for partition in aim.take(moment):
        aim.delivered(partition, time=time, moment=moment)
    return aim


def test_the_first_ticks_go_to_every_partition_at_once():
    aim = Aim(range(3), heartbeat_ms=HEARTBEAT)
    assert aim.wait(70) == 0
    assert aim.take(70) == [0, 1, 2]
    assert aim.on_their_way
    assert aim.take(71) == []


def test_without_deadlines_only_the_heart_beats():
    aim = started(2)
    assert not aim.on_their_way
    assert aim.wait(500) == HEARTBEAT
    assert aim.take(500 + HEARTBEAT - 1) == []
    assert aim.take(500 + HEARTBEAT) == [0, 1]


def test_a_tick_comes_at_the_time_asked_for_on_the_brokers_clock():
    aim = started()
    aim.report(0, due=1_002_000, seen=1_000_000)
    assert aim.wait(500) == 2_000
    assert aim.take(2_499) == []
    assert aim.take(2_500) == [0]


def test_the_margin_makes_it_a_little_later():
    aim = Aim([0], heartbeat_ms=HEARTBEAT, margin_ms=20)
    aim.take(0)
    aim.delivered(0, time=1_000, moment=0)
    aim.report(0, due=1_100, seen=1_000)
    assert aim.wait(0) == 120


def test_a_partition_without_a_report_keeps_its_deadline():
    aim = started(2)
    aim.report(0, due=1_005_000, seen=1_000_000)
    aim.report(1, due=1_009_000, seen=1_000_000)
    aim.report(1, due=None, seen=1_000_001)
    assert aim.take(5_501) == [0]


def test_a_deadline_that_moved_is_not_ticked_for():
    aim = started()
    aim.report(0, due=1_001_000, seen=1_000_000)
    aim.report(0, due=1_009_000, seen=1_000_500)
    assert aim.take(1_500) == []
    assert aim.wait(1_500) == 8_000


def test_a_tick_that_came_too_soon_is_sent_again():
    aim = started()
    aim.report(0, due=1_001_000, seen=1_000_000)
    assert aim.take(1_501) == [0]
    aim.delivered(0, time=1_000_990, moment=1_502)  # the broker's clock runs slower than ours
    assert aim.wait(1_502) == 10
    assert aim.take(1_512) == [0]


def test_one_tick_late_enough_is_enough_until_the_next_report():
    aim = started()
    aim.report(0, due=1_001_000, seen=1_000_000)
    aim.take(1_501)
    aim.delivered(0, time=1_001_001, moment=1_502)
    assert aim.take(9_000) == []
    aim.report(0, due=1_000_900, seen=1_000_950)  # a batch that had not seen the tick
    assert aim.take(9_000) == []


def test_a_ledger_that_saw_the_tick_and_still_waits_gets_another():
    aim = started()
    aim.report(0, due=999_000, seen=1_000_000)
    assert aim.take(501) == [0]


def test_a_failed_tick_is_sent_again_after_a_while():
    aim = Aim([0], heartbeat_ms=HEARTBEAT)
    aim.take(0)
    aim.failed(0, moment=10)
    assert aim.wait(10) == RETRY_MS
    assert aim.take(10 + RETRY_MS) == [0]
    aim.delivered(0, time=5_000, moment=1_020)
    assert aim.take(1_020 + RETRY_MS) == []


def test_a_new_partition_gets_its_first_tick():
    aim = started()
    aim.watch([0, 1])
    assert aim.take(501) == [1]
    aim.report(7, due=None, seen=0)
    assert aim.take(502) == [7]


def test_after_a_restart_each_partition_gets_a_tick():
    aim = started(2)
    aim.report(0, due=1_900_000, seen=1_000_000)
    aim.start_over()
    assert aim.take(600) == [0, 1]


@settings(max_examples=200, deadline=None)
@given(
    due=st.integers(0, 10**6),
    skew=st.integers(-(10**6), 10**6),
    drift=st.sampled_from([0.999, 1.0, 1.001]),
)
def test_whatever_the_clocks_a_lone_deadline_is_reached_with_few_ticks(due, skew, drift):
    """The broker's clock starts anywhere and runs a little fast or slow; a tick late enough comes on time."""
    aim = Aim([0], heartbeat_ms=10**9)
    base = 10**7 + skew
    aim.take(0)
    aim.delivered(0, time=base, moment=0)
    aim.report(0, due=base + due, seen=base)
    moment, ticks, time = 0, 0, base
    if due == 0:
        assert aim.take(0) == [0]  # it has seen that time and asks for it again
    while time < base + due:
        moment += aim.wait(moment)
        assert aim.take(moment) == [0]
        ticks += 1
        time = base + int(moment * drift)
        aim.delivered(0, time=time, moment=moment)
    assert ticks <= 5
    assert time - (base + due) <= 2 + due * 0.002


@dataclass
class World:
    """A broker's clock, and a ledger per partition that is told the time by ticks alone."""

    now: int = 1_000_000
    log: dict[int, list[int]] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    due: dict[int, list[int]] = field(default_factory=dict)


class Ticking(RuleBasedStateMachine):
    """Deadlines come and go in any order, batches lag behind, ticks fail. Nothing due waits for the heartbeat."""

    def __init__(self):
        super().__init__()
        self.aim = Aim(range(2), heartbeat_ms=HEARTBEAT)
        self.world = World(log={0: [], 1: []}, seen={0: 0, 1: 0}, due={0: [], 1: []})
        self.flying = []

    @property
    def moment(self):
        return self.world.now - 1_000_000

    def batch(self, partition):
        world = self.world
        world.seen[partition] = max([world.seen[partition], *world.log[partition]])
        world.log[partition] = []
        world.due[partition] = [due for due in world.due[partition] if due > world.seen[partition]]
        first = min(world.due[partition], default=None)
        self.aim.report(partition, due=first, seen=world.seen[partition])

    @rule(partition=st.integers(0, 1), after=st.integers(0, 20_000))
    def a_lease_begins(self, partition, after):
        self.world.log[partition].append(self.world.now)
        self.world.due[partition].append(self.world.now + after)
        self.batch(partition)

    @rule(partition=st.integers(0, 1))
    def a_lease_ends(self, partition):
        if self.world.due[partition]:
            self.world.due[partition].pop()
            self.world.log[partition].append(self.world.now)
            self.batch(partition)

    @rule(partition=st.integers(0, 1))
    def a_batch_runs(self, partition):
        if self.world.log[partition]:
            self.batch(partition)

    @rule(step=st.integers(0, 3_000))
    def time_passes(self, step):
        self.world.now += step

    @rule()
    def the_pulse_wakes(self):
        self.flying += self.aim.take(self.moment)

    @precondition(lambda self: self.flying)
    @rule(lost=st.booleans())
    def a_tick_lands(self, lost):
        partition = self.flying.pop(0)
        if lost:
            self.aim.failed(partition, moment=self.moment)
        else:
            self.world.log[partition].append(self.world.now)
            self.aim.delivered(partition, time=self.world.now, moment=self.moment)

    @rule()
    def the_query_restarts(self):
        self.aim.start_over()

    @invariant()
    def ticks_on_their_way_are_never_doubled(self):
        assert len(self.flying) == len(set(self.flying))

    def teardown(self):
        """Let everything run undisturbed: whatever is due must come out within moments, not at the heartbeat."""
        undisturbed_since = self.world.now
        for _ in range(60):
            while self.flying:
                self.a_tick_lands(lost=False)
            for partition in (0, 1):
                if self.world.log[partition]:
                    self.batch(partition)
            waiting = [due for dues in self.world.due.values() for due in dues]
            late = [self.world.now - max(due, undisturbed_since) for due in waiting]
            assert max(late, default=0) <= RETRY_MS + 3
            if not any(self.world.due.values()):
                return
            self.world.now += max(1, self.aim.wait(self.moment))
            self.the_pulse_wakes()
        raise AssertionError(f"deadlines that no tick reached: {self.world.due}")


TestTicking = Ticking.TestCase
TestTicking.settings = settings(deadline=None)
