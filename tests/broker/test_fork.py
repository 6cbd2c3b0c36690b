"""A forked child starts anew: the client's threads stayed in its parent."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.broker

SCRIPT = """
import os, sys
from marq import App, TopicSettings

app = App(sys.argv[1], topics=TopicSettings(prefix="forked"))
queue = app.queue("mail", str)
queue.send("from the parent").result()
child = os.fork()
if child == 0:
    queue.send("from the child").result()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
queue.send("from the parent again").result()
found = set()
with queue.consume() as messages:
    while len(found) < 3:
        for message in messages.receive(3):
            found.add(message.value)
            message.ack()
print(sorted(found))
"""


def test_a_forked_child_can_send_and_end(kafka_server):
    url = f"kafka://{kafka_server.bootstrap}"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "['from the child', 'from the parent', 'from the parent again']\n", done.stderr
    assert done.returncode == 0
