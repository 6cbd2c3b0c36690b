"""Runs one command and ends it when the process that asked for it is gone, however that one ended.

Started as a script of its own (`python -I -S guard.py LIFELINE GRACE FOLDER COMMAND ...`), so it imports nothing but
a few built-in modules and is up in a few milliseconds. LIFELINE is the number of an inherited pipe that the parent
holds open: when it closes, the parent is dead. FOLDER, unless empty, is then removed, because the parent cannot do it
any more. Works alike on Linux and macOS.

The parent speaks to the guard, never to the child's process id, which may belong to somebody else once the child has
ended: SIGTERM asks the child to stop, SIGUSR1 kills its whole process group. The first line on standard output is
the child's process id, or the reason why it could not be started.
"""

import os
import select
import signal
import sys
import time

# A parent that has forked copies of itself leaves the pipe open in those; so its process id is looked at as well.
PARENT_CHECK_SECONDS = 1.0
CANNOT_EXECUTE = 127


def main(arguments: list[str]) -> int:
    lifeline, grace, folder, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    parent = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, lambda number, _frame: received.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = _start(command)
    if child is None:
        return CANNOT_EXECUTE
    _tell(b"%d\n" % child)
    os.close(1)
    deadline = None
    while True:
        status = _reap(child)
        if status is not None:
            _kill_group(child)
            if deadline is not None and folder:
                _remove(folder)
            return status
        if deadline is not None and time.monotonic() >= deadline:
            _kill_group(child)
        readable, _, _ = select.select([lifeline, wake_read], [], [], PARENT_CHECK_SECONDS)
        if wake_read in readable:
            os.read(wake_read, 512)
        while received:
            _forward(received.pop(0), child)
        orphaned = lifeline in readable or os.getppid() != parent
        if orphaned and deadline is None:
            deadline = time.monotonic() + grace
            _forward(signal.SIGTERM, child)
            lifeline = wake_read  # a closed pipe is always readable: looking at it again would spin


def _start(command: list[str]) -> int | None:
    """Starts the child in a process group of its own. A second pipe, closed by a successful exec, tells a failure."""
    failure_read, failure_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            os.dup2(2, 1)  # standard output was only for telling the process id; both go into the log
            # Nothing that the guard holds may stay open in the child: neither the lifeline nor a lock.
            os.dup2(failure_write, 3, inheritable=False)
            failure_write = 3
            os.closerange(4, os.sysconf("SC_OPEN_MAX"))
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            _die_with_guard()
            os.execvp(command[0], command)  # noqa: S606 - a list of arguments, and a shell would change the process id
        except OSError as error:
            os.write(failure_write, str(error).encode())
        os._exit(CANNOT_EXECUTE)
    os.close(failure_write)
    reason = os.read(failure_read, 4096)
    os.close(failure_read)
    if reason:
        os.waitpid(child, 0)
        _tell(reason + b"\n")
        return None
    return child


def _tell(line: bytes) -> None:
    try:
        os.write(1, line)
    except OSError:  # the parent has died already, which the main loop notices
        return


def _die_with_guard() -> None:
    """On Linux the kernel ends the child with the guard. The call binds to a thread, and the guard has only one."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - costs a few milliseconds, and only the child needs it

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _reap(child: int) -> int | None:
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid == 0:
        return None
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _forward(number: int, child: int) -> None:
    if number == signal.SIGTERM:
        os.kill(child, signal.SIGTERM)  # not reaped yet, so the id is still the child's
    elif number == signal.SIGUSR1:
        _kill_group(child)


def _kill_group(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left; macOS says so with the second
        return


def _remove(folder: str) -> None:
    import shutil  # noqa: PLC0415 - needed only in this rare case

    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
