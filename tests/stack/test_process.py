import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from marq.errors import PortInUseError, StackError
from marq.stack import process
from marq.stack.process import LOOPBACK, ManagedProcess, free_port, port_is_free, tail

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(300)",
]
# A parent that starts the command after `--` under a guard, says its process id and then does nothing.
PARENT = """
import sys, time
from pathlib import Path
from marq.stack.process import ManagedProcess
folder = Path(sys.argv[2])
child = ManagedProcess(sys.argv[4:], log=Path(sys.argv[1]), temporary=folder, orphan_grace=float(sys.argv[3])).start()
print(child.pid, flush=True)
time.sleep(300)
"""


def wait_for(condition, seconds=10.0):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.01)


def runs(pid):
    """A process that has ended and was not collected yet is no longer running."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path):
    """Starts managed processes and ends them, whatever the test does."""
    started = []

    def start(command, **options):
        child = ManagedProcess(command, log=tmp_path / "child.log", **options)
        started.append(child)
        return child.start()

    yield start
    for child in started:
        child.kill()


def orphaned(tmp_path, command, grace):
    """Starts the command under a parent, kills that parent, and returns the command's process id."""
    (tmp_path / "temporary" / "data").mkdir(parents=True)
    arguments = [sys.executable, "-c", PARENT, tmp_path / "child.log", tmp_path / "temporary", str(grace), *command]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    try:
        with parent.stdout:
            pid = int(parent.stdout.readline())
    finally:
        if command is STUBBORN:
            wait_for(lambda: "ready" in tail(tmp_path / "child.log"))
        parent.kill()
        parent.wait()
    return pid


def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path):
    pid = orphaned(tmp_path, SLEEP, grace=30)
    wait_for(lambda: not runs(pid))


def test_an_orphans_temporary_folder_goes_with_it(tmp_path):
    orphaned(tmp_path, SLEEP, grace=30)
    wait_for(lambda: not (tmp_path / "temporary").exists())


def test_an_orphan_that_will_not_stop_is_killed_after_its_grace(tmp_path):
    pid = orphaned(tmp_path, STUBBORN, grace=0.1)
    wait_for(lambda: not runs(pid))


def test_the_childs_own_children_end_with_it(tmp_path, start):
    family = f"{sys.executable} -c 'import time; time.sleep(300)' & echo $!; wait"
    child = start(["/bin/sh", "-c", family])
    wait_for(lambda: child.log_tail().strip().isdigit())
    grandchild = int(child.log_tail())
    assert runs(grandchild)
    child.kill()
    wait_for(lambda: not runs(grandchild))


def test_a_child_outlives_the_thread_that_started_it(start):
    """The kernel's own way of ending children with their parent means the thread, not the process."""
    started = []
    thread = threading.Thread(target=lambda: started.append(start(SLEEP)))
    thread.start()
    thread.join()
    assert started[0].wait(timeout=0.3) is None
    assert runs(started[0].pid)


if sys.platform == "linux":

    def test_a_child_ends_even_when_its_guard_is_killed(start):
        child = start(SLEEP)
        guard = psutil.Process(child.pid).parent()
        guard.kill()
        wait_for(lambda: not runs(child.pid))


def test_stop_lets_a_child_end_by_itself(start):
    child = start(SLEEP)
    assert child.is_alive
    assert child.exit_code is None
    child.stop()
    assert not child.is_alive
    assert child.exit_code == 128 + signal.SIGTERM
    assert not runs(child.pid)


def test_stop_kills_a_child_that_does_not_listen(start):
    child = start(STUBBORN)
    wait_for(lambda: "ready" in child.log_tail())
    child.stop(timeout=0.1)
    assert child.exit_code == 128 + signal.SIGKILL


def test_kill_gives_no_chance_to_clean_up(tmp_path, start):
    child = start(SLEEP, temporary=tmp_path)
    child.kill()
    assert tmp_path.exists()  # for another start
    assert child.exit_code == 128 + signal.SIGKILL
    assert not runs(child.pid)


def test_a_child_that_ends_leaves_its_exit_code_and_its_words(start):
    child = start([sys.executable, "-c", "import sys; print('out'); sys.stdout.flush(); sys.exit('err')"])
    assert child.wait(timeout=10) == 1
    assert child.log_tail().splitlines() == ["out", "err"]
    child.stop()


def test_a_stopped_process_can_be_started_again(start):
    child = start(SLEEP)
    first = child.pid
    child.kill()
    child.start()
    assert child.is_alive
    assert child.pid != first


def test_a_running_process_is_not_started_twice(start):
    child = start(SLEEP)
    with pytest.raises(StackError, match="running already"):
        child.start()


def test_before_its_start_a_process_is_nothing(tmp_path):
    child = ManagedProcess(SLEEP, log=tmp_path / "log")
    child.stop()
    assert (child.pid, child.is_alive, child.exit_code, child.wait()) == (0, False, None, None)


def test_a_command_that_is_not_there_is_named(start):
    with pytest.raises(StackError, match=r"/no/such/server could not be started: .*No such file"):
        start(["/no/such/server"])


def test_used_as_a_context_it_ends_at_the_end(tmp_path):
    with ManagedProcess(SLEEP, log=tmp_path / "log") as child:
        assert child.is_alive
    assert not child.is_alive


def test_ctrl_c_in_the_terminal_does_not_reach_the_child(start):
    child = start(SLEEP)
    assert os.getsid(child.pid) != os.getsid(0)
    assert os.getpgid(child.pid) == child.pid


def test_environment_and_folder_are_the_ones_asked_for(tmp_path, start):
    show = "import os; print(os.getcwd()); print(os.environ['MARQ_TEST']); print('HOME' in os.environ)"
    folder = tmp_path.resolve()
    child = start([sys.executable, "-c", show], environment={"MARQ_TEST": "yes"}, folder=folder)
    child.wait(timeout=10)
    assert child.log_tail().splitlines() == [str(folder), "yes", "False"]


def test_a_held_lock_stays_until_the_child_has_ended_and_is_hidden_from_it(tmp_path, start):
    path = tmp_path / "lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    child = start(
        [sys.executable, "-c", "import os, time; print(os.listdir('/dev/fd'), flush=True); time.sleep(300)"],
        hold=[lock],
    )
    os.close(lock)
    wait_for(child.log_tail)
    # The fourth is the listing's own.
    assert len(child.log_tail().split(",")) == 4
    with path.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_port_somebody_listens_on_is_not_free():
    with socket.create_server((LOOPBACK, 0)) as server:
        assert not port_is_free(server.getsockname()[1])


def test_a_free_port_can_be_listened_on_and_avoids_the_ones_named(monkeypatch):
    port = free_port()
    with socket.create_server((LOOPBACK, port)):
        pass
    monkeypatch.setattr(process, "PORTS", range(port, port + 1))
    with pytest.raises(PortInUseError, match="No free port"):
        free_port(avoid=[port])


def test_tail_is_the_end_of_a_file_and_nothing_for_a_missing_one(tmp_path):
    log = tmp_path / "log"
    assert tail(log) == ""
    log.write_text("\n".join(map(str, range(100_000))))
    assert tail(log, 2) == "99998\n99999"
