"""WSGI entry point of EnvHub: `gunicorn app.envhub.main:app`. Does something when it is imported, as app.main."""

from app.config import load
from app.envhub import create_envhub
from app.log import set_up

config = load()
set_up(config, "envhub")
app = create_envhub(config)
