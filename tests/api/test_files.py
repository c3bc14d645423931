"""Pictures over HTTP: sent, named in jobs, batches and schedules, refused in words, never fetched."""

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from core import store
from core.artifacts import NewArtifact, artifact_key
from core.tables import File, Job, JobInput
from tests.api.parts import ORDER, Worker, assert_problem, png, send

UNKNOWN = "01994d0f-0000-7000-8000-000000000000"
JobMaker = Callable[..., dict[str, Any]]


@pytest.fixture
def file(client: TestClient) -> dict[str, Any]:
    answer = send(client, png())
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def order(client: TestClient, **fields: object) -> Any:
    return client.post("/v1/jobs", json=ORDER | fields)


def field_errors(answer: Any) -> dict[str, str]:
    problem = assert_problem(answer, 422, "invalid_request")
    return {error["field"]: error["message"] for error in problem["errors"]}


# --- send -----------------------------------------------------------------------------------------------


def test_a_picture_is_kept_once_and_described(client: TestClient) -> None:
    data = png(90, 45)
    answer = send(client, data)
    made = answer.json()
    assert answer.headers["location"] == f"http://localhost/v1/files/{made['id']}"
    assert made["sha256"] == hashlib.sha256(data).hexdigest()
    assert (made["width"], made["height"], made["bytes"]) == (90, 45, len(data))
    assert made["kept_until"] > made["created_at"]
    again = send(client, data, "another name.jpg").json()
    assert again["id"] == made["id"]
    assert client.get(f"/v1/files/{made['id']}").json()["sha256"] == made["sha256"]
    services: Any = client.app.state.services  # type: ignore[attr-defined]
    with services.database.reading() as session:
        (row,) = session.scalars(select(File)).all()
    assert services.artifacts.get(row.key) == data


@pytest.mark.parametrize("damage", [b"something else", None])
def test_a_picture_that_was_damaged_or_lost_in_the_store_is_kept_again_when_it_is_sent_again(
    client: TestClient, file: dict[str, Any], damage: bytes | None
) -> None:
    services: Any = client.app.state.services  # type: ignore[attr-defined]
    with services.database.reading() as session:
        (row,) = session.scalars(select(File)).all()
    if damage is None:
        services.artifacts.delete(row.key)
    else:
        services.artifacts.put(row.key, damage)
    assert send(client, png()).json()["id"] == file["id"]
    assert services.artifacts.get(row.key) == png()


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is no PNG"), (b"GIF89a", "is no PNG"), (png()[:-40], "is damaged")],
)
def test_what_is_no_picture_is_refused(client: TestClient, data: bytes, words: str) -> None:
    assert words in assert_problem(send(client, data), 422, "invalid_picture")["detail"]


def test_other_bodies_are_refused(client: TestClient) -> None:
    raw = client.post("/v1/files", content=png(), headers={"Content-Type": "image/png"})
    assert_problem(raw, 415, "unsupported_media_type")
    assert_problem(client.post("/v1/files", files={"other": ("p.png", png())}), 422, "invalid_request")
    twice = client.post("/v1/files", files=[("file", ("a", png())), ("file", ("b", png()))])
    assert "stands twice" in assert_problem(twice, 422, "invalid_request")["detail"]
    assert_problem(client.get(f"/v1/files/{UNKNOWN}"), 404, "not_found")


# --- name in a job --------------------------------------------------------------------------------------


def test_a_job_names_a_file_and_its_plan_says_what_is_used(client: TestClient, file: dict[str, Any]) -> None:
    answer = order(client, image=file["id"])
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert job["request"]["image"] == file["id"]
    assert job["plan"]["image"] == {
        "sha256": file["sha256"],
        "width": 80,
        "height": 60,
        "crop": [10, 0, 70, 60],
    }
    assert (job["plan"]["width"], job["plan"]["height"], job["plan"]["strength"]) == (64, 64, 0.6)


def test_content_a_result_and_the_bytes_themselves_name_a_picture_too(
    client: TestClient, file: dict[str, Any], submit: JobMaker, worker: Worker
) -> None:
    earlier = submit()
    worker.complete(earlier["id"], png(64, 64, "blue"))
    inline = "data:image/png;base64," + base64.b64encode(png(64, 64, "green")).decode()
    for named, data in (
        (f"sha256:{file['sha256']}", png()),
        (f"job:{earlier['id']}/0", png(64, 64, "blue")),
        (f"job:{earlier['id']}", png(64, 64, "blue")),
        (inline, png(64, 64, "green")),
    ):
        job = order(client, image=named, mask=named).json()
        assert job["plan"]["image"]["sha256"] == hashlib.sha256(data).hexdigest()
        assert job["plan"]["mask"] == job["plan"]["image"]


