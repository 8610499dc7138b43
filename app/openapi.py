"""The OpenAPI description of the routes, made from their marshmallow schemas, and a page that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from rock import __version__
from rock.actions import schema_of

if TYPE_CHECKING:
    from app.api.endpoint import Endpoint

_ENVELOPE = {
    "type": "object",
    "required": ["status", "message", "error", "result"],
    "properties": {
        "status": {"type": "string", "enum": ["Success", "Failed"]},
        "message": {"type": "string", "nullable": True},
        "error": {"type": "string", "nullable": True, "description": "what happened, when Failed"},
        "result": {
            "description": "the route's own answer, or of Failed: code, kind, retryable, exit_code, failure_reason"
        },
    },
}


def describe(endpoints: Iterable[Endpoint]) -> str:
    """Return the OpenAPI 3 description of the routes as JSON text."""
    spec = APISpec(
        title="ROCK on Celery",
        version=__version__,
        openapi_version="3.0.3",
        plugins=[MarshmallowPlugin()],
        info={"description": "Sandboxes for agents. Answers are envelopes, HTTP 200 even for failures; see `kind`."},
    )
    spec.components.schema("Envelope", _ENVELOPE)
    spec.components.security_scheme("key", {"type": "apiKey", "in": "header", "name": "X-API-Key"})
    known: set[type] = set()
    for endpoint in endpoints:
        for cls in (endpoint.request, endpoint.response):
            if cls is not None and cls not in known:
                known.add(cls)
                if cls.__name__ in spec.components.schemas:
                    continue  # came along with one that holds it
                spec.components.schema(cls.__name__, schema=schema_of(cls))
        path = re.sub(r"<(\w+)>", r"{\1}", endpoint.prefix + endpoint.path)
        spec.path(path=path, operations={endpoint.method.lower(): _operation(endpoint)})
    return json.dumps(spec.to_dict(), default=str)


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    """Return the description of one route."""
    names = [(name, "path", True) for name in re.findall(r"<(\w+)>", endpoint.path)]
    names += [(name, "query", name == "sandbox_id") for name in endpoint.query]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": [
            {"name": name, "in": where, "required": needed, "schema": {"type": "string"}}
            for name, where, needed in names
        ],
        "responses": {
            "200": {"description": "envelope", "content": {"application/json": {"schema": _answer(endpoint)}}}
        },
    }
    if not endpoint.open:
        operation["security"] = [{"key": []}]
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint)}
    return operation


def _content(endpoint: Endpoint) -> dict[str, Any]:
    """Return the body that a route takes."""
    reference = {"$ref": f"#/components/schemas/{endpoint.request.__name__ if endpoint.request else ''}"}
    if not endpoint.multipart:
        return {"application/json": {"schema": reference}}
    file = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string", "format": "binary"}}}
    return {"multipart/form-data": {"schema": {"allOf": [reference, file]}}}


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    """Return the schema of a route's answer."""
    if endpoint.open:
        return {"type": "object"}
    if endpoint.plain and endpoint.response is not None:
        return {"$ref": f"#/components/schemas/{endpoint.response.__name__}"}
    envelope: dict[str, Any] = {"$ref": "#/components/schemas/Envelope"}
    if endpoint.response is None:
        return envelope
    result = {"$ref": f"#/components/schemas/{endpoint.response.__name__}"}
    return {"allOf": [envelope, {"type": "object", "properties": {"result": result}}]}


# Reads /openapi.json and lists it. Text goes into the page as text nodes only, never as markup.
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ROCK on Celery: API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
 summary { cursor: pointer; padding: .3rem 0 } code, pre { font-family: ui-monospace, monospace }
 .method { display: inline-block; width: 3.5rem; font-weight: bold; color: #06c }
 table { border-collapse: collapse; margin: .5rem 0 1rem } td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left }
 details { border-bottom: 1px solid #ddd }
</style></head><body>
<h1>API</h1><p id="about"></p><p>Machine-readable: <a href="openapi.json">openapi.json</a></p><div id="routes"></div>
<script>
const el = (tag, text, parent) => { const e = document.createElement(tag); if (text) e.textContent = text; parent?.append(e); return e }
const type = s => s.$ref ? s.$ref.split("/").pop() : s.enum ? s.enum.join(" | ") : s.type === "array" ? type(s.items || {}) + "[]" : s.type || "any"
function table(spec, reference, title, parent) {
  const schema = spec.components.schemas[(reference.$ref || "").split("/").pop()]
  if (!schema) return
  el("strong", title, parent)
  const rows = el("table", "", parent), head = el("tr", "", rows)
  for (const name of ["field", "type", "default"]) el("th", name, head)
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = el("tr", "", rows), needed = (schema.required || []).includes(name)
    el("td", name + (needed ? " *" : ""), row); el("td", type(field), row)
    el("td", field.default === undefined ? "" : JSON.stringify(field.default), row)
  }
}
fetch("openapi.json").then(answer => answer.json()).then(spec => {
  document.getElementById("about").textContent = spec.info.description
  for (const [path, methods] of Object.entries(spec.paths)) for (const [method, route] of Object.entries(methods)) {
    const box = el("details", "", document.getElementById("routes")), head = el("summary", "", box)
    const word = el("span", method.toUpperCase(), head); word.className = "method"
    el("code", path, head); el("span", "  " + route.summary, head)
    if (route.parameters.length) el("p", "Parameters: " + route.parameters.map(p => p.name + (p.required ? " *" : "")).join(", "), box)
    for (const body of Object.values(route.requestBody?.content || {})) table(spec, body.schema.allOf?.[0] || body.schema, "Request", box)
    const answer = route.responses["200"].content["application/json"].schema
    table(spec, answer.allOf?.[1]?.properties?.result || answer, "Result", box)
  }
})
</script></body></html>
"""
