"""A checkpoint folder is used for one markers topic, and for no other."""

import errno
import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from marq.errors import PipelineError
from marq.pipeline import checkpoint
from marq.pipeline.checkpoint import LOCK, Identity, _compare, held, location, query_folder

MINE = Identity(cluster="c1", topic="marq.markers", topic_id="t1")


def test_a_folder_becomes_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert location("checkpoint") == (tmp_path / "checkpoint").as_uri()
    assert location(tmp_path) == tmp_path.as_uri()
    assert location("s3a://bucket/checkpoint") == "s3a://bucket/checkpoint"
    assert query_folder("s3a://bucket/checkpoint/") == "s3a://bucket/checkpoint/tracker"


def test_ones_own_note_is_accepted():
    _compare("file:///x", json.dumps(asdict(MINE)), MINE)


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (json.dumps(asdict(replace(MINE, topic_id="t2"))), r"belongs to topic marq\.markers \(t2\) of cluster c1"),
        (json.dumps(asdict(replace(MINE, cluster="c2"))), r"of cluster c2, not to"),
        (json.dumps(asdict(replace(MINE, format=99))), r"has format 99, this marq writes"),
        ("{", r"marq\.json .* cannot be read"),
        ('{"unknown": 1}', r"marq\.json .* cannot be read"),
    ],
)
def test_anothers_is_refused_with_the_way_out(note, said):
    with pytest.raises(PipelineError, match=f"{said}.* Start with a new, empty checkpoint folder"):
        _compare("file:///x", note, MINE)


def test_a_folder_on_this_machine_is_held_by_one_pipeline(tmp_path):
    url = location(tmp_path / "a folder")
    with (
        held(url),
        pytest.raises(PipelineError, match=r"Another pipeline uses the checkpoint .*a folder: stop one of them"),
        held(url),
    ):
        pass
    with held(url):
        assert (tmp_path / "a folder" / LOCK).exists()


def test_a_holder_that_was_killed_holds_no_longer(tmp_path):
    url = location(tmp_path)
    program = (
        "import sys\nfrom marq.pipeline.checkpoint import held\nwith held(sys.argv[1]):\n"
        "    print('held', flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(PipelineError, match="Another pipeline"), held(url):
                pass
        finally:
            holder.kill()
    with held(url):
        pass


@pytest.mark.parametrize("url", ["s3a://bucket/checkpoint", "hdfs://name/x", "file://other-host/x"])
def test_elsewhere_nothing_can_be_held(url):
    with held(url), held(url):
        pass


def test_what_is_no_folder_is_said(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PipelineError, match="is a file"), held(location(file)):
        pass
    with pytest.raises(PipelineError, match=r"cannot be used: .*\. Choose another"), held(location(file / "inside")):
        pass


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(checkpoint.fcntl, "flock", none)
    with held(location(tmp_path)):
        pass
    assert "cannot be locked (No locks available)" in caplog.text
