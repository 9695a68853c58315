"""Network architectures as plain `torch.nn`: one definition serves float32 and BFP training.

Only forms that `samebits.train.convert` understands: modules for every layer, and `a + b` for
the residual sum. Convolutions before a batch-norm have no bias.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from samebits.callables import FORM, is_callable_name, named_callable
from samebits.errors import InputError, UnsupportedError
from samebits.numerics import philox

Shape = tuple[int, ...]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def _conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(_conv(inputs, outputs, kernel, stride, groups), nn.BatchNorm2d(outputs))


def mlp(input_shape: Shape, classes: int, *, width: int = 128, depth: int = 2) -> nn.Module:
    """Flatten, then `depth` hidden layers of `width` units with ReLU, then the logits."""
    layers: list[nn.Module] = [nn.Flatten()]
    features = math.prod(input_shape)
    for _ in range(depth):
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


def cnn(input_shape: Shape, classes: int, *, width: int = 16) -> nn.Module:
    """Three 3x3 convolutions with batch-norm and ReLU, two max-pools, global average pool."""
    channels = _image(input_shape, "cnn", 4)
    wide = 2 * width
    return nn.Sequential(
        *(_conv_bn(channels, width, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(_conv_bn(width, wide, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(_conv_bn(wide, 2 * wide, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(2 * wide, classes)),
    )


def smooth(input_shape: Shape, classes: int, *, width: int = 16) -> nn.Module:
    """Two 3x3 convolutions and a hidden layer with tanh, GELU and sigmoid: work for tables."""
    channels = _image(input_shape, "smooth", 4)
    wide = 2 * width
    features = wide * (input_shape[1] // 4) * (input_shape[2] // 4)
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, wide, 3, padding=1), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(features, 32), nn.Sigmoid(), nn.Linear(32, classes)),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch-norm and a residual sum (He et al. 2016, fig. 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv_bn(inputs, outputs, 3, stride)
        self.relu = nn.ReLU()
        self.second = _conv_bn(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)
        self.out = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.second(self.relu(self.first(x)))
        b = self.shortcut(x)
        y: torch.Tensor = self.out(a + b)
        return y


def _resnet(
    name: str, input_shape: Shape, classes: int, widths: Sequence[int], blocks: int
) -> nn.Module:
    """3x3 stem, `blocks` basic blocks a stage, stride 2 between stages, global average pool."""
    channels = _image(input_shape, name, 1)
    layers: list[nn.Module] = [_conv_bn(channels, widths[0], 3), nn.ReLU()]
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            layers.append(BasicBlock(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet8(input_shape: Shape, classes: int) -> nn.Module:
    """The MLPerf Tiny image-classification network: 16, 32, 64 channels, one block a stage."""
    return _resnet("resnet8", input_shape, classes, (16, 32, 64), 1)


def resnet20(input_shape: Shape, classes: int) -> nn.Module:
    """He et al. 2016 for CIFAR, with 1x1 projection shortcuts (their option B)."""
    return _resnet("resnet20", input_shape, classes, (16, 32, 64), 3)


def resnet18(input_shape: Shape, classes: int) -> nn.Module:
    """ResNet-18 with the CIFAR stem: 3x3, stride 1, no max-pool."""
    return _resnet("resnet18", input_shape, classes, (64, 128, 256, 512), 2)


class InvertedResidual(nn.Module):
    """1x1 expansion, 3x3 depthwise, 1x1 projection (Sandler et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [_conv_bn(inputs, hidden, 1), nn.ReLU6()]
        layers += [_conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        self.body = nn.Sequential(*layers, _conv_bn(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.residual else y


def mobilenetv2(input_shape: Shape, classes: int) -> nn.Module:
    """MobileNetV2 at half width for small images: the stem and the first stage keep the size."""
    channels = _image(input_shape, "mobilenetv2", 1)
    layers: list[nn.Module] = [_conv_bn(channels, 16, 3), nn.ReLU6()]
    inputs = 16
    # expansion, channels, blocks, first stride
    for expand, outputs, blocks, stride in (
        (1, 8, 1, 1),
        (6, 12, 2, 1),
        (6, 16, 3, 2),
        (6, 32, 4, 2),
        (6, 48, 3, 1),
        (6, 80, 3, 2),
        (6, 160, 1, 1),
    ):
        for block in range(blocks):
            layers.append(InvertedResidual(inputs, outputs, stride if block == 0 else 1, expand))
            inputs = outputs
    layers += [_conv_bn(inputs, 640, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(640, classes))


class SequenceClassifier(nn.Module):
    """LSTM layers over the steps of a sequence; the logits from the last step's hidden state."""

    def __init__(self, features: int, classes: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 4:  # the rows of an image, all channels side by side
            n, c, h, w = x.shape
            x = x.permute(0, 2, 1, 3).reshape(n, h, c * w)
        states, _ = self.lstm(x)
        y: torch.Tensor = self.out(states[:, -1])
        return y


def lstm(input_shape: Shape, classes: int, *, hidden: int = 64, layers: int = 2) -> nn.Module:
    """`layers` LSTM layers over sequences [T, F], or over the rows of images [C, H, W]."""
    if len(input_shape) == 2:
        return SequenceClassifier(input_shape[1], classes, hidden, layers)
    if len(input_shape) == 3:
        return SequenceClassifier(input_shape[0] * input_shape[2], classes, hidden, layers)
    raise InputError(
        "architecture lstm: expected sequences [steps, features] or images [C, H, W], found "
        f"{list(input_shape)}"
    )


class PatchTransformer(nn.Module):
    """Patches of an image as tokens, behind one that is learned and gives the logits."""

    def __init__(
        self, channels: int, tokens: int, patch: int, classes: int, width: int, depth: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, tokens + 1, width))
        self.layers = nn.Sequential(*(_pre_norm_layer(width, 64) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        y: torch.Tensor = self.out(self.norm(self.layers(x))[:, 0])
        return y


class LanguageModel(nn.Module):
    """Tokens [n, t] -> logits [n, t, vocabulary] of the next ones; t up to the context."""

    def __init__(self, vocabulary: int, context: int, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(1, context, width))
        self.layers = nn.ModuleList(_pre_norm_layer(width, 32) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = x.shape[1]
        y: torch.Tensor = self.tokens(x) + self.places[:, :steps]
        mask = nn.Transformer.generate_square_subsequent_mask(steps, device=x.device)
        for layer in self.layers:
            y = layer(y, src_mask=mask, is_causal=True)
        y = self.out(self.norm(y))
        return y


def gpt(vocabulary: int, context: int = 128, *, width: int = 128, depth: int = 4) -> nn.Module:
    """A small language model (Radford et al. 2019): heads of 32, GELU, norms first."""
    return LanguageModel(vocabulary, context, width, depth)


CONTEXT = 128  # tokens
LANGUAGE_MODELS = frozenset(("gpt",))  # architectures of texts, their input [CONTEXT]


def _language_model(input_shape: Shape, classes: int) -> nn.Module:
    """`gpt` of the data's length."""
    if len(input_shape) != 1:
        raise InputError(
            f"architecture gpt: expected a text (.txt), found samples {list(input_shape)}"
        )
    return gpt(classes, *input_shape)


def _pre_norm_layer(width: int, head: int) -> nn.TransformerEncoderLayer:
    """A layer of a transformer that normalises first, with GELU and four times the width inside."""
    return nn.TransformerEncoderLayer(
        *(width, max(1, width // head), 4 * width, 0.0, "gelu"),
        batch_first=True,
        norm_first=True,
    )


def vit(input_shape: Shape, classes: int, *, width: int = 192, depth: int = 6) -> nn.Module:
    """A small vision transformer (Dosovitskiy et al. 2021): 4x4 patches, of small images 2x2.

    Layers normalise first, with heads of 64 and GELU; both sides are multiples of a patch.
    """
    channels = _image(input_shape, "vit", 4)
    patch = 4 if min(input_shape[1:]) >= 16 else 2
    rows, columns = (side // patch for side in input_shape[1:])
    if (rows * patch, columns * patch) != tuple(input_shape[1:]):
        raise InputError(
            f"architecture vit: expected images whose sides are multiples of {patch}, found "
            f"{list(input_shape)}"
        )
    return PatchTransformer(channels, rows * columns, patch, classes, width, depth)


def _image(input_shape: Shape, name: str, smallest: int) -> int:
    """The number of channels; InputError unless [C, H, W] with H, W >= smallest."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise InputError(
            f"architecture {name}: expected images [C, H, W] of at least {smallest}x{smallest}, "
            f"found {list(input_shape)}"
        )
    return input_shape[0]


ARCHITECTURES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "smooth": smooth,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "lstm": lstm,
    "vit": vit,
    "gpt": _language_model,
}


def build(name: str, input_shape: Shape, classes: int, device: str = "cpu") -> nn.Module:
    """The named architecture, or what a callable returns for input_shape= and classes=.

    name: an architecture's, or module:callable or file.py:callable.

    Its weights are those of torch, in float32; `initialise` sets the reproducible ones. On the
    device "meta" they have sizes and no memory. Raises InputError.
    """
    if is_callable_name(name):
        make = named_callable(name, "--arch")
        try:
            with _plain(device):
                model = make(input_shape=input_shape, classes=classes)
        except Exception as error:  # user code: whatever it raises is an input error
            raise InputError(
                f"--arch {name}: calling it with input_shape={input_shape}, classes={classes} "
                f"failed ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(model, nn.Module):
            raise InputError(
                f"--arch {name}: expected a torch.nn.Module, found {type(model).__name__}"
            )
        return model
    if name not in ARCHITECTURES:
        raise InputError(
            f"unknown architecture {name!r}; expected one of {', '.join(ARCHITECTURES)}, or {FORM}"
        )
    with _plain(device):
        return ARCHITECTURES[name](input_shape, classes)


@contextlib.contextmanager
def _plain(device: str) -> Iterator[None]:
    """On a device and in float32, whatever a caller's defaults are: the type of a parameter decides
    what it is rounded to."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def initialise(model: nn.Module, seed: int) -> None:
    """Set every parameter from `seed` alone: no torch generator and no libm reach a weight.

    The i-th entry of `named_parameters()` takes Philox words of key (seed, i). Conv and Linear
    weights are uniform in +-sqrt(6 / fan_in), the last Linear's in +-sqrt(1 / fan_in), recurrent
    weights in +-sqrt(3 / fan_in), Embedding weights in +-sqrt(3); norm weights are 1; biases are
    0, but 1 for an LSTM's forget gate (bias_ih; Jozefowicz et al. 2015). Input weights of attention
    are as those of an LSTM. A parameter of a user's module that holds one number other than 0, a
    gain say, keeps it; others are in +-0.035. A word w gives
    ((2w + 1 - 2^32) * 2^-32) * bound in binary64, rounded to the parameter's dtype.
    """
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    modules = dict(model.named_modules())
    with torch.no_grad():
        for index, (name, parameter) in enumerate(model.named_parameters()):
            owner_name, _, attribute = name.rpartition(".")
            owner = modules[owner_name]
            if attribute in ("bias", "in_proj_bias") or (
                isinstance(owner, RECURRENT) and parameter.dim() == 1
            ):
                parameter.zero_()
                if attribute.startswith("bias_ih") and isinstance(owner, (nn.LSTM, nn.LSTMCell)):
                    parameter[owner.hidden_size : 2 * owner.hidden_size] = 1.0
            elif attribute == "weight" and isinstance(owner, NORMS):
                parameter.fill_(1.0)
            elif _is_gain(owner, parameter):
                pass
            elif _is_drawn(owner, attribute):
                fan_in = math.prod(parameter.shape[1:])
                if isinstance(owner, TRANSPOSED):
                    fan_in = parameter[:, 0].numel() // owner.groups
                if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
                    bound = math.sqrt(3.0)
                elif isinstance(owner, (*RECURRENT, nn.MultiheadAttention)):
                    bound = math.sqrt(3.0 / fan_in)
                elif not isinstance(owner, (nn.Conv1d, nn.Conv2d, nn.Linear, *TRANSPOSED)):
                    bound = OWN_BOUND
                elif linears and owner is linears[-1]:
                    bound = math.sqrt(1.0 / fan_in)
                else:
                    bound = math.sqrt(6.0 / fan_in)
                words = philox.words(parameter.numel(), (seed, index))
                unit = (2 * words + 1 - 2**32).to(torch.float64) * 2.0**-32
                parameter.copy_((unit * bound).reshape(parameter.shape))
            else:
                raise UnsupportedError(
                    f"parameter {name!r} of {type(owner).__name__}: no rule to initialise it; "
                    "expected weights of Conv and ConvTranspose 1d and 2d, Linear, LSTM, GRU, RNN, "
                    "Embedding, EmbeddingBag, MultiheadAttention and norms, or parameters of a "
                    "module of your own"
                )


NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d),
)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
OWN_BOUND = 0.035  # of parameters of a user's module: a standard deviation of 0.02


def _is_gain(owner: nn.Module, parameter: torch.Tensor) -> bool:
    """Whether a parameter of a module outside torch.nn holds one number, and that is not 0."""
    if type(owner).__module__.startswith("torch.nn") or parameter.numel() == 0:
        return False
    first = parameter.flatten()[0]
    return bool(first != 0) and bool((parameter == first).all())


def _is_drawn(owner: nn.Module, attribute: str) -> bool:
    """Whether a parameter is drawn at random: a weight, or one of a module outside torch.nn."""
    drawn = (nn.Conv1d, nn.Conv2d, *TRANSPOSED, nn.Linear, nn.Embedding, nn.EmbeddingBag)
    if isinstance(owner, (*drawn, *RECURRENT)):
        return attribute.startswith("weight")
    if isinstance(owner, nn.MultiheadAttention):
        return attribute == "in_proj_weight"
    return not type(owner).__module__.startswith("torch.nn")
