"""What `Sandbox.fs` is asked about owners and modes. They stay in the client, which turns them into commands."""

from __future__ import annotations

from dataclasses import dataclass

from rock.actions.fields import Flag, Text, Texts, label, wire


@dataclass(kw_only=True)
class ChownRequest:
    """Give paths to a user of the sandbox, and to the group of that name."""

    remote_user: str = wire(label())
    paths: list[str] = wire(Texts(most=10_000), factory=list)
    recursive: bool = wire(Flag(), False)


@dataclass(kw_only=True)
class ChmodRequest:
    """Set the mode of paths, as the `chmod` command takes it."""

    paths: list[str] = wire(Texts(most=10_000), factory=list)
    mode: str = wire(Text(longest=256), "755")
    recursive: bool = wire(Flag(), False)
