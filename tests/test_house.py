"""The shape of the house: who imports whom, how long things are, and that the reference pages tell of everything."""

import ast
import inspect
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path

import pytest

import marq
from marq import errors
from marq.durations import format_duration
from marq.settings import SECTIONS, variable_of
from marq.telemetry import COUNTERS, PIPELINE_COUNTERS, Event

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "marq"
REFERENCE = ROOT / "docs" / "reference"

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

SOURCES = {
    ".".join(("marq", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not path.name.endswith("_pb2.py")
}
ROOMS = {room for _, room, *_ in (module.split(".") for module in SOURCES if "." in module)}

SURFACES = {"cli", "dashboard", "bench", "demo", "dev", "__main__"}
FOUNDATIONS = {"errors", "durations", "settings", "telemetry"}
# What each room may import of marq. A room that is not named here is a public noun.
MAY_IMPORT = {
    "errors": set(),
    "telemetry": set(),
    "durations": {"errors"},
    "settings": {"errors", "durations"},
    "core": {"core", "errors"},
    "transport": {"transport", "core", *FOUNDATIONS},
    "pipeline": {"pipeline", "transport", "core", *FOUNDATIONS},
    "stack": {"stack", *FOUNDATIONS},
}
NOUNS_MAY_NOT_IMPORT = {*SURFACES, "pipeline", "stack"}
# The only rooms that may import these, even inside a function.
ONLY_IN = {
    "confluent_kafka": {"transport", "bench"},
    "pyspark": {"pipeline"},
    "py4j": {"pipeline"},
    "pandas": {"pipeline"},
    "pyarrow": {"pipeline"},
}
CORE_MAY_IMPORT = {"google.protobuf"}


def room_of(module: str) -> str:
    """The part of the package that a module belongs to; of `marq` itself, `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def imported(module: str, tree: ast.AST, *, is_package: bool) -> list[str]:
    """Everything that a module imports, wherever in it, by absolute name."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = parts[: len(parts) - node.level + is_package] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            names += [f"marq.{alias.name}" for alias in node.names] if source == "marq" else [source]
    return names


def misdirected(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """The imports of a module that the house forbids."""
    room = room_of(module)
    complaints = []
    for name in imported(module, ast.parse(source), is_package=is_package):
        top = name.split(".")[0]
        if top == "marq":
            is_allowed = marq_import_is_allowed(room, room_of(name))
        elif room == "core":
            is_allowed = top in sys.stdlib_module_names or name.startswith(tuple(CORE_MAY_IMPORT))
        else:
            is_allowed = room in ONLY_IN.get(top, {room})
        if not is_allowed:
            complaints.append(f"{module} imports {name}")
    return complaints


def marq_import_is_allowed(room: str, target: str) -> bool:
    if room in SURFACES:
        return True
    if room in MAY_IMPORT:
        return target in MAY_IMPORT[room]
    return target in ROOMS - NOUNS_MAY_NOT_IMPORT


def too_long(module: str, source: str) -> list[str]:
    """The module, and those of its functions, that have more lines than a reader can hold."""
    lines = source.count("\n")
    complaints = [f"{module} has {lines} lines"] if lines > MODULE_LINES_MAX else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            length = node.end_lineno - first + 1
            if length > FUNCTION_LINES_MAX:
                complaints.append(f"{module}: {node.name} has {length} lines")
    return complaints


def counted(source: str) -> list[str]:
    """The names of the counters that a module raises: `counts["name"] += n`."""
    return [
        node.target.slice.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Subscript)
        and isinstance(node.target.slice, ast.Constant)
        and ast.unparse(node.target.value).endswith("counts")
    ]


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of all tables of a reference page: the first cell, which is code, and the others."""
    rows: dict[str, list[str]] = {}
    for line in (REFERENCE / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            name = cells[0].strip("`")
            rows.setdefault(name, []).append(" | ".join(cells[1:]))
    return rows


# The house


def test_imports_point_one_way():
    complaints = [
        complaint
        for module, path in SOURCES.items()
        for complaint in misdirected(module, path.read_text("utf-8"), is_package=path.name == "__init__.py")
    ]
    assert complaints == []


def test_modules_and_functions_are_short():
    complaints = [each for module, path in SOURCES.items() for each in too_long(module, path.read_text("utf-8"))]
    assert complaints == []


def test_importing_marq_loads_neither_spark_nor_kafka():
    program = f"import sys, marq\nfrom marq import *\nprint(*sorted(set(sys.modules) & {set(ONLY_IN)!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_all_public_names_exist_in_order():
    assert marq.__all__ == sorted(marq.__all__)
    assert all(hasattr(marq, name) for name in marq.__all__)
    assert len(marq.__all__) <= 20


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("marq.core.ledger", "import marq.transport.base", "marq.transport.base"),
        ("marq.core.ledger", "from marq import settings", "marq.settings"),
        ("marq.core.ledger", "from ..transport import base", "marq.transport"),
        ("marq.core.ledger", "import msgspec", "msgspec"),
        ("marq.core.ledger", "def f():\n    import google.cloud", "google.cloud"),
        ("marq.transport.kafka", "from marq.app import App", "marq.app"),
        ("marq.transport.kafka", "from marq.queue import Queue", "marq.queue"),
        ("marq.pipeline.tracker", "from marq.consumer import Consumer", "marq.consumer"),
        ("marq.pipeline.tracker", "import confluent_kafka", "confluent_kafka"),
        ("marq.stack.kafka", "from marq.transport.kafka import x", "marq.transport.kafka"),
        ("marq.app", "def f():\n    from marq.pipeline import session", "marq.pipeline"),
        ("marq.app", "from .cli import main", "marq.cli"),
        ("marq.app", "import marq", "marq"),
        ("marq.app", "if True:\n    import pyspark.sql", "pyspark.sql"),
        ("marq.consumer", "from confluent_kafka import Consumer", "confluent_kafka"),
        ("marq.cli.main", "import pandas", "pandas"),
        ("marq.settings", "from marq.telemetry import Event", "marq.telemetry"),
        ("marq.errors", "from marq import core", "marq.core"),
    ],
)
def test_a_forbidden_import_is_seen(module, source, complaint):
    assert misdirected(module, source) == [f"{module} imports {complaint}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "marq.core.ledger",
            "import json\nfrom marq.core import wheel\nfrom . import shelf\nimport google.protobuf.message",
        ),
        (
            "marq.transport.kafka",
            "import confluent_kafka\nfrom marq.errors import MarqError\nfrom ..core import records",
        ),
        ("marq.pipeline.tracker", "import pyspark.sql\nfrom marq.core.ledger import Ledger\nimport marq.settings"),
        ("marq.app", "from marq.queue import Queue\nfrom marq.transport.base import Transport\nimport msgspec"),
        ("marq.cli.main", "from marq.pipeline import session\nfrom marq.stack import kafka\nimport marq, rich"),
    ],
)
def test_an_allowed_import_is_left_alone(module, source):
    assert misdirected(module, source) == []


def test_a_package_imports_from_itself_with_one_dot():
    assert misdirected("marq.core", "from . import ledger\nfrom .wheel import Bucket", is_package=True) == []
    assert misdirected("marq.core", "from .. import app", is_package=True) == ["marq.core imports marq.app"]


def test_what_is_too_long_is_seen():
    body = "    pass\n"
    assert too_long("m", "x = 1\n" * 500) == []
    assert too_long("m", "x = 1\n" * 501) == ["m has 501 lines"]
    assert too_long("m", "def f():\n" + body * 69) == []
    assert too_long("m", "def f():\n" + body * 70) == ["m: f has 71 lines"]
    assert too_long("m", "@d\nasync def f():\n" + body * 69) == ["m: f has 71 lines"]


def test_generated_code_is_left_out():
    assert "marq.core.marker_pb2" not in SOURCES
    assert "marq.core.records" in SOURCES


# The reference pages


def test_every_setting_is_on_its_page_with_its_variable_and_default():
    expected = {}
    for section, kind in SECTIONS.items():
        for each in fields(kind):
            path = [section, each.name] if section else [each.name]
            if each.name not in SECTIONS:
                variable = "MARQ_KAFKA_*" if each.name == "kafka" else variable_of(*path)
                expected[".".join(path)] = (variable, shown_default(each))
    rows = rows_of("settings.md")
    assert set(rows) == set(expected)
    for label, (variable, default) in expected.items():
        (row,) = rows[label]
        assert row.startswith(f"`{variable}` | {default} |"), label


def shown_default(each) -> str:
    if each.name == "kafka":
        return "empty"
    if each.default is MISSING:
        return "required"
    if each.default is None:
        return "none"
    return f"`{format_duration(each.default) if isinstance(each.default, timedelta) else each.default}`"


def test_every_counter_and_event_is_on_its_page_with_its_meaning():
    tables = [COUNTERS, PIPELINE_COUNTERS, {event.value: event.meaning for event in Event}]
    rows = rows_of("metrics.md")
    assert set(rows) == {name for table in tables for name in table}
    for name, meanings in rows.items():
        assert meanings == [table[name] for table in tables if name in table]


def test_every_counter_that_is_raised_is_in_the_tables():
    raised = {name for path in SOURCES.values() for name in counted(path.read_text("utf-8"))}
    assert raised - set(COUNTERS) - set(PIPELINE_COUNTERS) == set()


def test_a_raised_counter_is_seen():
    assert counted('self.counts["odd"] += 1\nself.desk.counts["even"] += n\nsums["x"] += 1\ncounts["y"] = 1') == [
        "odd",
        "even",
    ]


def test_every_error_is_on_its_page_and_in_the_tree():
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.MarqError)
    }
    rows = rows_of("errors.md")
    assert set(rows) == set(kinds)
    for name, kind in kinds.items():
        (row,) = rows[name]
        assert row.startswith(", ".join(f"`{base.__name__}`" for base in kind.__bases__) + " |"), name
        assert re.search(rf"(?:^|─ ){name}\b", errors.__doc__ or "", re.MULTILINE), name


def test_errors_are_defined_in_one_place():
    elsewhere = [
        f"{module}: {node.name}"
        for module, path in SOURCES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and module != "marq.errors"
    ]
    assert elsewhere == []
