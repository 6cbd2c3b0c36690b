import errno
import fcntl
import gc
import json
import os

import pytest

from marq.errors import DataFolderError
from marq.stack import folder
from marq.stack.folder import LOCK, STAMP, DataFolder, speaking_of_folder


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """Claims folders and gives them up after the test."""
    monkeypatch.setattr(folder, "LOCK_PATIENCE_SECONDS", 0.0)
    claimed = []

    def claim(path, product="Kafka 4.3.1"):
        data = DataFolder(path, "kafka", product)
        claimed.append(data)
        data.claim()
        return data

    yield claim
    for data in claimed:
        data.release()


def test_a_folder_remembers_its_facts(tmp_path, claim):
    first = claim(tmp_path / "new" / "data")
    first.remember(cluster="abc")
    first.remember(formatted="yes")
    first.release()
    assert claim(tmp_path / "new" / "data").facts == {"cluster": "abc", "formatted": "yes"}


def test_another_version_is_refused_with_both_versions_named(tmp_path, claim):
    claim(tmp_path).release()
    with pytest.raises(DataFolderError, match=r"holds data of Kafka 4\.3\.1, and this marq runs Kafka 5\.0\.0\. Use"):
        claim(tmp_path, "Kafka 5.0.0")
    # A refusal leaves nothing locked.
    claim(tmp_path)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path, claim):
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(DataFolderError, match=r"holds holiday\.jpg\. Choose an empty"):
        claim(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("stamp", ["", "[]", '{"product": "Kafka 4.3.1"}', '{"product": "x", "facts": 1}'])
def test_an_unreadable_stamp_is_refused(tmp_path, claim, stamp):
    (tmp_path / LOCK).touch()
    (tmp_path / STAMP).write_text(stamp)
    with pytest.raises(DataFolderError, match="cannot be read"):
        claim(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path, claim):
    claim(tmp_path)
    with pytest.raises(DataFolderError, match="Another server works in"):
        claim(tmp_path)


def test_a_folder_whose_server_is_just_ending_is_waited_for(tmp_path, claim, monkeypatch):
    monkeypatch.setattr(folder, "LOCK_PATIENCE_SECONDS", 10.0)
    holder = claim(tmp_path)
    monkeypatch.setattr(folder.time, "sleep", lambda _: holder.release())
    assert claim(tmp_path).path == tmp_path


def test_a_file_in_place_of_the_folder_gets_a_sentence(tmp_path, claim):
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="cannot be used as a data folder"):
        claim(tmp_path / "file")


def test_the_lock_is_real(tmp_path, claim):
    claim(tmp_path)
    with (tmp_path / LOCK).open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_stamp_is_plain_json(tmp_path, claim):
    claim(tmp_path)
    assert json.loads((tmp_path / STAMP).read_text()) == {"product": "Kafka 4.3.1", "facts": {}}


def test_a_temporary_folder_goes_with_its_owner():
    data = DataFolder(None, "kafka", "Kafka 4.3.1")
    path = data.path
    assert path.is_dir()
    del data
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "is full"), (errno.EACCES, "Choose one that you can write to")]
)
def test_trouble_with_the_file_system_gets_a_sentence(tmp_path, number, words):
    with pytest.raises(DataFolderError, match=words), speaking_of_folder(tmp_path):
        raise OSError(number, os.strerror(number))
