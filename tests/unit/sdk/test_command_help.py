"""`rock` explains itself: each command and option, and what it prints can be had as JSON."""

from collections.abc import Iterator

import click
import pytest

from rock.cli.main import cli

# They become another program, or print one thing that is no data.
NO_JSON = {"proc", "worker start", "envhub start", "sandbox shell", "completion"}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*words, name))
        else:
            yield " ".join((*words, name)), found


ALL = dict(commands(cli))


@pytest.mark.parametrize("name", ALL)
def test_a_command_and_its_options_are_explained(name):
    assert ALL[name].help
    options = [one for one in ALL[name].params if isinstance(one, click.Option)]
    assert [one.opts for one in options if not one.help] == []


@pytest.mark.parametrize("name", sorted(set(ALL) - NO_JSON))
def test_what_a_command_prints_can_be_had_as_json(name):
    assert "--json" in [word for one in ALL[name].params for word in one.opts]
