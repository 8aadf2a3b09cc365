"""The API as one page of plain HTML, from its OpenAPI description: no script and nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/app.css">
<body class="docs">
<main>
<h1>{title} <small>{version}</small></h1>
<p>{about} The same as JSON: <a href="/openapi.json">/openapi.json</a>. The page: <a href="/">/</a>.</p>
{body}
</main>
</body>
</html>
"""


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if "enum" in schema:
        return " or ".join(f'"{value}"' for value in schema["enum"])
    bounds = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([str(schema.get("type", "any")), *bounds])


def _fields(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{html.escape(key)}</code></td><td>{html.escape(_kind(value))}</td>"
        f"<td>{'required' if key in required else 'optional'}</td>"
        f"<td>{html.escape(value.get('description', ''))}</td></tr>\n"
        for key, value in schema.get("properties", {}).items()
    )
    name, about = html.escape(name), html.escape(schema.get("description", ""))
    return f'<section id="{name}"><h3>{name}</h3><p>{about}</p><table>\n{rows}</table></section>\n'


def _body(content: Mapping[str, Any]) -> str:
    kinds = [_kind(one["schema"]) for one in content.values() if "$ref" in one.get("schema", {})]
    return ", ".join(f'<a href="#{html.escape(kind)}">{html.escape(kind)}</a>' for kind in kinds)


def docs_page(description: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI description."""
    parts = ["<h2>Routes</h2>\n"]
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            about = html.escape(operation.get("description", "")).replace("\n\n", "</p><p>")
            given = _body(operation.get("requestBody", {}).get("content", {}))
            rows = "".join(
                f"<tr><td><code>{status}</code></td><td>{html.escape(answer.get('description', ''))}</td>"
                f"<td>{_body(answer.get('content', {}))}</td></tr>\n"
                for status, answer in operation["responses"].items()
            )
            parts.append(
                f"<section><h3><code>{method.upper()} {html.escape(path)}</code></h3><p>{about}</p>"
                f"{f'<p>Body: {given}</p>' if given else ''}<table>\n{rows}</table></section>\n"
            )
    parts.append("<h2>Bodies</h2>\n")
    parts += [_fields(name, schema) for name, schema in description["components"]["schemas"].items()]
    info = description["info"]
    return _PAGE.format(
        title=html.escape(info["title"]),
        version=html.escape(info["version"]),
        about=html.escape(info["description"]),
        body="".join(parts),
    )
