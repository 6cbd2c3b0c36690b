"""What all commands have in common: help with an example, suggestions, sentences for errors, exit codes."""

import logging
import socket
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from marq.cli import app
from marq.cli.shell import require_broker, set_up
from marq.errors import MarqError, TransportError
from marq.settings import AppSettings


def commands():
    """Every command by what one types, groups included."""
    found = {"": get_command(app)}
    pending = [("", get_command(app))]
    while pending:
        path, group = pending.pop()
        for name, command in getattr(group, "commands", {}).items():
            found[f"{path} {name}".strip()] = command
            pending.append((f"{path} {name}".strip(), command))
    return found


@pytest.fixture
def marq():
    runner = CliRunner()
    return lambda *arguments, **options: runner.invoke(app, arguments, prog_name="marq", **options)


def test_the_commands_are_these():
    assert set(commands()) == {
        *("", "bench", "bench consume", "bench produce", "demo", "dev", "fetch", "pipeline", "send", "version")
    }


@pytest.mark.parametrize("name", commands())
def test_help_says_what_it_does_and_ends_with_an_example(marq, name):
    result = marq(*name.split(), "--help")
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    assert lines[0].startswith(f"Usage: marq {name}".strip())
    first_sentence = commands()[name].help.split("\n\n")[0]
    assert first_sentence.endswith(".")
    assert " ".join(first_sentence.split()) in said
    assert any(line.startswith("Example: ") and "marq" in line for line in lines[-2:])


@pytest.mark.parametrize("name", commands())
def test_every_option_says_what_it_means(name):
    for parameter in commands()[name].params:
        assert parameter.help, f"{name}: {parameter.name}"
        assert parameter.help.endswith("."), f"{name}: {parameter.name}"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["dmo"], "Did you mean 'demo'?"),
        (["bench", "consum"], "Did you mean 'consume'?"),
        (["demo", "--messagse"], "--messages"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(marq, arguments, suggestion):
    result = marq(*arguments)
    assert result.exit_code == 2
    assert suggestion in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [["demo", "--messages", "5"], ["send"], ["dev", "--kafka-port", "70000"], ["bench", "consume", "--rounds", "0"]],
)
def test_wrong_usage_ends_with_2(marq, arguments):
    assert marq(*arguments).exit_code == 2


def test_an_error_of_marqs_is_a_sentence_and_ends_with_1(marq):
    result = marq("send", "emails", "hello", "--bootstrap", "nonsense")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "marq: --bootstrap must be host:port, or host:port,host:port, not 'nonsense'.\n"


def test_a_password_in_the_option_is_refused_and_not_repeated(marq):
    result = marq("send", "emails", "hello", "--bootstrap", "me:hunter2@host:9092")
    assert result.exit_code == 1
    assert "MARQ_KAFKA_SASL_PASSWORD" in result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("command", [["send", "emails", "x"], ["bench", "produce"]])
def test_a_broker_in_memory_is_of_no_use_to_a_command(marq, command):
    result = marq(*command, "--bootstrap", "memory://x")
    assert result.exit_code == 1
    assert "memory://x lives inside one process" in result.stderr


def test_no_broker_is_said_at_once(marq):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: nobody else gets the port, and nobody answers
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = marq("send", "emails", "x", "--bootstrap", address)
    assert result.exit_code == 1
    first, cause = result.stderr.splitlines()
    assert first.startswith(f"marq: No broker answers at {address}. Check that it runs")
    assert "refused" in cause


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_one_broker_that_answers_is_enough(host):
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with socket.socket(family) as closed, socket.socket(family) as open_:
        for each in (closed, open_):
            each.bind((host.strip("[]"), 0))
        open_.listen()
        brokers = ",".join(f"{host}:{each.getsockname()[1]}" for each in (closed, open_))
        require_broker(AppSettings(url=f"kafka://{brokers}"))


def test_without_an_address_it_says_where_it_may_stand(marq, monkeypatch):
    monkeypatch.delenv("MARQ_URL", raising=False)
    result = marq("send", "emails", "hello")
    assert result.exit_code == 1
    assert "--bootstrap host:port" in result.stderr
    assert "MARQ_URL" in result.stderr


def broken():
    """Fails with an error that was caused by another, and that one by a third."""
    middle = TransportError("Nobody answers. Check the cable.")
    middle.__cause__ = OSError("the cable is out")
    raise MarqError("It cannot go on: Nobody answers. Check the cable.") from middle


def test_causes_are_told_once(marq, monkeypatch):
    monkeypatch.setattr("marq.stack.jars.broker_jars", broken)
    result = marq("fetch")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "marq: It cannot go on: Nobody answers. Check the cable.",
        "caused by: the cable is out",
    ]


def test_a_traceback_is_for_those_who_ask(marq, monkeypatch):
    monkeypatch.setattr("marq.stack.jars.broker_jars", broken)
    result = marq("fetch", "-v")
    assert result.exit_code == 1
    assert "marq: It cannot go on" in result.stderr
    assert "Traceback (most recent call last)" in result.stderr


class Mute(Exception):  # noqa: N818 - it stands for an error of Spark's
    def __str__(self):
        raise ConnectionRefusedError("the JVM that would have to say it is gone")


@pytest.mark.parametrize("options", [[], ["-v"]])
def test_a_cause_that_cannot_speak_is_left_out(marq, monkeypatch, options):
    def broken():
        raise MarqError("It cannot go on.") from Mute()

    monkeypatch.setattr("marq.stack.jars.broker_jars", broken)
    result = marq("fetch", *options)
    assert result.exit_code == 1
    assert result.stderr.startswith("marq: It cannot go on.\n")
    assert "caused by" not in result.stderr


def test_a_defect_is_not_hidden(marq, monkeypatch):
    def defect():
        raise ZeroDivisionError

    monkeypatch.setattr("marq.stack.jars.broker_jars", defect)
    assert isinstance(marq("fetch").exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["dev", "demo", "pipeline"])
def test_without_java_it_says_how_to_get_it(marq, monkeypatch, tmp_path, command):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = marq(command)
    assert result.exit_code == 1
    assert "Install Java 17 or newer" in result.stderr
    assert "Traceback" not in result.stderr


def test_importing_the_command_loads_what_help_needs_and_no_more():
    heavy = ("pyspark", "py4j", "confluent_kafka", "pandas", "pyarrow", "rich.live", "marq.demo", "marq.pipeline")
    program = f"import sys, marq.cli\nprint(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_versions(marq):
    lines = marq("version").output.splitlines()
    assert lines[0] == f"marq {marq('--version').output.strip()}"
    assert [line.split()[0] for line in lines] == ["marq", "Python", "confluent-kafka", "pyspark", "redis"]


def test_it_runs_as_a_module_too():
    done = subprocess.run(
        [sys.executable, "-m", "marq.cli", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip()


def test_warnings_are_shown_but_not_the_one_of_every_start(capsys):
    set_up(verbose=False)
    log = logging.getLogger("marq.kafka")
    log.warning("GETPID: Failed to acquire idempotence PID: Broker: Coordinator load in progress: retrying")
    log.warning("the broker is gone")
    log.info("nothing special")
    assert capsys.readouterr().err == "WARNING marq.kafka: the broker is gone\n"
    set_up(verbose=True)
    log.info("nothing special")
    assert capsys.readouterr().err == "INFO marq.kafka: nothing special\n"
