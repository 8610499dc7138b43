"""Measures a running service over HTTP: `python -m bench --url http://127.0.0.1:8080`. See docs/benchmarks.md.

It speaks the wire protocol only, so any compatible server can be measured, two of them in one run. Nothing of the
service's code is used: what is slow or wrong there must not hide here.
"""
