"""`marq send`, on a broker in memory."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from marq import App
from marq.cli import app as command

SOON = timedelta(seconds=5)


@pytest.fixture
def send(memory_is_a_broker):
    return lambda *arguments, **options: CliRunner().invoke(command, ["send", *arguments], **options)


@pytest.fixture
def url(request):
    return f"memory://{request.node.name}"


def received(url, count, queue="emails"):
    """As the next consumer sees them: id, payload, key and headers."""
    with App(url) as app, app.queue(queue).consume() as messages:
        found = []
        while len(found) < count:
            got = messages.receive(count, SOON)
            assert got, f"only {len(found)} of {count} came"
            found += [(message.id, message.value, message.key, message.headers) for message in got]
            for message in got:
                message.ack()
        return found


def test_a_message_arrives_with_its_key_and_headers(send, url):
    result = send("emails", "héllo", "--bootstrap", url, "--key", "user-7", "--header", "a=1", "--header", "b=x=y")
    assert result.exit_code == 0, result.output
    [(identity, value, key, headers)] = received(url, 1)
    assert result.stdout == f"{identity}\n"
    assert (value, key, headers) == ("héllo".encode(), b"user-7", [("a", b"1"), ("b", b"x=y")])


def test_each_line_of_standard_input_is_a_message(send, url):
    result = send("emails", "--bootstrap", url, input=b"one\n\ntwo \xff\nlast")
    assert result.exit_code == 0, result.output
    found = received(url, 4)
    assert sorted(value for _, value, _, _ in found) == [b"", b"last", b"one", b"two \xff"]
    by_id = {identity: value for identity, value, _, _ in found}
    assert [by_id[identity] for identity in result.stdout.split()] == [b"one", b"", b"two \xff", b"last"]


def test_an_argument_that_is_not_utf8_is_sent_as_it_is(send, url):
    odd = os.fsdecode(b"\xff")
    assert send("emails", odd, "--bootstrap", url, "--key", odd, "--header", f"a={odd}").exit_code == 0
    [(_, value, key, headers)] = received(url, 1)
    assert (value, key, headers) == (b"\xff", b"\xff", [("a", b"\xff")])


def test_when_nobody_reads_the_ids_it_ends_with_a_sentence():
    """As in `marq send lines | head -1`: a process of its own, because its output is closed for good."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", "from marq.cli.shell import say; say('an id')"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "marq: The output was closed, so this ends early.\n"


def test_no_input_is_no_message(send, url):
    result = send("emails", "--bootstrap", url, input=b"")
    assert (result.exit_code, result.stdout) == (0, "")


def test_more_than_may_be_outstanding(send, url, monkeypatch):
    monkeypatch.setattr("marq.cli.send.OUTSTANDING_MAX", 10)
    result = send("emails", "--bootstrap", url, input="\n".join(map(str, range(100))))
    by_id = {identity: int(value) for identity, value, _, _ in received(url, 100)}
    assert [by_id[identity] for identity in result.stdout.split()] == list(range(100))


def test_the_address_may_stand_in_the_environment_or_in_a_file(send, url, tmp_path, monkeypatch):
    monkeypatch.setenv("MARQ_URL", url)
    assert send("emails", "from the environment").exit_code == 0
    monkeypatch.delenv("MARQ_URL")
    file = tmp_path / "marq.toml"
    file.write_text(f'url = "{url}"\n')
    assert send("emails", "from the file", "--settings-file", str(file)).exit_code == 0
    assert {value for _, value, _, _ in received(url, 2)} == {b"from the environment", b"from the file"}


@pytest.mark.parametrize("header", ["no-value", "=x"])
def test_a_header_needs_a_name_and_a_value(send, url, header):
    result = send("emails", "x", "--bootstrap", url, "--header", header)
    assert result.exit_code == 2
    assert "is not NAME=VALUE" in result.output


def test_marqs_own_headers_are_refused(send, url):
    result = send("emails", "x", "--bootstrap", url, "--header", "marq-attempt=9")
    assert result.exit_code == 1
    assert "marq-attempt is marq's own" in result.stderr


def test_a_queue_of_an_impossible_name_is_refused(send, url):
    result = send("e mails", "x", "--bootstrap", url)
    assert result.exit_code == 1
    assert "queue's name" in result.stderr
