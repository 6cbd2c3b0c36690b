"""`marq bench`: what it prints, with subjects that cost nothing. What it measures is tested with the benchmarks."""

import json

import pytest
from typer.testing import CliRunner

from marq.bench.rounds import Lap, Subject
from marq.cli import app

RATES = {"marq-lazy": 500.0, "confluent-kafka": 1000.0}


@pytest.fixture
def asked(monkeypatch, memory_is_a_broker):
    """What the bench was asked to measure."""
    asked = []

    def subjects(bootstrap, queue_app, messages, size):
        asked.append((bootstrap, messages, size))
        return [
            Subject(name, lambda _, rate=rate: Lap(messages, messages / rate, 1e-6 * messages))
            for name, rate in RATES.items()
        ]

    monkeypatch.setattr("marq.bench.consume.subjects", subjects)
    monkeypatch.setattr("marq.bench.produce.subjects", subjects)
    return asked


@pytest.mark.parametrize("bench", ["consume", "produce"])
def test_json_is_one_object_per_line_and_subject(asked, bench):
    arguments = ["bench", bench, "--json", "--rounds", "3", "--messages", "2000", "--size", "64"]
    result = CliRunner().invoke(app, [*arguments, "--bootstrap", "memory://bench"])
    assert result.exit_code == 0, result.output
    assert asked == [("bench", 2000, 64)]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {
            "bench": bench,
            "subject": name,
            "size": 64,
            "unit": "messages/s",
            "rounds": [rate] * 3,
            "median": rate,
            "cpu_us_per_message": 1.0,
        }
        for name, rate in RATES.items()
    ]
    assert result.stderr.count("round 3 of 3") == 2


def test_the_table_compares_with_the_bare_client(asked):
    result = CliRunner().invoke(app, ["bench", "consume", "--rounds", "1", "--bootstrap", "memory://bench"])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["marq-lazy"] == ["500", "0.50", "500", "500", "1.00"]
    assert rows["confluent-kafka"] == ["1,000", "1.00", "1,000", "1,000", "1.00"]
    assert "\x1b" not in result.stdout
