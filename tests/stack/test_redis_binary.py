import stat

import pytest

from marq.errors import StackError
from marq.stack import redis
from marq.stack.redis import find_redis


@pytest.fixture
def binaries(tmp_path, monkeypatch):
    """Puts servers of the given versions on PATH and into the wheel."""

    def put(folder, version):
        binary = tmp_path / folder / "redis-server"
        binary.parent.mkdir()
        binary.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc bits=64 build=1'\n")
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        return binary

    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(redis, "_wheel_binary", lambda: next(iter((tmp_path / "wheel").glob("*")), None))
    return put


def test_the_one_on_path_comes_first(binaries):
    binaries("wheel", "6.2.14")
    on_path = binaries("path", "7.0.15")
    assert find_redis() == on_path


def test_the_wheel_is_next_also_when_the_one_on_path_is_too_old(binaries):
    wheel = binaries("wheel", "6.2.14")
    assert find_redis() == wheel
    binaries("path", "5.0.7")
    assert find_redis() == wheel


def test_without_any_the_user_is_told_how_to_get_one(binaries):
    with pytest.raises(StackError, match=r"no redis-server of version 6\.2.*apt-get install redis-server.*brew"):
        find_redis()


def test_what_was_looked_at_is_named(binaries):
    binaries("path", "5.0.7")
    broken = binaries("wheel", "7.0.0")
    broken.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(StackError, match=r"path/redis-server is 5\.0\.7; .*wheel/redis-server does not run"):
        find_redis()
