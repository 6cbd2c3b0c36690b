"""What Spark writes, and what of it a person sees."""

import pytest

from marq.errors import PipelineError
from marq.pipeline.output import SparkOutput, last_error

WORKER = b"Streaming TransformWithStateInPandas Python worker"
SAID = [
    b"WARNING: Using incubator modules: jdk.incubator.vector\n",
    b"2026-01-01 WARN Something: mind this\n",
    b"Starting " + WORKER + b".\n",
    b"\n",
    WORKER + b" finish init stage of Python runner.\n",
    b"\n",
    b"a user's print\n",
    b"\n",
    b"2026-01-01 ERROR Something: it broke\n",
]


def test_on_standard_error_the_chatter_is_left_out(capsys):
    with SparkOutput(None) as output:
        output.stream.writelines(SAID)
        lines = output.said()
    shown = ["2026-01-01 WARN Something: mind this", "a user's print", "", "2026-01-01 ERROR Something: it broke"]
    assert capsys.readouterr().err.splitlines() == shown
    assert lines == shown


def test_a_file_gets_everything_after_what_it_held(tmp_path, capsys):
    log = tmp_path / "spark.log"
    log.write_bytes(b"before\n")
    with SparkOutput(log) as output:
        output.stream.writelines(SAID)
        assert output.said() == b"".join(SAID).decode().splitlines()
    assert log.read_bytes() == b"before\n" + b"".join(SAID)
    assert capsys.readouterr().err == ""


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    output = SparkOutput(tmp_path / "none" / "spark.log")
    with pytest.raises(PipelineError, match=r"spark\.log cannot be written .* in a folder that exists"), output:
        pass
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([line.decode() for line in SAID], "2026-01-01 ERROR Something: it broke"),
        (["X: Could not parse Master URL", "\tat a.b.C", "\t... 4 more", "see you"], "X: Could not parse Master URL"),
        (["WARNING: Using incubator modules: x", "Usage: java"], "Usage: java"),
        (["WARNING: Using incubator modules: x", ""], ""),
        ([], ""),
    ],
)
def test_the_last_error_is_found(lines, error):
    assert last_error(lines) == error
