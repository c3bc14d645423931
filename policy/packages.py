"""Packages that some options need and a plain installation does not have."""

from importlib.util import find_spec

# Name to import -> how to install it.
OPTIONAL = {
    "flash_attn": "pip install flash-attn",
    "flash_attn_interface": "build FlashAttention 3 from its sources",
    "kernels": "pip install 'renderq[kernels]'",
    "sageattention": "pip install 'sageattention>=2.1.1'",
    "torchao": "pip install 'renderq[quantize]'",
    "xformers": "pip install xformers",
}


def installed() -> tuple[str, ...]:
    """Returns which of them are here, without importing one."""
    return tuple(name for name in OPTIONAL if find_spec(name) is not None)
