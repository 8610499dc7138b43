"""`rock image rm`: what it prints and how it exits, by what the service answers."""

import pytest
from click.testing import CliRunner

from rock.cli.image import image
from rock.errors import success


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ({"removed": ["n1"]}, 0, "n1\tremoved\n"),
        ({}, 0, ""),
        ({"removed": ["n1"], "failed": [{"node": "n2", "error": "in use"}]}, 1, "n1\tremoved\nn2\tin use\n"),
        ({"lost": ["n2"]}, 1, "n2\tdoes not answer\n"),
        ({"removed": ["n1"], "lost": ["n2"]}, 1, "n1\tremoved\nn2\tdoes not answer\n"),
    ],
)
def test_it_fails_when_the_image_may_still_be_there(service, answer, code, said):
    service.on("/remove_image", success(answer))
    result = CliRunner().invoke(image, ["rm", "i:1"], env={"ROCK_BASE_URL": service.url})
    assert (result.exit_code, result.output) == (code, said)
