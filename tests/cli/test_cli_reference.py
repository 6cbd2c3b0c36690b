"""docs/reference/cli.md says what the help says: every command, every option, word for word."""

from pathlib import Path

import pytest
from typer.main import get_command

from marq.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands(name="marq", command=None):
    command = command or get_command(app)
    yield name, command
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {part}", inner)


def sections():
    """The page, by its second-level headings."""
    _, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    return {part.splitlines()[0].strip("`"): part for part in parts}


def row_of(parameter):
    """An option or an argument as the page has it."""
    if parameter.param_type_name == "argument":
        names = f"{parameter.name.upper()}"
    else:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
        if parameter.metavar:
            names += f" {parameter.metavar}"
    shown = (
        "required" if parameter.required else "" if parameter.default in (None, False, ()) else str(parameter.default)
    )
    return f"| `{names}` | {shown} | {parameter.help} |"


def test_the_page_has_exactly_the_commands():
    assert set(sections()) == {name for name, command in commands() if not hasattr(command, "commands")} | {"marq"}


@pytest.mark.parametrize(("name", "command"), [each for each in commands() if each[0] != "marq bench"])
def test_a_command_is_told_as_its_help_tells_it(name, command):
    section = sections()[name]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row_of(parameter) for parameter in command.params if parameter.name != "help"]
    paragraphs = [" ".join(paragraph.split()) for paragraph in command.help.split("\n\n")]
    told = " ".join(section.split())
    for paragraph in paragraphs:
        assert paragraph in told
    assert command.epilog.removeprefix("Example: ") in section


def test_every_exit_code_is_told():
    top = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    assert [line.split("|")[1].strip() for line in top.splitlines() if line.startswith("| `")] == [
        "`0`",
        "`1`",
        "`2`",
        "`130`",
    ]
