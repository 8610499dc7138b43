"""ROCK's Python client: sandboxes for agents, over HTTP.

Importing this package loads nothing but this file; `rock.make` and the modules below it load when they are used.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "make"]


def make(env_id: str, **options: Any) -> Any:
    """Open a GEM environment that runs inside a sandbox of its own.

    Params:
        env_id: the environment's registered name, for example `game:Sokoban-v0-easy`.
        options: passed on to `rock.sdk.gem.make` (base_url, api_key, extra_headers, patience).
    Returns:
        An environment with `reset`, `step` and `close`.
    Raises:
        RockError: the environment is unknown, or no sandbox could be started for it.
    """
    from rock.sdk.gem import make as make_environment

    return make_environment(env_id, **options)
