"""The pages do what they say: their Python blocks run, what they print is true, and their links lead somewhere."""

import io
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marq import App
from marq.testing import MemoryTransport

ROOT = Path(__file__).parents[2]
LEFT_OUT = {".git", ".venv", ".hypothesis", "node_modules", "build", "dist", "site"}
# What readers copy. Other Markdown files have links, but no programs.
TAUGHT = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

KAFKA = re.compile(r"kafka://(?:localhost|127\.0\.0\.1):9092")
FENCE = re.compile(r"^(?P<mark>```+)(?P<language>[\w-]*)\s*$")
COMMENT = re.compile(r"^<!-- (?P<text>.*) -->$")
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^()\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.*)$", re.MULTILINE)
NOT_RUN = "not run: "
PRINTS = "prints"
QUICKSTART_LINES_MAX = 12


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # of its first line of text, from 1
    note: str  # the HTML comment right above it, if there is one


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    note, mark, language, start = "", "", "", 0
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if mark:
            if line.rstrip() == mark:
                yield Block(language, "\n".join(inside), start, note)
                mark, note = "", ""
            else:
                inside.append(line)
        elif fence:
            mark, language, start, inside = fence["mark"], fence["language"], number + 1, []
        elif line.strip():
            comment = COMMENT.match(line.strip())
            note = comment["text"] if comment else ""
    if mark:
        raise ValueError(f"the block in line {start} has no end")


def prose(text: str) -> str:
    """A page without its fenced blocks and without code in its lines."""
    kept, mark = [], ""
    for line in text.splitlines():
        fence = FENCE.match(line)
        if mark:
            mark = "" if line.rstrip() == mark else mark
        elif fence:
            mark = fence["mark"]
        else:
            kept.append(re.sub(r"`[^`]*`", "`", line))
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """The names that a page's headings have in links, as GitHub makes them."""
    without_blocks = re.sub(r"^(```+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = [match["title"] for match in HEADING.finditer(without_blocks)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """The relative links of a page that lead nowhere."""
    broken = []
    for match in LINK.finditer(prose(text)):
        path, _, anchor = match["target"].partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        is_known = not anchor or (target.suffix == ".md" and anchor in anchors(target.read_text("utf-8")))
        if not (target.exists() and is_known):
            broken.append(match["target"])
    return broken


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def markdown() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.md") if not LEFT_OUT & set(path.relative_to(ROOT).parts))


class Reader:
    """Somebody who types what a page says, into one interpreter, with memory:// for Kafka."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.broker = f"docs-{uuid.uuid4().hex[:8]}"
        self.names: dict[str, Any] = {"__name__": "__docs__"}
        self.printed = ""

    def type(self, block: Block) -> None:
        source = KAFKA.sub(f"memory://{self.broker}", block.text)
        assert "kafka://" not in source, f"{self.page}:{block.line} names a broker that nobody has"
        code = compile("\n" * (block.line - 1) + source, self.page, "exec")
        with redirect_stdout(io.StringIO()) as output:
            exec(code, self.names)  # noqa: S102 - running it is the point
        self.printed = output.getvalue()

    def leave(self) -> None:
        for value in self.names.values():
            if isinstance(value, App):
                value.close()
        MemoryTransport.forget(self.broker)


@pytest.mark.parametrize("page", TAUGHT, ids=name_of)
def test_what_a_page_says_can_be_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader = Reader(name_of(page))
    monkeypatch.setenv("MARQ_URL", f"memory://{reader.broker}")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n" * 10))  # whoever is asked presses Enter
    monkeypatch.setattr("signal.signal", lambda *_: None)  # a page must not change how the tests end
    monkeypatch.chdir(tmp_path)
    try:
        for block in blocks(page.read_text("utf-8")):
            if block.language == "python" and not block.note.startswith(NOT_RUN):
                reader.type(block)
            elif block.note == PRINTS:
                assert reader.printed.rstrip("\n") == block.text, f"{reader.page}:{block.line}"
    finally:
        reader.leave()


def test_a_block_is_left_out_only_with_a_reason() -> None:
    for page in TAUGHT:
        for block in blocks(page.read_text("utf-8")):
            assert block.language, f"{name_of(page)}:{block.line}: a block has no language"
            if block.note.startswith(NOT_RUN):
                assert block.language == "python"
                assert len(block.note) > len(NOT_RUN) + 10


def test_the_quickstart_is_short() -> None:
    first = next(each for each in blocks((ROOT / "README.md").read_text("utf-8")) if each.language == "python")
    assert len([line for line in first.text.splitlines() if line]) <= QUICKSTART_LINES_MAX


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_ends_by_itself(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(example), "memory://"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_there_are_examples_and_each_takes_the_address() -> None:
    assert len(EXAMPLES) >= 5
    for example in EXAMPLES:
        assert 'sys.argv[1] if len(sys.argv) > 1 else "memory://"' in example.read_text("utf-8"), example.name


@pytest.mark.parametrize("page", markdown(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text("utf-8")) == []


def test_every_page_can_be_reached_from_the_map() -> None:
    start = ROOT / "docs" / "index.md"
    linked = {(start.parent / m["target"].partition("#")[0]).resolve() for m in LINK.finditer(start.read_text("utf-8"))}
    assert [name_of(page) for page in (ROOT / "docs").rglob("*.md") if page not in linked | {start}] == []


# The checks see what they look for


def test_blocks_know_their_line_and_note() -> None:
    text = "a\n\n```python\nx = 1\n```\n\n<!-- prints -->\n```text\n1\n```\n"
    assert list(blocks(text)) == [Block("python", "x = 1", 4, ""), Block("text", "1", 9, "prints")]


def test_a_note_holds_for_the_next_block_alone() -> None:
    text = "<!-- prints -->\n```text\n1\n```\n```text\n2\n```\n<!-- prints -->\nwords\n```text\n3\n```\n"
    assert [block.note for block in blocks(text)] == ["prints", "", ""]


def test_a_block_without_an_end_is_seen() -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(blocks("```python\nx"))


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# One: a `b`\n[a](other.md) [b](page.md#one-a-b) [c](#two) [d](https://x.org) `[e](no.md)`\n"
    page.write_text(text)
    assert broken_links(page, text) == ["other.md", "#two"]


def test_a_false_output_and_a_failing_block_are_seen() -> None:
    reader = Reader("page.md")
    reader.type(Block("python", "print(1)", 1, ""))
    assert reader.printed == "1\n"
    with pytest.raises(ZeroDivisionError):
        reader.type(Block("python", "1 / 0", 1, ""))
    with pytest.raises(AssertionError, match="broker"):
        reader.type(Block("python", "'kafka://example.org:9092'", 1, ""))
