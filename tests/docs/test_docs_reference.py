"""The reference pages tell of everything: each field of the wire format, each header, each public name."""

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import marq
import marq.testing
from marq.core import marker_pb2, records

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
CODE = re.compile(r"`([^`]+)`")


def rows_of(page: str) -> dict[str, list[str]]:
    """The rows of all tables of a page whose first cell is code: the other cells by that code."""
    rows: dict[str, list[str]] = {}
    for line in (REFERENCE / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `"):
            rows[cells[0].strip("`")] = cells[1:]
    return rows


def sections_of(page: str) -> dict[str, str]:
    """What stands under each second-level heading."""
    _, *sections = re.split(r"^## ", (REFERENCE / page).read_text("utf-8"), flags=re.MULTILINE)
    return {title: text for title, _, text in (section.partition("\n") for section in sections)}


def call_of(name: str, function: Any) -> str:
    """A function as the page writes it: the names of its parameters, without types and defaults."""
    shown: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.name in {"self", "cls"}:
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name)
    return f"{name}({', '.join(shown)})"


def members_of(kind: type) -> set[str]:
    """What a class offers, as the page writes it: methods with their parameters, all else by name."""
    offered = set(getattr(kind, "__struct_fields__", ()))
    for name, member in vars(kind).items():
        is_method = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        offered.add(call_of(name, getattr(kind, name)) if is_method else name)
    if is_dataclass(kind):
        offered |= {each.name for each in fields(kind)}
    return {name for name in offered if not name.startswith("_")}


# Markers


def test_every_field_of_a_marker_batch_is_told_with_its_number_and_type() -> None:
    rows = rows_of("markers.md")
    for field in marker_pb2.MarkerBatch.DESCRIPTOR.fields:
        number, kind, *_ = rows[field.name]
        assert number == str(field.number), field.name
        assert kind.startswith("repeated") == field.is_repeated, field.name
    proto = Path(records.__file__).with_name("marker.proto").read_text("utf-8")
    for name, number in re.findall(r"^  repeated s?u?int\d+ (\w+) = (\d+);.*differences", proto, re.MULTILINE):
        assert "delta-coded" in " ".join(rows[name]), (name, number)


def test_the_page_tells_of_no_field_that_does_not_exist() -> None:
    known = {field.name for field in marker_pb2.MarkerBatch.DESCRIPTOR.fields} | set(marker_pb2.Kind.keys())
    assert set(rows_of("markers.md")) == known


def test_the_types_of_the_fields_are_told() -> None:
    rows = rows_of("markers.md")
    proto = Path(records.__file__).with_name("marker.proto").read_text("utf-8")
    body = proto[proto.index("message MarkerBatch") :]
    told = dict(re.findall(r"^  ((?:repeated )?\w+) (\w+) = \d+;", body, re.MULTILINE))
    for kind, name in told.items():
        assert rows[name][1].startswith(kind), name


def test_every_kind_is_told_with_its_number() -> None:
    rows = rows_of("markers.md")
    for name, number in marker_pb2.Kind.items():
        assert rows[name][0] == str(number), name


def test_the_parts_of_headers_are_told() -> None:
    text = (REFERENCE / "markers.md").read_text("utf-8")
    for message in (marker_pb2.Header, marker_pb2.Headers):
        assert f"`{message.DESCRIPTOR.name}` has " in text
        for field in message.DESCRIPTOR.fields:
            assert re.search(rf"`{field.name}` \({field.number}, ", text), field.name


# Headers


def test_every_header_is_told() -> None:
    names = {
        value
        for name, value in vars(records).items()
        if name.isupper() and isinstance(value, str) and value.startswith(records.HEADER_PREFIX)
    } - {records.HEADER_PREFIX}
    assert len(names) > 5
    assert set(rows_of("headers.md")) == names


# The API


@pytest.mark.parametrize("name", marq.__all__)
def test_every_public_name_is_told_with_all_that_it_offers(name: str) -> None:
    section = sections_of("api.md")[name]
    assert members_of(getattr(marq, name)) - set(CODE.findall(section)) == signature_fields(name, section)


def signature_fields(name: str, section: str) -> set[str]:
    """Fields of a settings class, which stand in its signature instead of in rows."""
    kind = getattr(marq, name)
    signature = next((code for code in CODE.findall(section) if code.startswith(f"{name}(")), "")
    if not is_dataclass(kind):
        return set()
    assert signature == call_of(name, kind)
    return {each.name for each in fields(kind)} - set(CODE.findall(section))


@pytest.mark.parametrize("name", marq.__all__)
def test_the_page_tells_of_nothing_that_a_class_does_not_offer(name: str) -> None:
    told = set(re.findall(r"^\| `([^`]+)`", sections_of("api.md")[name], re.MULTILINE))
    assert told - members_of(getattr(marq, name)) == set()


def test_the_signature_of_the_app_is_told() -> None:
    assert f"`{call_of('App', marq.App)}`" in sections_of("api.md")["App"]


def test_everything_for_tests_is_told() -> None:
    section = sections_of("api.md")["marq.testing"]
    for name in marq.testing.__all__:
        assert f"`{name}" in section, name


def test_what_a_class_offers_is_seen() -> None:
    class Kind:
        size = 1

        def go(self, first: int, *, second: int = 2, **rest: int) -> None: ...
        def _hidden(self) -> None: ...
        @classmethod
        def made(cls, of: str) -> None: ...
        @property
        def name(self) -> str: ...

    assert members_of(Kind) == {"size", "go(first, *, second, **rest)", "made(of)", "name"}
