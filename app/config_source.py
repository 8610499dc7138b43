"""Where configuration values come from: a YAML file and the environment, as plain mappings by section.

Knows no section of its own: `app.config` hands in the table of sections and the short environment names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from app.sections import ConfigError, keys_of, nearest
from rock import settings

# Without a checkout (an installed wheel) there is no conf folder, and the defaults are the configuration.
_FOLDERS = (Path("conf"), Path(__file__).resolve().parent.parent / "conf")


def environment() -> dict[str, str]:
    """Return the variables of this process that can configure the service."""
    return {
        **settings.with_prefix("ROCK_"),
        **settings.inherited(("DOCKER_HOST", "DOCKER_CERT_PATH", "DOCKER_IMAGE_CACHE_DIR")),
    }


def find_file(env: str, explicit: str) -> Path | None:
    """Return the file for `env`, `explicit` if it is named, or None when the defaults are to be used.

    Raises:
        ConfigError: a file or an environment that was asked for by name is not there.
    """
    if explicit:
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise ConfigError(f"ROCK_CONFIG={explicit}: there is no such file")
        return path
    candidates = [folder / f"rock-{env}.yml" for folder in _FOLDERS]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None and env != "local":
        raise ConfigError(f"no configuration for environment {env!r}: {' and '.join(map(str, candidates))} are missing")
    return found


def read_file(path: Path, sections: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """Return the sections of a YAML file as plain dicts.

    Raises:
        ConfigError: not readable, not YAML, or a section that does not exist.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected sections at the top, found {type(content).__name__}")
    for name, values in content.items():
        if name not in sections:
            raise ConfigError(f"{path}: unknown section {name!r}{nearest(str(name), sections)}")
        if values is not None and not isinstance(values, dict):
            raise ConfigError(f"{path}: section {name} holds {type(values).__name__}, not keys")
    return {name: dict(values or {}) for name, values in content.items()}


def overrides(
    variables: Mapping[str, str], sections: Mapping[str, type], named: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    """Return `(section, key) -> text` from the environment; `ROCK_<SECTION>__<KEY>` wins over a short name.

    Raises:
        ConfigError: a variable of that form whose section or key does not exist.
    """
    made: dict[tuple[str, str], str] = {}
    for name, target in named.items():
        if variables.get(name, "").strip():
            section, key = target.split(".")
            made[section, key] = variables[name]
    for name, text in variables.items():
        if not name.startswith("ROCK_") or "__" not in name:
            continue
        section, _, key = name.removeprefix("ROCK_").lower().partition("__")
        if section not in sections:
            raise ConfigError(f"{name}: unknown section {section!r}{nearest(section, sections)}")
        if key not in keys_of(sections[section]):
            raise ConfigError(f"{name}: unknown key {section}.{key}{nearest(key, keys_of(sections[section]))}")
        made[section, key] = text
    return made
