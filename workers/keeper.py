"""What a sandbox's main process is started with, and the script it is then given.

The script travels over stdin instead of argv, so that `ps` inside a sandbox shows one short line and a running keeper can be sent it again
harmlessly (see `KEEPER` in :mod:`workers.protocol`).
"""

from importlib import resources

BOOT = 'while IFS=" " read -r v n _; do [ "$v" = KEEPER ] && IFS= read -r -N "$n" s && eval "$s"; done'
"""Waits for the `KEEPER` frame and becomes what it carries."""

BOOT_ARGV = ["bash", "--noprofile", "--norc", "-p", "-c", BOOT, "rock-keeper"]
"""Main process of every sandbox; needs bash and nothing else of the image. `-p`: no BASH_ENV, SHELLOPTS or functions of the image's environment."""


def script() -> bytes:
    """Return the text of `keeper.sh` (ASCII), without its comments: fewer bytes for each start."""
    text = resources.files("workers").joinpath("keeper.sh").read_text("ascii")
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("# ")).encode() + b"\n"
