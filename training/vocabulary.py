"""The word-level tokenizer: 46 words, 30 pairs, synonyms, and filler words that it drops.

Dropping filler keeps every caption of the grammar within the 16 tokens that the model reads. A colour and
its thing ("red house") are one token: two small text layers did not learn which colour belongs to which.
"""

from typing import Any, Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from training.scenes import COLOURS, ROOFS, SAILS, SHAPES, TREES, WALLS

TEXT_TOKENS: Final = 16

# Words that are dropped, as a regular expression.
_FILLER: Final = (
    "a|an|the|of|with|in|and|at|to|on|under|near|side|corner|picture|drawing|image|photo|photograph|"
    "painting|illustration|by|is|it|there|one|please|cute|nice|beautiful|simple"
)
# Each word of the vocabulary and what is read as the same word, as a regular expression.
_SYNONYMS: Final = {
    "small": "tiny|little|mini",
    "large": "big|huge|giant",
    "gray": "grey|silver",
    "purple": "violet|lilac",
    "red": "crimson|scarlet",
    "cyan": "turquoise|teal|aqua",
    "orange": "amber",
    "yellow": "gold|golden",
    "circle": "ball|disc|disk|dot",
    "square": "box|block",
    "cross": "plus",
    "ring": "donut|torus|hoop",
    "diamond": "rhombus",
    "center": "middle|centre",
    "meadow": "grass|field|lawn",
    "sea": "ocean|lake|water",
    "snow": "winter",
    "night": "midnight",
    "sunset": "dusk|sunrise|dawn|evening",
    "house": "home|cottage|hut",
    "boat": "ship|sailboat",
    "hills": "hill",
    "mountains": "mountain",
    "beach": "sand|desert",
    "background": "backdrop",
}
_OTHER_WORDS: Final = (
    "left", "right", "top", "bottom", "medium", "day", "sky", "roof", "sail", "tree", "sun", "moon"
)  # fmt: skip
# Phrases whose colour is not the colour of a thing.
_PHRASES: Final = {"day": "blue sky", "meadow": "green meadow"}
_PAIRS: Final = tuple(
    f"{colour} {thing}"
    for thing, colours in {"house": WALLS, "roof": ROOFS, "tree": TREES, "sail": SAILS}.items()
    for colour in colours
)


def _joined(pair: str) -> str:
    return pair.replace(" ", "_")


_SPECIAL: Final = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_WORDS: Final = sorted({*COLOURS, *SHAPES, *_SYNONYMS, *_OTHER_WORDS})
TOKENS: Final = {token: i for i, token in enumerate((*_SPECIAL.values(), *_WORDS, *map(_joined, _PAIRS)))}


def make_tokenizer() -> Any:  # noqa: ANN401 - transformers publishes no types
    """The tokenizer as transformers keeps it; it pads to TEXT_TOKENS and ends a text with </s>."""
    tokenizer = Tokenizer(models.WordLevel(TOKENS, _SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Sequence(_normalisation())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", TOKENS["</s>"])]
    )
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, model_max_length=TEXT_TOKENS, padding_side="right", **_SPECIAL)


def _normalisation() -> list[Any]:
    return [
        normalizers.NFKC(),
        normalizers.Lowercase(),
        _replace("[^a-z ]", " "),
        *(_replace(_one_of(synonyms), word) for word, synonyms in _SYNONYMS.items()),
        _replace(_one_of(_FILLER), " "),
        _replace(" +", " "),
        *(_replace(_one_of(phrase), word) for word, phrase in _PHRASES.items()),
        *(_replace(_one_of(pair), _joined(pair)) for pair in _PAIRS),
        normalizers.Strip(),
    ]


def _one_of(words: str) -> str:
    return rf"\b({words})\b"


def _replace(pattern: str, by: str) -> Any:  # noqa: ANN401 - the tokenizers package names no common class
    return normalizers.Replace(Regex(pattern), by)
