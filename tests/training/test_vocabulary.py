"""The tokenizer knows every word of the grammar and fits every caption."""

import random
from pathlib import Path

import pytest

from training import captions
from training.examples import random_landscape, random_shape
from training.vocabulary import TEXT_TOKENS, make_tokenizer

BUNDLED = Path(__file__).parents[2] / "pipeline" / "tiny"


def words_of(text: str) -> list[str]:
    tokenizer = make_tokenizer()
    words: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    return words


def test_every_caption_fits_and_has_no_unknown_word() -> None:
    rng, tokenizer = random.Random(1), make_tokenizer()
    scenes = [draw(rng) for _ in range(1000) for draw in (random_landscape, random_shape)]
    texts = [captions.write(scene, rng) for scene in scenes]
    tokens = tokenizer(texts)["input_ids"]
    assert max(map(len, tokens)) <= TEXT_TOKENS
    assert not [text for text, ids in zip(texts, tokens, strict=True) if tokenizer.unk_token_id in ids]


def test_synonyms_and_filler_do_not_matter() -> None:
    assert words_of("A scarlet cottage, please!") == words_of("the red house")


def test_the_colour_of_grass_and_sky_is_no_colour_of_a_thing() -> None:
    assert words_of("a red house on green grass, blue sky") == ["red_house", "meadow", "day", "</s>"]


def test_a_colour_and_its_thing_are_one_token() -> None:
    text = "a gray house with a red roof and a pink tree"
    assert words_of(text) == ["gray_house", "red_roof", "pink_tree", "</s>"]


def test_a_word_outside_the_vocabulary_is_unknown() -> None:
    assert words_of("a red spaceship") == ["red", "<unk>", "</s>"]


@pytest.mark.parametrize("folder", ["tokenizer", "tokenizer_2"])
def test_the_bundled_model_has_this_tokenizer(folder: str, tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    assert (BUNDLED / folder / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()
