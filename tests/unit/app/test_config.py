"""The configuration: defaults, file, environment, and what is refused."""

import json
from pathlib import Path

import pytest

from app.config import NAMED, SECTIONS, load
from app.config_shown import masked
from app.config_values import ApiKey
from app.processes import open_redis
from app.sections import ConfigError, keys_of, parse_size
from rock import settings


def from_file(folder: Path, text: str, **environ: str):
    path = folder / "rock.yml"
    path.write_text(text)
    return load(environ={"ROCK_CONFIG": str(path), **environ})


def test_defaults_need_no_file_and_no_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load(environ={})
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8080)
    assert config.redis.embedded and config.redis.url == "redis://127.0.0.1:6390/0"
    assert config.node.id and config.node.cpus >= 1 and config.node.memory > 2**20
    assert config.auth.keys == ()


def test_the_default_file_of_envhub_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(environ={}).envhub.db_url == str(tmp_path / ".rock" / "rock_envs.db")


def test_the_environment_beats_the_file_and_the_long_name_beats_the_short(tmp_path):
    text = "server: {port: 1000, host: 127.0.0.2}\nnode: {labels: {cluster: zb}}"
    assert from_file(tmp_path, text).server.port == 1000
    assert from_file(tmp_path, text, ROCK_PORT="2000").server.port == 2000
    both = from_file(tmp_path, text, ROCK_PORT="2000", ROCK_SERVER__PORT="3000")
    assert both.server.port == 3000
    assert both.server.host == "127.0.0.2"
    assert both.node.labels == {"cluster": "zb"}


def test_a_redis_of_ones_own_switches_the_embedded_one_off():
    config = load(environ={"ROCK_REDIS_URL": "redis://10.0.0.1:6379/2"})
    assert not config.redis.embedded
    assert config.redis.url == "redis://10.0.0.1:6379/2"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"ROCK_SERVR__PORT": "1"}, ["ROCK_SERVR__PORT", "server"]),
        ({"ROCK_SERVER__PROT": "1"}, ["ROCK_SERVER__PROT", "'port'"]),
        ({"ROCK_PORT": "http"}, ["server.port", "http"]),
        ({"ROCK_PORT": "0"}, ["server.port", "less than 1"]),
        ({"ROCK_NODE__CPUS": "nan"}, ["node.cpus", "finite"]),
        ({"ROCK_RUNTIME": "dokcer"}, ["runtime.type", "'docker'"]),
        ({"ROCK_RUNTIME__MEMORY": "lots"}, ["runtime.memory", "lots"]),
        ({"ROCK_RUNTIME__ENABLE_AUTO_CLEAR": "perhaps"}, ["runtime.enable_auto_clear", "perhaps"]),
        ({"ROCK_REDIS__EMBEDDED": "true"}, ["ROCK_REDIS__EMBEDDED", "unknown key"]),
        ({"ROCK_TIME_ZONE": "Mars/Olympus"}, ["log.time_zone", "Mars/Olympus"]),
        ({"ROCK_TIME_ZONE": "../../etc/passwd"}, ["log.time_zone"]),
        ({"ROCK_API_KEYS": "=alice"}, ["auth.keys", "key=owner"]),
        ({"ROCK_API_KEYS": "k=alice:root"}, ["auth.keys", "admin"]),
        ({"ROCK_CONFIG": "/nowhere/rock.yml"}, ["/nowhere/rock.yml"]),
        ({"ROCK_ADMIN_ENV": "prod"}, ["'prod'", "rock-prod.yml"]),
    ],
)
def test_mistakes_in_the_environment_are_named(environ, words):
    with pytest.raises(ConfigError) as error:
        load(environ=environ)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("servre: {port: 1}", ["unknown section 'servre'", "'server'"]),
        ("server: {prot: 1}", ["unknown key server.prot", "'port'"]),
        ("server: {port: [1]}", ["server.port"]),
        ("server: {port: 80.5}", ["server.port", "whole"]),
        ("server: {port: true}", ["server.port", "not a number"]),
        ("server: 8080", ["section server", "int"]),
        ("- server", ["expected sections", "list"]),
        ("server: {port: ", ["cannot be read"]),
        ("node: {allowed_mounts: 5}", ["node.allowed_mounts", "list of texts"]),
        ("auth: {keys: [{owner: alice}]}", ["auth.keys", "`key`"]),
        ("auth: {keys: [{key: k, onwer: alice}]}", ["onwer", "'owner'"]),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        from_file(tmp_path, text)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_api_keys_from_the_environment():
    keys = load(environ={"ROCK_API_KEYS": "key1=alice, key2=bob:admin,key3"}).auth.keys
    assert keys == (ApiKey("key1", "alice"), ApiKey("key2", "bob", True), ApiKey("key3", "default"))


def test_secrets_are_masked_and_everything_can_be_printed():
    environ = {"ROCK_API_KEYS": "sesame=alice", "ROCK_REDIS_URL": "redis://me:hunter2@10.0.0.1/0"}
    config = load(environ={**environ, "ROCK_METRICS__KEY": "tahini"})
    text = json.dumps(masked(config))
    assert "sesame" not in text and "hunter2" not in text and "tahini" not in text
    assert "alice" in text and "10.0.0.1" in text
    assert "sesame" not in repr(config) and "tahini" not in repr(config)


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 * 2**20), ("8g", 8 * 2**30), ("8Gi", 8 * 2**30), ("64MB", 64 * 2**20), (17, 17)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


def test_every_short_name_is_registered_and_leads_to_a_key():
    for name, target in NAMED.items():
        section, key = target.split(".")
        assert name in settings.SETTINGS
        assert key in keys_of(SECTIONS[section])


def test_the_files_of_the_repository_load():
    for env in ("local", "test"):
        assert load(env, environ={}).source


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("redis://10.0.0.1:6379/0", True),
        ("redis://db.example", True),
        ("redis://:pass@10.0.0.1:6379/0", False),
        ("rediss://me:pass@db.example", False),
        ("redis://127.0.0.1:6379/0", False),
        ("redis://localhost", False),
        ("unix:///run/redis.sock", False),
        ("", False),
    ],
)
def test_X15_a_redis_that_lets_anybody_in_is_told_at_the_start(url, warned):
    told = open_redis(load(environ={"ROCK_REDIS_URL": url}))
    assert bool(told) == warned and "pass@" not in told
