import errno
import hashlib
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest

from marq.errors import ChecksumError, ConfigurationError, DownloadError
from marq.stack import ivy, jars
from marq.stack.ivy import Coordinate
from marq.stack.jars import Jar, cache_folder, jar_set, locked_jars, parse_lock

CONTENT = {"alpha-1.0.jar": b"alpha" * 1000, "beta-2.1.jar": b"beta" * 500}


class FakeRegistry:
    """Puts the jars there as Ivy would, and counts how often it was asked."""

    def __init__(self, content=CONTENT, delay=0.0):
        self.content, self.delay, self.calls = content, delay, 0

    def __call__(self, coordinates, folder, progress):
        self.calls += 1
        (folder / "lib").mkdir(parents=True, exist_ok=True)
        for wanted in coordinates:
            time.sleep(self.delay)
            (folder / "lib" / wanted.file_name).write_bytes(self.content[wanted.file_name])
        progress(sum(map(len, self.content.values())))


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A lock of two small jars, and an empty cache."""
    pinned = [
        Jar(
            Coordinate("org.example", *name.removesuffix(".jar").split("-")),
            len(data),
            hashlib.sha256(data).hexdigest(),
        )
        for name, data in CONTENT.items()
    ]
    monkeypatch.setattr(jars, "locked_jars", lambda: {"test": pinned})
    monkeypatch.setenv("MARQ_CACHE_DIR", str(tmp_path / "cache"))
    return pinned


def no_registry(*_):
    raise AssertionError("the registry was asked although the jars are in the cache")


def test_the_lock_pins_every_jar_exactly():
    sets = locked_jars()
    assert set(sets) == {"broker", "spark"}
    for pinned in sets.values():
        assert len({jar.file_name for jar in pinned}) == len(pinned)
        for jar in pinned:
            assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)
            assert jar.size > 0
            assert re.fullmatch(r"\d[\w.-]*", jar.coordinate.revision)


def test_the_lock_holds_the_versions_that_the_code_speaks_of():
    sets = {name: {str(jar.coordinate) for jar in pinned} for name, pinned in locked_jars().items()}
    assert f"org.apache.kafka:kafka_2.13:{jars.KAFKA_VERSION}" in sets["broker"]
    assert any(":log4j-slf4j-impl:" in coordinate for coordinate in sets["broker"])
    assert sets["spark"] == set(jars.SPARK_ROOTS)


def test_the_lock_names_no_registry():
    assert "http" not in jars.LOCK_FILE.read_text()


def test_the_lock_is_read_as_it_is_written():
    text = json.dumps({"version": 1, "sets": {"s": [{"coordinate": "o:m:1", "size": 3, "sha256": "ab"}]}})
    assert parse_lock(text) == {"s": [Jar(Coordinate("o", "m", "1"), 3, "ab")]}


def test_first_call_fetches_and_later_calls_do_not(lock, capsys):
    registry = FakeRegistry()
    paths = jar_set("test", fetcher=registry)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert re.search(r"Fetching 2 test jars, 0 MB", capsys.readouterr().err)
    assert jar_set("test", fetcher=no_registry) == paths
    assert capsys.readouterr().err == ""
    assert registry.calls == 1


def test_nothing_but_the_jars_and_the_stamp_stays_behind(lock):
    home = jar_set("test", fetcher=FakeRegistry())[0].parent
    assert {file.name for file in home.iterdir()} == {*CONTENT, jars.STAMP}
    assert not list(home.parent.glob("*.partial"))


def test_two_first_runs_at_once_fetch_once(lock):
    registry = FakeRegistry(delay=0.1)
    results = []
    runs = [threading.Thread(target=lambda: results.append(jar_set("test", fetcher=registry))) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert registry.calls == 1
    assert results[0] == results[1]


def test_a_jar_with_another_content_is_refused_and_fetched_again_next_time(lock):
    wrong = CONTENT | {"beta-2.1.jar": b"atbe" * 500}
    with pytest.raises(ChecksumError, match=r"beta-2\.1\.jar is not the file.*Run this again"):
        jar_set("test", fetcher=FakeRegistry(wrong))
    assert jar_set("test", fetcher=FakeRegistry())


def test_a_jar_that_the_registry_did_not_give_is_named(lock):
    def forgetful(coordinates, folder, progress):
        FakeRegistry()(coordinates[:1], folder, progress)

    with pytest.raises(DownloadError, match=r"org\.example:beta:2\.1"):
        jar_set("test", fetcher=forgetful)


@pytest.mark.parametrize("damage", [Path.unlink, lambda jar: jar.write_bytes(b"cut off")])
def test_a_damaged_cache_is_fetched_anew(lock, damage):
    damage(jar_set("test", fetcher=FakeRegistry())[1])
    registry = FakeRegistry()
    assert [path.read_bytes() for path in jar_set("test", fetcher=registry)] == list(CONTENT.values())
    assert registry.calls == 1


def test_a_change_that_keeps_the_size_is_noticed(lock):
    jar = jar_set("test", fetcher=FakeRegistry())[0]
    jar.write_bytes(b"ahpla" * 1000)
    os.utime(jar, ns=(1, 1))
    assert jar_set("test", fetcher=FakeRegistry())[0].read_bytes() == CONTENT["alpha-1.0.jar"]


def test_a_copied_cache_is_checked_and_not_fetched(lock):
    """A cache that came in a backup or an image has other times but the same jars."""
    paths = jar_set("test", fetcher=FakeRegistry())
    for path in paths:
        os.utime(path, ns=(1, 1))
    assert jar_set("test", fetcher=no_registry) == paths
    assert jar_set("test", fetcher=no_registry) == paths


def test_an_unreadable_stamp_is_no_proof(lock):
    paths = jar_set("test", fetcher=FakeRegistry())
    (paths[0].parent / jars.STAMP).write_text("[]")
    assert jar_set("test", fetcher=no_registry) == paths


def test_a_full_disk_gets_a_sentence(lock):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match=r"is full.*MARQ_CACHE_DIR"):
        jar_set("test", fetcher=full)


def test_a_cache_folder_that_cannot_be_made_gets_a_sentence(lock, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MARQ_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r"cannot be written.*MARQ_CACHE_DIR"):
        jar_set("test", fetcher=FakeRegistry())


def test_other_trouble_is_not_dressed_up(lock):
    def broken(*_):
        raise OSError(errno.EIO, "the disk is dying")

    with pytest.raises(OSError, match="dying"):
        jar_set("test", fetcher=broken)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("MARQ_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setattr(jars.sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/x/.cache/marq")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/marq")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/x/.cache/marq")
    monkeypatch.setattr(jars.sys, "platform", "darwin")
    assert cache_folder() == Path("/home/x/Library/Caches/marq")
    monkeypatch.setenv("MARQ_CACHE_DIR", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")


def test_all_jars_are_asked_for_in_one_resolution():
    text = ivy.module_file([Coordinate("a.b", "c", "1"), Coordinate("d", "e_2.13", "2.0")], transitive=False)
    assert '<dependency org="a.b" name="c" rev="1" transitive="false"' in text
    assert '<dependency org="d" name="e_2.13" rev="2.0" transitive="false"' in text


def test_no_registry_gets_a_sentence(tmp_path):
    log = tmp_path / "ivy.log"
    log.write_text("\t\t:: org.example#gone;1.0: not found\n")
    sentence = ivy.failure_sentence(log)
    assert "no package registry could be reached" in sentence
    assert "org.example#gone;1.0" in sentence
    assert "https_proxy" in sentence


def test_a_registry_without_one_of_the_jars_gets_another_sentence(tmp_path):
    log = tmp_path / "ivy.log"
    log.write_text("\t[SUCCESSFUL ] a#b;1!b.jar (1ms)\n\t\t:: org.example#gone;1.0: not found\n")
    assert "did not give every jar. Not found: org.example#gone;1.0." in ivy.failure_sentence(log)


def test_a_disk_that_filled_up_under_ivy_gets_a_sentence(tmp_path):
    log = tmp_path / "ivy.log"
    log.write_text("java.io.IOException: No space left on device\n")
    assert "disk is full" in ivy.failure_sentence(log)


def test_the_users_own_ivy_settings_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MARQ_IVY_SETTINGS", raising=False)
    assert ivy.user_settings() is None
    usual = tmp_path / ".ivy2" / "ivysettings.xml"
    usual.parent.mkdir()
    usual.touch()
    assert ivy.user_settings() == usual
    named = tmp_path / "named.xml"
    monkeypatch.setenv("MARQ_IVY_SETTINGS", str(named))
    with pytest.raises(ConfigurationError, match="MARQ_IVY_SETTINGS"):
        ivy.user_settings()
    named.touch()
    assert ivy.user_settings() == named
