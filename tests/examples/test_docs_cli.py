"""docs/cli.md: it has every command and option that there is."""

import re
from pathlib import Path

import pytest

from railbus.subscribers.cli import main

PAGE = (Path(__file__).parent.parent.parent / "docs/cli.md").read_text()


def help_of(capsys, *command):
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


def test_the_page_has_every_command_and_option(capsys):
    commands = re.findall(r"^    (\w+) ", help_of(capsys), re.MULTILINE)

    options = {
        option
        for command in commands
        for option in re.findall(r"^  (--\w+)", help_of(capsys, command), re.MULTILINE)
    }
    assert len(commands) == 7
    assert [one for one in commands if f"$ railbus {one} " not in PAGE] == []
    assert sorted(one for one in options if f"{one}" not in PAGE) == []
