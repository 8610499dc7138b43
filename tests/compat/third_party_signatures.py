"""The public methods and fields of the third-party client, as JSON; run by its Python, never by ours."""

import json
import sys
import warnings

from signatures import methods  # beside this file, which is run as a program

from rock.sdk.sandbox import config as configs
from rock.sdk.sandbox.client import Sandbox, SandboxGroup


def config_fields(cls):
    """Return each field's default."""
    fields = {}
    for name, field in cls.model_fields.items():
        fields[name] = field.default_factory() if field.default_factory else field.default
    return fields


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sandbox = Sandbox(configs.SandboxConfig())
parts = {
    name: methods(type(part))
    for name, part in vars(sandbox).items()
    if not name.startswith("_") and name != "config" and type(part).__module__.startswith("rock.")
}
sys.stdout.write(
    json.dumps(
        {
            "Sandbox": methods(Sandbox),
            "SandboxGroup": methods(SandboxGroup),
            **{f"Sandbox.{name}": found for name, found in parts.items()},
            "SandboxConfig": config_fields(configs.SandboxConfig),
            "SandboxGroupConfig": config_fields(configs.SandboxGroupConfig),
        }
    )
)
