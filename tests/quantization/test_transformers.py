"""Transformers, of torch.nn and of the package of that name: quantized, compiled, the same bits."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samebits as sb
from samebits.errors import UnsupportedError
from samebits.train import architectures
from torchvision_models import define_operators

BACKENDS = ["reference", "torch", "c", "onnxruntime-integer"]


def check(net: nn.Module, *inputs: torch.Tensor, most: float = 0.25) -> None:
    """Every backend gives the same codes; they are near the float network's results."""
    names = inspect.signature(net.forward).parameters
    given = dict(zip(names, inputs, strict=False))
    found = sb.quantize(net.eval(), given)
    few = {name: x[:4].numpy() for name, x in given.items()}
    assert found.verify(few, BACKENDS)
    (quantized,) = found.run(few).values()
    with torch.no_grad():
        expected = net(*(x[:4] for x in inputs))
    error = (torch.from_numpy(quantized) - expected).pow(2).mean().sqrt() / expected.std()
    assert error < most, float(error)


# --- of torch.nn ------------------------------------------------------------------------------


class Causal(nn.Module):
    """Attention that sees no later place, by a mask of its own, and a root mean square norm."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.inner = how, nn.Linear(16, 48)
        self.norm, self.outer = nn.RMSNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(self.norm(x)).split(16, -1)
        if self.how == "sdpa":
            return x + self.outer(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        scores = q @ k.transpose(1, 2) / 4
        length = x.shape[1]
        if self.how == "fill":
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        else:
            scores = scores + torch.full((length, length), -1e9).triu(1)
        return x + self.outer(scores.softmax(-1) @ v)


class Tokens(nn.Module):
    """Rows for tokens and for their places, then an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.places = nn.Embedding(20, 16), nn.Embedding(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.rows(x) + self.places(torch.arange(x.shape[1])))


def encoder(norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(
        16, 4, 32, 0.0, activation="gelu", batch_first=True, norm_first=norm_first
    )


NETS: dict[str, Callable[[], nn.Module]] = {
    "norm first": lambda: encoder(True),
    "norm last": lambda: encoder(False),
    "causal sdpa": lambda: Causal("sdpa"),
    "causal fill": lambda: Causal("fill"),
    "causal sum": lambda: Causal("sum"),
    "layer norm": lambda: nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Tanh()),
    "layer norm of axes": lambda: nn.Sequential(nn.LayerNorm((5, 16)), nn.Linear(16, 4)),
}


SLOW = ("norm last", "causal fill")  # as others, written in another way


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NETS]
)
def test_vectors(name):
    torch.manual_seed(2)
    check(NETS[name](), torch.randn(24, 5, 16))


def test_tokens():
    torch.manual_seed(3)
    check(Tokens(), torch.randint(0, 20, (24, 6)))


class Padded(nn.Module):
    """Attention to the places that an input of zeros and ones keeps, said in several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.inner = how, nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).split(16, -1)
        scores, kept = q @ k.transpose(1, 2) / 4, mask[:, None, :]
        if self.how == "sum":
            scores = scores + (1.0 - kept.float()) * -1e9
        elif self.how == "fill":
            scores = scores.masked_fill(kept == 0, float("-inf"))
        elif self.how == "choice":
            scores = torch.where(kept.expand(-1, 5, -1).bool(), scores, torch.tensor(-1e30))
        else:
            lost = 1 - kept.to(scores.dtype)
            scores = scores + lost.masked_fill(lost.bool(), torch.finfo(scores.dtype).min)
        found: torch.Tensor = scores.softmax(-1) @ v
        return found


def padding() -> torch.Tensor:
    """Texts of 1 to 5 places."""
    return (torch.arange(5) <= torch.arange(24)[:, None] % 5).long()


@pytest.mark.parametrize("how", ["sum", "fill", "choice", "inverted"])
def test_padded_keys(how):
    torch.manual_seed(7)
    check(Padded(how), torch.randn(24, 5, 16), padding())


def test_a_mask_that_counts_is_refused():
    class Counting(Padded):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return super().forward(x, mask) / mask.sum(1)[:, None, None]

    with pytest.raises(UnsupportedError, match=r"'mask': .* found int64 that 'sum.*' \(ReduceSum"):
        sb.quantize(Counting("sum").eval(), {"x": torch.randn(24, 5, 16), "mask": padding()})


class Shifted(nn.Module):
    """Rows of a table for numbers that are computed from an input, which also says places."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.rows = how, nn.Embedding(9, 5)

    def forward(self, x: torch.Tensor) -> Any:
        if self.how == "places":
            scores = self.rows(x).masked_fill(x[:, :, None] == 0, -1e9)
            return scores.softmax(1)
        if self.how == "output":
            return self.rows(x), x + 1
        return self.rows(x + 2)


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("shift", r"int64 that '.*embedding.*' \(Gather\) reads"),
        ("places", r"int64 that '.*' \(Gather\) and '.*' \(Where\) read"),
        ("output", r"int64 of which the output '.*' is made"),
    ],
)
def test_computed_numbers_are_refused(how, found):
    with pytest.raises(UnsupportedError, match=rf"input 'x': .* found {found}; compute outside"):
        sb.quantize(Shifted(how).eval(), torch.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8)]
)
def test_norms_of_images(norm):
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 4, 1))
    check(net, torch.randn(24, 3, 6, 7))


