"""Text encoders of the real classes, a few small layers each."""

from typing import Any

import transformers as tf

from pipeline.miniatures.tokenizers import CLIP_LENGTH, TEXT_LENGTH

HEAD = 16
KLEIN_LAYERS = 28
"""FLUX.2-klein reads the states after layers 9, 18 and 27."""


def clip(tokenizer: tf.CLIPTokenizer, width: int, *, projection: bool = False) -> tf.PreTrainedModel:
    """With ``projection`` the pooled vector goes through one more matrix, as SD3 wants it."""
    kind = tf.CLIPTextModelWithProjection if projection else tf.CLIPTextModel
    config = tf.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        projection_dim=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // HEAD,
        max_position_embeddings=CLIP_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return kind(config)


def t5(tokenizer: tf.T5Tokenizer, width: int) -> tf.T5EncoderModel:
    return tf.T5EncoderModel(tf.T5Config(**_t5(tokenizer, width)))


def umt5(tokenizer: tf.T5Tokenizer, width: int) -> tf.UMT5EncoderModel:
    return tf.UMT5EncoderModel(tf.UMT5Config(**_t5(tokenizer, width)))


def qwen3(tokenizer: tf.Qwen2Tokenizer, width: int, *, layers: int = KLEIN_LAYERS) -> tf.Qwen3ForCausalLM:
    config = tf.Qwen3Config(**_decoder(tokenizer, width, layers), head_dim=HEAD, tie_word_embeddings=True)
    return tf.Qwen3ForCausalLM(config)


def qwen3_base(tokenizer: tf.Qwen2Tokenizer, width: int, *, layers: int) -> tf.Qwen3Model:
    return tf.Qwen3Model(tf.Qwen3Config(**_decoder(tokenizer, width, layers), head_dim=HEAD))


def gemma2(tokenizer: tf.GemmaTokenizer, width: int) -> tf.Gemma2Model:
    config = tf.Gemma2Config(
        **_decoder(tokenizer, width, layers=2),
        head_dim=HEAD,
        query_pre_attn_scalar=HEAD,
        bos_token_id=tokenizer.bos_token_id,
    )
    return tf.Gemma2Model(config)


def qwen_vl(tokenizer: tf.Qwen2Tokenizer, width: int) -> tf.Qwen2_5_VLForConditionalGeneration:
    """The vision half is there because the class has one; text-to-image never runs it."""
    # The three parts of a rotary position (time, height, width) share half a head.
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "out_hidden_size": width,
        "fullatt_block_indexes": [0],
    }
    text = {**_decoder(tokenizer, width, layers=2), "rope_parameters": rope, "bos_token_id": None}
    config = tf.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return tf.Qwen2_5_VLForConditionalGeneration(config)


def _t5(tokenizer: tf.T5Tokenizer, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_kv": HEAD,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": width // HEAD,
        "feed_forward_proj": "gated-gelu",
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _decoder(tokenizer: tf.PreTrainedTokenizerBase, width: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD,
        "max_position_embeddings": 8 * TEXT_LENGTH,
        # At the usual 0.02 the states of these narrow layers vanish, and with them what the prompt says.
        "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
