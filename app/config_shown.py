"""The configuration as people may see it."""

import dataclasses
from typing import Any
from urllib.parse import urlsplit

from app.config import Config


def masked(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values, with every secret as `***`."""
    shown = dataclasses.asdict(config)
    for entry in shown["auth"]["keys"]:
        entry["key"] = "***"
    if config.metrics.key:
        shown["metrics"]["key"] = "***"
    parts = urlsplit(config.redis.url)
    if parts.password:
        shown["redis"]["url"] = config.redis.url.replace(f":{parts.password}@", ":***@", 1)
    return shown
