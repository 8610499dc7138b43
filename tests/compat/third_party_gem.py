"""EnvHub and GEM with the third-party client; run by that client's Python, never by ours.

Prints one JSON object: what each step gave. It finds both services by the environment. Argument: a Python that has gem-llm.
"""

import asyncio
import json
import sys

import rock
from rock.sdk.envhub.client import EnvHubClient

SOKOBAN = "game:Sokoban-v0-easy"
UNKNOWN = SOKOBAN + "r"


async def envhub(facts, python):
    """Register, look up, delete."""
    hub = EnvHubClient()
    facts["health"] = await hub.health_check()
    made = await hub.register(SOKOBAN, "any", owner="me", tags=["game"], extra_spec={"python": python})
    facts["registered"] = made.to_dict() == (await hub.get_env(SOKOBAN)).to_dict()
    await hub.register(UNKNOWN, "any", extra_spec={"python": python})
    facts["listed"] = [entry.env_name for entry in await hub.list_envs(owner="me", tags=["game"])]
    facts["everything"] = sorted(entry.env_name for entry in await hub.list_envs())
    await hub.register("gone", "any")
    facts["deleted"] = [await hub.delete_env("gone"), await hub.delete_env("gone")]
    try:
        await hub.get_env("gone")
    except Exception as error:  # noqa: BLE001  (whatever that client makes of it)
        facts["absent"] = str(error)


def play(facts):
    """The beginning of an episode, and a name that nobody knows."""
    environment = rock.make(SOKOBAN)
    observation, info = environment.reset(seed=42)
    facts["reset"] = [type(observation).__name__, "P" in info["suffix"]]
    facts["step"] = environment.step("\\boxed{up}")[:4]
    environment.close()
    environment.close()
    try:
        rock.make(UNKNOWN)
    except Exception as error:  # noqa: BLE001  (that client raises bare Exception)
        facts["unknown"] = str(error)


if __name__ == "__main__":
    seen = {}
    asyncio.run(envhub(seen, sys.argv[1]))
    play(seen)
    sys.stdout.write(json.dumps(seen) + "\n")
