"""The script that makes the environment, with interpreters that only pretend: no package is ever installed here."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "cat", "cksum", "dirname", "mkdir", "cp", "rm", "uname")

# Answers what the script asks an interpreter, and writes down every call.
INTERPRETER = """#!/bin/sh
echo "$*" >>{calls}
case "$*" in
*sys.exit*) exit {supported} ;;
*ensurepip*) exit {venv} ;;
*print*) echo {version} ;;
"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*pip*) exit {pip} ;;
esac
"""


class House:
    """A clone on a machine where only the named interpreters are on PATH."""

    def __init__(self, folder):
        self.folder, self.bin, self.calls_file = folder / "clone", folder / "bin", folder / "calls"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        (self.folder / "scripts").mkdir(parents=True)
        for name in ("scripts/bootstrap", "requirements.lock", "requirements-build.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder / name)

    def add(self, name, text=None, *, version="3.12", supported=True, venv=True, pip=True):
        script = text or INTERPRETER.format(
            calls=self.calls_file, version=version, supported=int(not supported), venv=int(not venv), pip=int(not pip)
        )
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def bootstrap(self, **environment):
        self.calls_file.write_text("")
        return subprocess.run(
            ["/bin/sh", "scripts/bootstrap"],
            cwd=self.folder,
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    @property
    def calls(self):
        return self.calls_file.read_text()


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


def test_the_environment_is_made_from_the_hashed_locks(house):
    house.add("python3.12")
    done = house.bootstrap()
    assert done.returncode == 0, done.stderr
    installs = [call for call in house.calls.splitlines() if " install " in call]
    assert [call.split("--no-deps ")[1] for call in installs] == [
        "--require-hashes -r requirements-build.lock",
        "--require-hashes --no-build-isolation -r requirements.lock",
        "--no-build-isolation --no-index --editable .",
    ]
    assert "about 700 MB" in done.stderr


def test_a_second_call_asks_no_package_manager(house):
    house.add("python3.12")
    house.bootstrap()
    done = house.bootstrap()
    assert (done.returncode, done.stderr) == (0, "")
    assert "-m " not in house.calls


def test_a_changed_lock_is_installed(house):
    house.add("python3.12")
    house.bootstrap()
    with (house.folder / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    house.bootstrap()
    assert "-r requirements.lock" in house.calls


def test_an_install_that_failed_says_what_to_do_and_is_tried_again(house):
    house.add("python3.12", pip=False)
    done = house.bootstrap()
    assert done.returncode == 1
    assert "check the connection, https_proxy and your pip configuration" in done.stderr
    assert house.bootstrap().returncode == 1


def test_an_environment_that_was_broken_is_replaced(house):
    house.add("python3.12")
    house.bootstrap()
    (house.folder / ".venv" / "bin" / "python").unlink()
    done = house.bootstrap()
    assert done.returncode == 0
    assert "Replacing .venv" in done.stderr


def test_an_environment_that_was_moved_is_installed_again(house, tmp_path):
    house.add("python3.12")
    house.bootstrap()
    house.folder = house.folder.rename(tmp_path / "moved")
    assert house.bootstrap().returncode == 0
    assert "pip" in house.calls


def test_a_shim_for_a_python_that_is_not_there_is_passed_over(house):
    house.add("python3.12", "#!/bin/sh\necho 'python3.12: command not found' >&2\nexit 127\n")
    house.add("python3.11", version="3.11")
    done = house.bootstrap()
    assert done.returncode == 0
    assert "Creating .venv with Python 3.11" in done.stderr


def test_a_python_without_venv_is_passed_over_when_another_has_it(house):
    house.add("python3.12", venv=False)
    house.add("python3.13", version="3.13")
    assert "Creating .venv with Python 3.13" in house.bootstrap().stderr


def test_a_missing_venv_module_gets_a_sentence(house):
    house.add("python3", version="3.11", venv=False)
    done = house.bootstrap()
    assert done.returncode == 1
    assert "Python 3.11 (python3) has no venv module" in done.stderr
    assert "apt-get install python3.11-venv" in done.stderr


def test_no_suitable_python_gets_a_sentence(house):
    house.add("python3", supported=False)
    done = house.bootstrap()
    assert done.returncode == 1
    assert "marq needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_the_python_that_was_named_is_used(house):
    house.add("python3.12")
    house.add("mine", version="3.13")
    assert "Creating .venv with Python 3.13" in house.bootstrap(PYTHON="mine").stderr


def test_naming_another_python_replaces_the_environment(house):
    house.add("python3.12")
    house.add("mine", version="3.13")
    house.bootstrap()
    done = house.bootstrap(PYTHON="mine")
    assert "Replacing .venv, which does not work or is not for Python 3.13" in done.stderr
    # From then on it is kept, also by a call that names none.
    assert house.bootstrap().stderr == ""


def test_a_named_python_that_does_not_fit_gets_a_sentence(house):
    house.add("python3.12")
    house.add("mine", supported=False)
    done = house.bootstrap(PYTHON="mine")
    assert done.returncode == 1
    assert "PYTHON=mine does not run, or is not Python 3.11" in done.stderr


def test_windows_gets_a_sentence(house):
    house.add("uname", "#!/bin/sh\necho MINGW64_NT-10.0\n")
    done = house.bootstrap()
    assert done.returncode == 1
    assert "WSL 2" in done.stderr


def test_the_locks_are_hashed_and_name_no_host():
    for name in ("requirements.lock", "requirements-build.lock"):
        text = (ROOT / name).read_text()
        assert "http" not in text
        assert "/" not in "".join(line for line in text.splitlines() if "--hash" not in line and "# " not in line)
        pinned = [line for line in text.splitlines() if "==" in line and not line.startswith(" ")]
        assert all(line.endswith("\\") for line in pinned)
        assert len(pinned) > 5
