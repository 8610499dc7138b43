"""Stands in for gem-llm where what surrounds it is tested: environments that misbehave in every way."""

import reasoning_gym

from gem.envs.registration import ENV_REGISTRY, make

ENV_REGISTRY.update({f"rg:{name}": "Odd" for name in reasoning_gym.factory.DATASETS})

__all__ = ["make"]