def test_bytes_that_stand_in_a_request_are_not_kept_in_the_database(client: TestClient) -> None:
    inline = "data:image/png;base64," + base64.b64encode(png(64, 64, "green")).decode()
    job = order(client, image=inline).json()
    services: Any = client.app.state.services  # type: ignore[attr-defined]
    with services.database.reading() as session:
        row = session.get(Job, job["id"])
        (link,) = session.scalars(select(JobInput).where(JobInput.job_id == job["id"])).all()
        assert row.request["image"] == link.file_id
        assert "base64" not in f"{row.request}{row.plan}"


def test_an_idempotency_key_covers_the_content_however_it_is_named(
    client: TestClient, file: dict[str, Any]
) -> None:
    inline = "data:image/png;base64," + base64.b64encode(png()).decode()
    other = "data:image/png;base64," + base64.b64encode(png(colour="blue")).decode()
    headers = {"Idempotency-Key": "k"}
    first, *again, changed = (
        client.post("/v1/jobs", json=ORDER | {"image": image}, headers=headers)
        for image in (file["id"], inline, f"sha256:{file['sha256']}", other)
    )
    for answer in again:
        assert answer.json()["id"] == first.json()["id"]
        assert answer.headers["idempotent-replayed"] == "true"
    assert_problem(changed, 422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"image": UNKNOWN}, "image", "names no file of yours that is still kept"),
        ({"image": "sha256:" + "0" * 64}, "image", "names no content of yours"),
        ({"image": f"job:{UNKNOWN}/0"}, "image", "is a result that no completed job of yours has"),
        ({"image": "https://example.com/a.png"}, "image", "no address, since nothing is fetched"),
        ({"image": "file:///etc/passwd"}, "image", "no address, since nothing is fetched"),
        ({"image": "../etc/passwd"}, "image", "must be the id of an uploaded file"),
        ({"image": "data:image/gif;base64,AAAA"}, "image", "must be a data: URL of image/png"),
        ({"image": "data:image/png;base64,%%%%"}, "image", "must be a data: URL such as"),
        ({"image": "data:image/png;base64,AAAA"}, "image", "is no PNG, JPEG or WebP"),
        ({"image": "data:image/png;base64,AAAAA"}, "image", "is not in base64"),
        ({"image": "data:image/png;base64," + "A" * 180_000}, "image", "at most 131072 bytes"),
        ({"mask": "sha256:" + "0" * 64}, "image", "image is missing: mask goes with an image"),
        ({"strength": 0.5}, "image", "image is missing: strength goes with an image"),
        ({"strength": 0}, "strength", "nearest: 0.001"),
        ({"strength": 1.01}, "strength", "nearest: 1"),
        ({"strength": 1e-17}, "strength", "leaves no step of 24 to run; nearest: 0.001"),
        ({"model": "pixart-sigma", "image": UNKNOWN}, "image", "has no effect on pixart-sigma"),
        ({"model": "flux.2-klein-4b", "image": UNKNOWN}, "mask", "only inside a mask"),
        ({"image": 7}, "image", "must be a string"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_kept(
    client: TestClient, count_jobs: Callable[[], int], fields: dict[str, object], field: str, words: str
) -> None:
    assert words in field_errors(order(client, **fields))[field]
    assert count_jobs() == 0


def test_a_mask_must_be_as_large_as_its_image(client: TestClient, file: dict[str, Any]) -> None:
    mask = send(client, png(60, 80)).json()
    errors = field_errors(order(client, image=file["id"], mask=mask["id"]))
    assert errors == {"mask": "mask must be as large as image, 80x60, not 60x80; nearest: 80x60"}


def test_one_side_of_the_result_is_not_enough(client: TestClient, file: dict[str, Any]) -> None:
    assert "height is missing" in field_errors(order(client, image=file["id"], width=64))["height"]


def test_a_preset_counts_the_steps_that_are_run(client: TestClient, file: dict[str, Any]) -> None:
    message = field_errors(order(client, image=file["id"], strength=0.1, cache="fast"))["cache"]
    assert "not 3 of 24" in message


def test_a_result_that_is_a_video_is_no_picture(client: TestClient, submit: JobMaker, worker: Worker) -> None:
    earlier = submit()
    worker.complete(earlier["id"], b"video", media_type="video/mp4")
    assert "is a video" in field_errors(order(client, image=f"job:{earlier['id']}"))["image"]


# --- delete ---------------------------------------------------------------------------------------------


def test_a_file_is_deleted_when_no_job_needs_it(client: TestClient, file: dict[str, Any]) -> None:
    job = order(client, image=file["id"]).json()
    assert_problem(client.delete(f"/v1/files/{file['id']}"), 409, "file_in_use")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/files/{file['id']}").status_code == 204
    assert_problem(client.get(f"/v1/files/{file['id']}"), 404, "not_found")
    assert "still kept" in field_errors(order(client, image=file["id"]))["image"]
    assert send(client, png()).json()["id"] != file["id"]


def test_a_job_whose_picture_is_gone_is_not_requeued(
    client: TestClient, file: dict[str, Any], worker: Worker
) -> None:
    job = order(client, image=file["id"]).json()
    worker.fail(job["id"], "broken", "It broke.")
    again = client.post(f"/v1/jobs/{job['id']}/requeue").json()
    assert again["plan"]["image"] == job["plan"]["image"]
    worker.fail(again["id"], "broken", "It broke.")
    assert client.delete(f"/v1/files/{file['id']}").status_code == 204
    assert_problem(client.post(f"/v1/jobs/{again['id']}/requeue"), 410, "input_gone")


def test_a_call_that_is_repeated_under_its_key_finds_its_job_though_the_pictures_are_gone(
    client: TestClient, file: dict[str, Any]
) -> None:
    inline = "data:image/png;base64," + base64.b64encode(png()).decode()
    headers = {"Idempotency-Key": "k"}
    bodies = [ORDER | {"image": image} for image in (file["id"], inline, f"sha256:{file['sha256']}")]
    made = client.post("/v1/jobs", json=bodies[0], headers=headers).json()
    client.post(f"/v1/jobs/{made['id']}/cancel")
    assert client.delete(f"/v1/files/{file['id']}").status_code == 204
    for body in bodies:
        again = client.post("/v1/jobs", json=body, headers=headers)
        assert (again.json()["id"], again.headers["idempotent-replayed"]) == (made["id"], "true")
    other = client.post("/v1/jobs", json=bodies[0] | {"prompt": "another"}, headers=headers)
    assert "image" in field_errors(other)
    assert "image" in field_errors(order(client, image=file["id"]))


def test_a_batch_that_is_sent_again_under_its_key_is_found_though_its_pictures_are_gone(
    client: TestClient, file: dict[str, Any]
) -> None:
    body = {
        "template": {"model": "tiny", "prompt": "a {colour} boat", "image": file["id"]},
        "rows": [{"colour": "red"}, {"colour": ""}],
    }
    headers = {"Idempotency-Key": "b"}
    made = client.post("/v1/batches", json=body, headers=headers).json()
    client.post(f"/v1/batches/{made['id']}/cancel")
    assert client.delete(f"/v1/files/{file['id']}").status_code == 204
    again = client.post("/v1/batches", json=body, headers=headers)
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (made["id"], "true")
    assert [words for words in again.json()["warnings"] if "empty" in words] == [
        "1 row has an empty {colour} (row 2)"
    ]


# --- many -----------------------------------------------------------------------------------------------


def test_rows_of_a_batch_name_files(client: TestClient, file: dict[str, Any]) -> None:
    other = send(client, png(64, 64)).json()
    body = {
        "template": {"model": "tiny", "prompt": "a boat", "strength": 0.5},
        "rows": [{"image": file["id"]}, {"image": f"sha256:{other['sha256']}"}],
    }
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == 202, answer.text
    jobs = client.get("/v1/jobs", params={"batch": answer.json()["id"]}).json()["data"]
    assert {job["plan"]["image"]["sha256"] for job in jobs} == {file["sha256"], other["sha256"]}
    assert_problem(client.delete(f"/v1/files/{file['id']}"), 409, "file_in_use")


def test_a_row_that_is_ordered_again_draws_from_the_same_file(
    client: TestClient, file: dict[str, Any], worker: Worker
) -> None:
    body = {"template": {"model": "tiny", "prompt": "a boat"}, "rows": [{"image": file["id"]}]}
    batch = client.post("/v1/batches", json=body).json()
    worker.end(batch["id"], fail_row=1)
    assert client.post(f"/v1/batches/{batch['id']}/retry").status_code == 200
    services: Any = client.app.state.services  # type: ignore[attr-defined]
    with services.database.reading() as session:
        links = session.scalars(select(JobInput)).all()
    assert len({link.job_id for link in links}) == 2
    assert {link.file_id for link in links} == {file["id"]}
    assert_problem(client.delete(f"/v1/files/{file['id']}"), 409, "file_in_use")


def test_a_table_has_a_column_of_files(client: TestClient, file: dict[str, Any]) -> None:
    table = f"prompt,image,strength\na boat,{file['id']},0.5\na house, {file['id']} ,\na tree,,\n"
    answer = client.post(
        "/v1/batches", files={"file": ("t.csv", table.encode())}, data={"template": '{"model": "tiny"}'}
    )
    assert answer.status_code == 202, answer.text
    jobs = client.get("/v1/jobs", params={"batch": answer.json()["id"]}).json()["data"]
    plans = {job["batch_row"]: job["plan"] for job in jobs}
    assert [plans[row]["strength"] for row in (1, 2, 3)] == [0.5, 0.6, None]
    assert plans[1]["image"] == plans[2]["image"]
    assert plans[3]["image"] is None


def test_rows_that_name_no_file_are_told_by_their_number(client: TestClient, file: dict[str, Any]) -> None:
    inline = "data:image/png;base64," + base64.b64encode(png()).decode()
    rows = [{"image": UNKNOWN}, {"image": file["id"]}, {"image": inline}]
    body = {"template": {"model": "tiny", "prompt": "a boat"}, "rows": rows}
    problem = assert_problem(client.post("/v1/batches", json=body), 422, "invalid_request")
    told = {error["row"]: error["message"] for error in problem["errors"]}
    assert set(told) == {1, 3}
    assert "still kept" in told[1]
    assert "use POST /v1/files" in told[3]


def test_a_schedule_keeps_its_files_and_its_firings_draw_from_them(
    client: TestClient, file: dict[str, Any]
) -> None:
    body = {
        "name": "n",
        "every_s": 3600,
        "template": {"model": "tiny", "prompt": "a boat"},
        "rows": [{"image": file["id"]}],
    }
    made = client.post("/v1/schedules", json=body)
    assert made.status_code == 201, made.text
    url = f"/v1/schedules/{made.json()['id']}"
    assert_problem(client.delete(f"/v1/files/{file['id']}"), 409, "file_in_use")
    fired = client.post(f"{url}/fire").json()
    (job,) = client.get("/v1/jobs", params={"batch": fired["batch_id"]}).json()["data"]
    assert job["plan"]["image"]["sha256"] == file["sha256"]
    client.post(f"/v1/jobs/{job['id']}/cancel")
    other = send(client, png(64, 64)).json()
    changed = client.patch(url, json={"rows": [{"image": other["id"]}]})
    assert changed.status_code == 200, changed.text
    assert client.delete(f"/v1/files/{file['id']}").status_code == 204


# --- thumbnails -----------------------------------------------------------------------------------------


def test_a_video_has_a_thumbnail(client: TestClient, submit: JobMaker, worker: Worker) -> None:
    job, services = submit(), client.app.state.services  # type: ignore[attr-defined]
    attempt, small = worker.claim(job["id"]), b"small picture"
    key = artifact_key(job["id"], attempt, "0-thumbnail", "webp")
    services.artifacts.put(key, small)
    digest = hashlib.sha256(small).hexdigest()
    video = NewArtifact(
        *(0, artifact_key(job["id"], attempt, 0, "mp4"), "video/mp4", 64, 64, 9, "ab" * 32, 7),
        thumbnail_key=key,
        thumbnail_bytes=len(small),
        thumbnail_sha256=digest,
    )
    with services.database.transaction() as session:
        assert store.complete(session, job["id"], attempt, worker.id, [video])
    url = client.get(f"/v1/jobs/{job['id']}").json()["artifacts"][0]["thumbnail_url"]
    answer = client.get(url)
    assert answer.content == small
    assert (answer.headers["content-type"], answer.headers["etag"]) == ("image/webp", f'"{digest}"')
    assert f"renderq-{job['id']}-0-thumbnail.webp" in answer.headers["content-disposition"]
    assert client.get(url, headers={"Range": "bytes=0-4"}).content == b"small"
    assert client.get(url, headers={"If-None-Match": f'"{digest}"'}).status_code == 304


def test_only_a_video_has_a_thumbnail(client: TestClient, submit: JobMaker, worker: Worker) -> None:
    job = submit()
    worker.complete(job["id"], png(64, 64))
    done = client.get(f"/v1/jobs/{job['id']}").json()
    assert done["artifacts"][0]["thumbnail_url"] is None
    answer = client.get(f"/v1/jobs/{job['id']}/content", params={"variant": "thumbnail"})
    assert "has no thumbnail" in assert_problem(answer, 404, "not_found")["detail"]
    wrong = client.get(f"/v1/jobs/{job['id']}/content", params={"variant": "spritesheet"})
    assert_problem(wrong, 422, "invalid_query")
