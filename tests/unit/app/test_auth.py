"""Who is calling."""

import pytest

from app.auth import Identity, Keyring
from app.config_values import ApiKey
from rock.errors import Unauthorized

RING = Keyring([ApiKey("alpha-key", "alice"), ApiKey("root-key", "ops", True)])


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": "alpha-key"},
        {"X-Key": " alpha-key "},
        {"Authorization": "Bearer alpha-key"},
        {"Authorization": "bearer  alpha-key"},
    ],
)
def test_each_header(headers):
    assert RING.identify(headers) == Identity("alice")


def test_admin():
    assert RING.identify({"X-API-Key": "root-key"}) == Identity("ops", True)


@pytest.mark.parametrize(
    "headers", [{}, {"X-API-Key": ""}, {"X-API-Key": "alpha-kex"}, {"Authorization": "Basic alpha-key"}, {"X-Key": "ä"}]
)
def test_refused(headers):
    with pytest.raises(Unauthorized):
        RING.identify(headers)


def test_without_keys_everyone_is_one_owner():
    assert Keyring([]).identify({"X-API-Key": "whatever"}) == Identity("")
