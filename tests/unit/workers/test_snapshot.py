"""What an engine that reads no settings is told of a commit's image."""

from workers.deployments.snapshot import lines


def test_an_image_gets_its_own_settings_back_and_what_its_sandbox_added_is_empty():
    original = {
        "Cmd": ["sh", "-c", 'echo "a"'],
        "Env": ["PATH=/bin", "A=a=b"],
        "Labels": {"theirs": "x"},
        "User": "web",
    }
    container = {
        "Env": ["PATH=/mine", "A=a=b", "TOKEN=secret", "PAGER=cat", "LANG=C.UTF-8", "ODD"],
        "Labels": {"theirs": "x", "rock.node": "n1"},
    }
    assert lines(container, original) == [
        'CMD ["sh", "-c", "echo \\"a\\""]', "ENTRYPOINT []", "USER web", "WORKDIR /",
        "ENV PATH=/bin", "ENV TOKEN=", "LABEL rock.node=",
    ]  # fmt: skip


def test_an_image_without_settings_has_roots():
    assert lines({}, {}) == ["CMD []", "ENTRYPOINT []", "USER 0:0", "WORKDIR /"]
