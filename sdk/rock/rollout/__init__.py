"""What a rollout needs of ROCK, and nothing else of the SDK: a thin client on aiohttp, and the lane for SWE tasks."""

from rock.rollout.sandbox import ExecuteResult, RockSandbox, SessionResult
from rock.rollout.swe import SWE_TOOL_CONFIGS, get_swe_bench_image
from rock.rollout.swe_environment import SweEnvironment
from rock.rollout.swe_task import SweTask

__all__ = [
    "SWE_TOOL_CONFIGS",
    "ExecuteResult",
    "RockSandbox",
    "SessionResult",
    "SweEnvironment",
    "SweTask",
    "get_swe_bench_image",
]
