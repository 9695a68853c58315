"""Language models of Hugging Face, small and as they are: trained with their caches, deployed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from compare import assert_same
from samebits.ir.interpreter import run
from samebits.ir.lowering.lower import lower_graph
from samebits.train import SGD, convert, cross_entropy, set_step
from samebits.train.deployed.deploy import calibrate, deployed
from samebits.train.deployed.export import to_graph
from torchvision_models import define_operators

pytestmark = pytest.mark.slow
WORDS, LENGTH = 40, 12
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
ROOTS = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
KINDS = {
    "Llama": ROOTS,
    "Qwen2": ROOTS,
    "Mistral": ROOTS,
    "OPT": SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "GPT2": {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    "GPTNeoX": SIZES | {"intermediate_size": 48},
    "Phi": SIZES | {"intermediate_size": 48},
}


class Logits(nn.Module):
    """A causal model of a kind of transformers, with its cache, and of what it gives the logits."""

    def __init__(self, kind):
        super().__init__()
        define_operators()
        reason = "transformers is not installed; `make .venv/.stamp-transformers` installs it"
        package = pytest.importorskip("transformers", reason=reason, exc_type=ModuleNotFoundError)
        ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 1)
        config = getattr(package, f"{kind}Config")(**KINDS[kind], **ends)
        self.model = package.AutoModelForCausalLM.from_config(config)
        assert config.use_cache

    def forward(self, words):
        return self.model(words).logits


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_and_the_same_bits_deployed(kind):
    torch.manual_seed(1)
    model = convert(Logits(kind).train())
    words = torch.randint(3, WORDS, (4, LENGTH))
    optimizer, losses = SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for step in range(10):
        set_step(model, 1, step, 0)
        given = model(words)[:, :-1].reshape(-1, WORDS)
        loss = cross_entropy(given, words[:, 1:].reshape(-1))
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.5
    exponents = calibrate(model, [one[None] for one in words])
    codes, _ = deployed(model, exponents).codes(words[:2])
    graph = lower_graph(to_graph(model, exponents, (LENGTH,), batch=2))
    assert_same(run(graph, [words[:2].numpy()])[0], codes, range(codes.numel()))
