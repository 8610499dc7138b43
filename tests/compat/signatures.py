"""What is public of a class; read by our Python and by the third-party client's, so without any package of either."""

import inspect


def methods(cls, internal=()):
    """Return each public method's parameters, as name and default (None for none or None), and properties as such; not those in `internal`."""
    found = {}
    for name, member in inspect.getmembers(cls):
        if name.startswith("_") or name in internal:
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
