"""The public methods and fields of the third-party client, as JSON; run by its Python, never by ours."""

import inspect
import json
import sys
import warnings

from rock.sdk.sandbox import config as configs
from rock.sdk.sandbox.client import Sandbox, SandboxGroup


def methods(cls):
    """Return each public method's parameters: name and default (None for none or None), and properties as such."""
    found = {}
    for name, member in inspect.getmembers(cls):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found[name] = "property"
        elif inspect.isfunction(member):
            listed = list(inspect.signature(member).parameters.values())[1:]
            found[name] = [
                [one.name, None if one.default is one.empty else getattr(one.default, "value", one.default)]
                for one in listed
            ]
    return found


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
