"""Celery entry point of beat: the schedule alone, without what a node or the API loads."""

from app.broker import make_celery
from app.config import load

celery = make_celery(load())
