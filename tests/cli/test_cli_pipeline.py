"""`marq pipeline`: what it says of itself, and what it passes on. That it runs is tested with the pipeline."""

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from marq.cli import app
from marq.cli.pipeline import Announcer, sentence
from marq.pipeline.status import PipelineStatus


def test_only_news_is_told(capsys):
    announcer = Announcer(json=True)
    announcer.tell(PipelineStatus(batches=1, ticks=2))
    announcer.tell(PipelineStatus(batches=9, ticks=7, batch_ms_p50=300))
    announcer.tell(PipelineStatus(ready=True, batches=10))
    announcer.tell(PipelineStatus(ready=True, batches=11, redelivered=3))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["ready"], line["redelivered"]) for line in lines] == [(False, 0), (True, 0), (True, 3)]


def test_people_get_a_sentence(capsys):
    Announcer(json=False).tell(PipelineStatus(ready=True, hot=4, cold=3, redelivered=2, dead=1, lag=5))
    expected = "ready: leased 4, delayed 3, redelivered 2, dead 1, behind 5, restarts 0"
    assert capsys.readouterr().out == f"{expected}\n"
    failed = sentence(PipelineStatus(restarts=1, last_error="the broker is gone"))
    assert failed.startswith("catching up: ")
    assert failed.endswith("restarts 1, last error: the broker is gone")


@pytest.fixture
def run(monkeypatch, tmp_path, memory_is_a_broker):
    """The command with a pipeline that only notes what it was given."""
    given = SimpleNamespace()

    def run_pipeline(bootstrap, topics, settings, **more):
        vars(given).update(bootstrap=bootstrap, topics=topics, settings=settings, **more)

    monkeypatch.setattr("marq.pipeline.run.run_pipeline", run_pipeline)
    monkeypatch.setattr("marq.stack.jars.spark_jars", lambda: [tmp_path / "connector.jar"])
    java = SimpleNamespace(path=tmp_path / "java" / "bin" / "java")
    monkeypatch.setattr("marq.stack.java.find_java", lambda: java)

    def run(*arguments):
        result = CliRunner().invoke(app, ["pipeline", *arguments])
        assert result.exit_code == 0, result.output
        return given

    return run


def test_options_become_settings(run, tmp_path):
    given = run(
        *("--bootstrap", "memory://pipeline-command", "--checkpoint", "hdfs://name/marq"),
        *("--master", "spark://host:7077", "--spark-log", str(tmp_path / "spark.log")),
    )
    assert given.bootstrap == "pipeline-command"
    assert given.settings.checkpoint == "hdfs://name/marq"
    assert given.settings.master == "spark://host:7077"
    assert given.log_file == tmp_path / "spark.log"
    assert given.java_home == tmp_path / "java"
    assert given.jars == [tmp_path / "connector.jar"]


def test_what_is_not_given_comes_from_the_file_and_the_environment(run, tmp_path, monkeypatch):
    file = tmp_path / "marq.toml"
    file.write_text('url = "memory://pipeline-file"\n[topics]\nprefix = "own"\n[pipeline]\ntrigger = "250ms"\n')
    monkeypatch.setenv("MARQ_PIPELINE_HEAP", "2g")
    given = run("--settings-file", str(file))
    assert given.bootstrap == "pipeline-file"
    assert given.topics.prefix == "own"
    assert given.settings.trigger == timedelta(milliseconds=250)
    assert given.settings.heap == "2g"
    assert given.settings.checkpoint is None
    assert given.log_file is None


def test_a_log_in_a_folder_that_is_not_there_is_refused(tmp_path):
    log = tmp_path / "nowhere" / "spark.log"
    result = CliRunner().invoke(app, ["pipeline", "--bootstrap", "127.0.0.1:1", "--spark-log", str(log)])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"marq: --spark-log {log} cannot be written (No such file or directory).")
    assert not log.parent.exists()
