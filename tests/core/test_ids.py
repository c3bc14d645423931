from core.ids import is_id, new_id


def test_ids_are_unique_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert ids == sorted(ids)
    assert all(len(text) == 36 and text[14] == "7" for text in ids)


def test_an_id_is_recognised_by_its_spelling() -> None:
    assert is_id(new_id())
    for text in (
        "",
        "j-1",
        new_id().upper(),
        "{" + new_id() + "}",
        new_id().replace("-", ""),
        new_id() + "\n",
    ):
        assert not is_id(text)
