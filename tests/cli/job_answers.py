"""Jobs as the API answers them."""

from typing import Any

ID = "0199d5c0-aaaa-7bbb-8ccc-0123456789ab"


def job(status: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": ID,
        "object": "job",
        "status": status,
        "model": "tiny",
        "request": {"model": "tiny", "prompt": "a boat"},
        "plan": {"seed": 7},
        "created_at": "2026-01-01T00:00:00Z",
        "finished_at": None,
        "cancel_requested_at": None,
        "attempt": 1,
        "max_attempts": 3,
        "queue_position": None,
        "progress": None,
        "artifacts": [],
        "error": None,
        "warnings": [],
    }
    return answer | more


def artifact(index: int) -> dict[str, Any]:
    return {"index": index, "url": f"http://here/{index}", "seed": 7 + index, "media_type": "image/png"}
