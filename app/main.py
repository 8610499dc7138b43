"""WSGI entry point: `gunicorn app.main:app`. The one module of the API that does something when it is imported."""

from app import create_app
from app.config import load
from app.log import set_up

config = load()
set_up(config, "api")
app = create_app(config)
