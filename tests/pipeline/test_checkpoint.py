"""A checkpoint folder is used for one markers topic, and for no other."""

import json
from dataclasses import asdict, replace

import pytest

from marq.errors import PipelineError
from marq.pipeline.checkpoint import Identity, _compare, location, query_folder

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
