"""The registry of environment names."""

import os

import pytest

from rock import settings


def test_the_names_of_the_contract_are_registered():
    contract = {
        "ROCK_BASE_URL", "ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS", "ROCK_DEFAULT_AUTO_CLEAR_TIME_MINUTES",
        "ROCK_ENVHUB_BASE_URL", "ROCK_ENVHUB_DB_URL", "ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE", "ROCK_MONITOR_ENABLE",
        "ROCK_LOGGING_PATH", "ROCK_LOGGING_LEVEL", "ROCK_CONFIG", "ROCK_ADMIN_ENV", "ROCK_TIME_ZONE",
        "DOCKER_IMAGE_CACHE_DIR", "ROCK_REDIS_URL", "ROCK_NODE_ID", "ROCK_RUNTIME", "ROCK_API_KEYS", "ROCK_PORT",
    }  # fmt: skip
    assert contract <= set(settings.SETTINGS)


def test_a_value_is_read_when_asked_for(monkeypatch):
    monkeypatch.delenv("ROCK_PORT", raising=False)
    assert settings.read("ROCK_PORT") == 8080
    assert not settings.is_set("ROCK_PORT")
    monkeypatch.setenv("ROCK_PORT", "9000")
    assert settings.read("ROCK_PORT") == 9000
    assert settings.is_set("ROCK_PORT")
    monkeypatch.setenv("ROCK_PORT", " ")
    assert settings.read("ROCK_PORT") == 8080


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ROCK_MONITOR_ENABLE", "Yes", True),
        ("ROCK_MONITOR_ENABLE", "0", False),
        ("ROCK_DEFAULT_AUTO_CLEAR_TIME_MINUTES", "0.5", 0.5),
        ("ROCK_DATA_DIR", "~/x", os.path.expanduser("~/x")),
        ("ROCK_ENVHUB_DB_URL", "sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_types(monkeypatch, name, text, value):
    monkeypatch.setenv(name, text)
    assert settings.read(name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ROCK_PORT", "eighty"),
        ("ROCK_PORT", "0"),
        ("ROCK_MONITOR_ENABLE", "maybe"),
        ("ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS", "nan"),
        ("ROCK_SANDBOX_STARTUP_TIMEOUT_SECONDS", "inf"),
    ],
)
def test_a_bad_value_is_named(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(settings.SettingError, match=name):
        settings.read(name)


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("ROCK_API_KEYS", "k1=alice")
    assert settings.effective()["ROCK_API_KEYS"] == "***"


def test_raw_views(monkeypatch):
    monkeypatch.setenv("ROCK_NODE__ID", "n1")
    assert settings.with_prefix("ROCK_NODE__") == {"ROCK_NODE__ID": "n1"}
    assert settings.inherited(["ROCK_NODE__ID", "NO_SUCH_NAME"]) == {"ROCK_NODE__ID": "n1"}
