"""EnvHub's client: which image an environment runs in, and who registered it.

hub = EnvHubClient()
await hub.register("game:Sokoban-v0-easy", "registry.local/gem:1")
entry = await hub.get_env("game:Sokoban-v0-easy")
"""

from rock.sdk.envhub.client import EnvHubClient, EnvHubClientConfig, RockEnvInfo

__all__ = ["EnvHubClient", "EnvHubClientConfig", "RockEnvInfo"]
