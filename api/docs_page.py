"""Draws the OpenAPI document as one HTML page, without a script or anything from elsewhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from api.errors import PROBLEMS

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code{background:#f2f2f2;padding:0 .2em}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #ddd;text-align:left;vertical-align:top;padding:.2rem .5rem}"
)
Json = Mapping[str, Any]


def draw_docs(document: Json) -> str:
    """Return the page for ``document``."""
    schemas: Json = document["components"]["schemas"]
    parts = [
        f"<h1>{escape(document['info']['title'])} {escape(document['info']['version'])}</h1>",
        f"<p>{escape(document['info']['description'])} <a href='openapi.json'>OpenAPI document</a></p>",
        "<h2>Calls</h2>",
        *(_operation(path, method, operation) for path, method, operation in _operations(document)),
        "<h2>Bodies</h2>",
        *(_schema(name, schema) for name, schema in schemas.items()),
        "<h2>Problem codes</h2>",
        _table(("code", "status", "meaning"), ((code, *PROBLEMS[code]) for code in PROBLEMS)),
    ]
    head = f"<meta charset='utf-8'><title>renderq API</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>"


def _operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _operation(path: str, method: str, operation: Json) -> str:
    parameters = (
        (item["name"], item["in"], _type(item["schema"]), item.get("description", ""))
        for item in operation.get("parameters", ())
    )
    answers = ((status, answer["description"]) for status, answer in operation["responses"].items())
    body = _body(operation["requestBody"]) if "requestBody" in operation else ""
    return (
        f"<h3>{method} <code>{escape(path)}</code></h3>"
        f"<p>{escape(operation.get('description', ''))}</p>{body}"
        + _table(("parameter", "in", "type", "meaning"), parameters)
        + _table(("status", "answer"), answers)
    )


def _body(described: Json) -> str:
    """Name the object of a JSON body, and the parts of a form."""
    content: Json = described["content"]
    if "application/json" not in content:
        return f"<p>Body: a form:</p>{_parts(content)}"
    name = escape(_type(content["application/json"]["schema"]))
    told = f"<p>Body: <a href='#{name}'>{name}</a></p>"
    return f"{told}<p>or a form:</p>{_parts(content)}" if "multipart/form-data" in content else told


def _parts(content: Json) -> str:
    parts = content["multipart/form-data"]["schema"]["properties"]
    rows = (
        (part, "file" if "format" in facts else "text", facts["description"]) for part, facts in parts.items()
    )
    return _table(("part", "type", "meaning"), rows)


def _schema(name: str, schema: Json) -> str:
    rows = (
        (field, _type(facts), facts.get("description", ""))
        for field, facts in schema.get("properties", {}).items()
    )
    title = f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(schema.get('description', ''))}</p>"
    return title + _table(("field", "type", "meaning"), rows)


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))


def _table(head: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    drawn = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<table><tr>{titles}</tr>{drawn}</table>" if drawn else ""