@pytest.mark.parametrize(
    ("width", "depth"), [(64, 2), pytest.param(192, 6, marks=pytest.mark.slow)]
)
def test_a_vision_transformer(width, depth):
    torch.manual_seed(5)
    check(architectures.vit((1, 8, 8), 10, width=width, depth=depth), torch.rand(24, 1, 8, 8))


# --- of the package ---------------------------------------------------------------------------


class Only(nn.Module):
    """One result of a model of several."""

    def __init__(self, model: nn.Module, result: str = "last_hidden_state") -> None:
        super().__init__()
        self.model, self.result = model, result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.model(x), self.result)
        return found


class WithPadding(Only):
    """The same with its texts' padding."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found: torch.Tensor = getattr(self.model(x, attention_mask=mask), self.result)
        return found


WIDTH, TOKENS = 32, 50
TEXT = {"vocab_size": TOKENS, "max_position_embeddings": 16}


def bert(package: Any) -> tuple[nn.Module, torch.Tensor]:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = package.BertConfig(**TEXT, **sizes, intermediate_size=64)
    return Only(package.BertModel(config)), torch.randint(0, TOKENS, (16, 8))


def distilbert(package: Any) -> tuple[nn.Module, torch.Tensor]:
    config = package.DistilBertConfig(**TEXT, dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=64)
    return Only(package.DistilBertModel(config)), torch.randint(0, TOKENS, (16, 8))


def gpt2(package: Any) -> tuple[nn.Module, torch.Tensor]:
    ends = {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
    sizes = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16}
    config = package.GPT2Config(vocab_size=TOKENS, **sizes, **ends)
    return Only(package.GPT2LMHeadModel(config), "logits"), torch.randint(0, TOKENS, (16, 8))


def vit(package: Any) -> tuple[nn.Module, torch.Tensor]:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = package.ViTConfig(**sizes, intermediate_size=64, image_size=16, patch_size=4)
    return Only(package.ViTModel(config)), torch.randn(16, 3, 16, 16)


def whisper(package: Any) -> tuple[nn.Module, torch.Tensor]:
    sizes = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    config = package.WhisperConfig(
        **sizes,
        d_model=WIDTH,
        num_mel_bins=8,
        max_source_positions=16,
        decoder_layers=1,
        decoder_attention_heads=2,
    )
    return Only(package.WhisperModel(config).get_encoder()), torch.randn(16, 8, 32)


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which is not to ask its hub for anything."""
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    define_operators()  # it imports torchvision where that is installed
    reason = "transformers is not installed; `make .venv/.stamp-transformers` installs it"
    return pytest.importorskip("transformers", reason=reason)


@pytest.mark.slow
def test_bert_with_padding(transformers):
    torch.manual_seed(8)
    net, _ = bert(transformers)
    check(WithPadding(net.model), torch.randint(0, TOKENS, (24, 5)), padding())


@pytest.mark.slow
@pytest.mark.parametrize("make", [bert, distilbert, gpt2, vit, whisper])
def test_models_of_transformers(make, transformers):
    torch.manual_seed(6)
    check(*make(transformers))
