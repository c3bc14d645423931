"""Imported once by the server that processes are forked from: none of them waits for the libraries."""

import gc

import cache_dit  # noqa: F401
import diffusers
import torch
import transformers  # noqa: F401

import pipeline.engine
import pipeline.miniature  # noqa: F401
from policy.catalogue import Catalogue

torch.set_num_threads(1)
torch.compile(torch.neg, backend="eager")(
    torch.ones(1)
)  # the compiler imports most of itself when first used
torch._dynamo.reset()  # noqa: SLF001 - there is no public name
for _spec in Catalogue.load().values():
    getattr(diffusers, _spec.pipeline_class)  # diffusers imports a class when it is first asked for
gc.collect()
gc.freeze()  # no copy looks at all this again
