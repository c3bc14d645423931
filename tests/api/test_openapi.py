"""The OpenAPI document: current, complete enough to generate a client, and drawn as a page."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.bulk_requests import BATCH_PARTS, SCHEDULE_PARTS
from api.errors import PROBLEMS
from api.openapi import write_document
from policy.request import RenderRequest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(write_document())


def operations(document: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_file_in_the_repository_is_current() -> None:
    kept = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert kept == write_document(), "run: python -m api.openapi > docs/openapi.json"


def test_the_command_that_writes_the_file_writes_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "api.openapi"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == write_document()


def test_every_reference_leads_to_a_schema(document: Any) -> None:
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert names <= document["components"]["schemas"].keys()
    assert {"RenderRequest", "JobView", "Problem", "FieldProblem", "Readiness"} <= names


def test_the_body_of_an_order_is_described_field_by_field(document: Any) -> None:
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]
    assert body["required"] is True
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/RenderRequest")
    schema = document["components"]["schemas"]["RenderRequest"]
    assert schema["properties"].keys() == RenderRequest.model_fields.keys()
    assert schema["required"] == ["model", "prompt"]
    assert schema["additionalProperties"] is False


def test_every_operation_has_an_id_of_its_own_and_tells_of_its_refusals(document: Any) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    for path, _, operation in operations(document):
        assert operation["summary"], path
        assert "500" in operation["responses"], path
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and path != "/readyz":
                schema = answer["content"]["application/problem+json"]["schema"]
                assert schema["$ref"].endswith("/Problem"), (path, status)


def test_a_batch_is_described_as_an_object_and_as_a_form(document: Any) -> None:
    content = document["paths"]["/v1/batches"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"]["$ref"].endswith("/BatchOrder")
    form = content["multipart/form-data"]["schema"]
    assert form["required"] == ["file"]
    assert form["properties"].keys() == {"file", *BATCH_PARTS}
    schemas = document["components"]["schemas"]
    assert schemas["BatchOrder"]["properties"].keys() == {"rows", *BATCH_PARTS}
    assert schemas["ScheduleOrder"]["properties"].keys() == {"rows", *SCHEDULE_PARTS}
    assert schemas["ScheduleOrder"]["required"] == ["name"]
    assert "required" not in schemas["ScheduleChange"]


def test_path_and_query_parameters_are_described(document: Any) -> None:
    names = {item["name"] for item in document["paths"]["/v1/jobs"]["get"]["parameters"]}
    assert names == {"status", "model", "batch", "parked", "requeued", "limit", "after"}
    for path, _, operation in operations(document):
        described = {item["name"] for item in operation.get("parameters", []) if item["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path))
    headers = {item["name"] for item in document["paths"]["/v1/jobs"]["post"]["parameters"]}
    assert headers == {"Idempotency-Key", "Prefer"}


def test_an_answer_has_the_fields_that_the_document_names(document: Any, client: TestClient) -> None:
    properties = document["components"]["schemas"]["JobView"]["properties"].keys()
    job = client.post("/v1/jobs", json={"model": "tiny", "prompt": "a house"}).json()
    assert job.keys() == properties


def test_the_served_document_is_the_one_in_the_repository(document: Any, shared_client: TestClient) -> None:
    assert shared_client.get("/openapi.json").json() == document


def test_the_front_door_says_what_this_is_and_where_to_go(shared_client: TestClient) -> None:
    home = shared_client.get("/").json()
    assert home["name"] == "renderq"
    for address in (home["docs"], home["openapi"], *home["links"].values()):
        assert shared_client.get(address).status_code in {200, 503}, address


def test_the_page_shows_every_call_field_and_code_and_loads_nothing(
    document: Any, shared_client: TestClient
) -> None:
    answer = shared_client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path, method, _ in operations(document):
        assert f"{method.upper()} <code>{path}</code>" in answer.text
    for word in (*PROBLEMS, *RenderRequest.model_fields):
        assert f"<td>{word}</td>" in answer.text
    assert "<script" not in answer.text
    assert "http://" not in answer.text
    assert "https://" not in answer.text
