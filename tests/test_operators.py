"""Which operator has which facet: docs/operators.md, generated from records and tables of rules.

A cell without a rule has a reason in `REASONS`, and a reason has a cell without a rule.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

import pytest

import samebits.train
from samebits.codegen.lowering import lower
from samebits.finetuning import gradients
from samebits.ir import Trait, canonical, ops_with
from samebits.ir.integer import bounds
from samebits.ir.lowering.rules import INSTEAD
from samebits.ir.lowering.rules import RULES as LOWERED
from samebits.ir.ops import known_ops
from samebits.ir.real.cell import LAYERS
from samebits.onnx.reader.node import RULES as IMPORTED
from samebits.onnx.writer import integer, qdq
from samebits.pytorch import executor
from samebits.pytorch.aten import pointwise
from samebits.spec import graph
from samebits.train.deployed.export import has_operators
from samebits.train.deployed.operations import RULES, WITHOUT_FORM
from samebits.train.operation import TrainingOperation

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "samebits"
PAGE = "docs/operators.md"
MOST_REASONS = len(ascii_lowercase)

ROOMS = [
    importlib.import_module(room.name)
    for room in pkgutil.walk_packages(samebits.train.__path__, "samebits.train.")
]
# Names are unique (tests/train/test_operation.py).
OPERATIONS = {
    found.name: found
    for room in ROOMS
    for found in vars(room).values()
    if isinstance(found, TrainingOperation)
}


@dataclass(frozen=True)
class Facet:
    """A column: the operators that have a rule, and reasons why others have none."""

    title: str
    have: Collection[str]
    reasons: dict[str, Collection[str]]  # the reason -> operators

    def faults(self, names: Iterable[str]) -> list[str]:
        """What is wrong: cells that are empty without a reason, or full with one."""
        found = []
        for name in names:
            told = sum(name in group for group in self.reasons.values())
            if told != (name not in self.have):
                what = "has a rule, and a reason for none" if name in self.have else "has no rule"
                found.append(f"{name}, {self.title}: {what}, and {told} reasons")
        known = {*names}
        for group in self.reasons.values():
            found += [f"{name}, {self.title}: no such operator" for name in {*group} - known]
        return found


def literals(*rooms: str) -> frozenset[str]:
    """The strings that stand in the code of rooms."""
    paths = [p for room in rooms for p in [*(SOURCE / room).rglob("*.py"), SOURCE / room]]
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in paths if p.suffix == ".py"]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return frozenset(
        n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


# --- real graphs ----------------------------------------------------------------------------------

REAL = [op.name for op in known_ops() if not op.integer]
NEWER = {name for name, rule in qdq._RULES.items() if rule is qdq._newer}
BEFORE = {*canonical._RULES} - {*LOWERED}
SCALES = ops_with(Trait.QUANTIZES) - {*LOWERED}
REAL_FACETS = [
    Facet(
        "ONNX in",
        {name for domain, name in IMPORTED if not domain} | literals("onnx/reader"),
        {
            "made of DynamicQuantizeLinear and what reads it (`ir.dynamic`)": ["RoundDynamic"],
        },
    ),
    Facet(
        "PyTorch in",
        literals("pytorch", "ir/foreign.py") | {*pointwise._UNARY.values()},
        {
            "PyTorch has no such operator, or its rule writes others": [
                *("Identity", "Sum", "Mean", "Flatten", "SpaceToDepth", "GlobalAveragePool"),
                *("GlobalMaxPool", "Einsum", "ReduceLogSum", "Hardmax", "MatMulInteger"),
                *("ConvInteger", "DynamicQuantizeLinear", "RoundDynamic", "TensorScatter"),
                *("TreeEnsemble", "BitCast"),
            ],
            "no rule yet: such a module is refused, by the name of its function": [
                *("IsNaN", "IsInf", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"),
                *("CumProd", "GatherND", "ScatterElements", "ScatterND", "TopK", "Det"),
            ],
        },
    ),
    Facet(
        "ONNX out",
        {*REAL} - NEWER,
        {"an operator of opset 26 or newer, which runtimes do not read": NEWER},
    ),
    Facet(
        "integers",
        LOWERED,
        {
            "written with other operators before (`ir.canonical`)": BEFORE,
            "becomes the nodes of its cells before (`ir.unroll`)": LAYERS,
            "folded into the weights before it, where its numbers are constants (`ir.rewrite`)": [
                "BatchNormalization"
            ],
            "says how numbers are rounded: lowering reads it": SCALES - {"DynamicQuantizeLinear"},
            "becomes RoundDynamic before (`ir.dynamic`)": ["DynamicQuantizeLinear"],
            "a decision by values, which integers have none of, but of constants": (
                ops_with(Trait.DECISION) - {*LOWERED} - {"IsNaN"}
            ),
            **{INSTEAD[name]: [name] for name in ("IsNaN", "CumSum", "ReduceProd")},
            "of integers that are no codes": [
                *("BitCast", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"),
            ],
            "not needed by a network yet: it is refused, by its name": [
                *("CumProd", "GatherElements", "ScatterElements", "ScatterND", "Det", "Mod"),
                "Hardmax",
            ],
        },
    ),
]

# --- integer graphs -------------------------------------------------------------------------------

INTEGER = [op.name for op in known_ops() if op.integer]
INTEGER_FACETS = [
    Facet("plain", graph.REFERENCE, {}),
    Facet("bounds", bounds._RULES, {}),
    Facet("C", lower._RULES, {}),
    Facet("torch", executor._PREPARE, {}),
    Facet("ONNX", integer._RULES, {}),
    Facet(
        "gradient",
        gradients._RULES,
        {
            "gives places or counts, through which no gradient passes": ["argmax", "top_k_index"],
            "not trained on yet: finetuning refuses it, by its name": ["scatter", "tree_ensemble"],
        },
    ),
]

# --- training -------------------------------------------------------------------------------------

TRAINING = sorted(OPERATIONS)
FLOAT, LOSSES = (
    ("ToReal", "FromReal"),
    sorted(n for n in OPERATIONS if n.endswith(("Entropy", "Loss"))),
)
PLAIN = {
    "Add": "pointwise.added attention.add_wide",
    "AveragePool": "pooling.averages pooling.averages_backward",
    "BatchNorm": "norm.batch_norm norm.batch_norm_backward",
    "BinaryEntropy": "loss.binary_cross_entropy",
    "Chosen": "attention.where_wide deploy_attention.where",
    "Concat": "pointwise.concat pointwise.concat_backward",
    "Copies": "moves.chosen moves.chosen_backward",
    "CrossEntropy": "loss.cross_entropy",
    "DifferenceLoss": "loss.mse loss.l1 loss.huber loss.smooth_l1",
    "Dropout": "pointwise.dropout pointwise.dropout_backward",
    "Embedding": "pointwise.embedding pointwise.embedding_weight_gradient",
    "Entry": "moves.entered",
    "Expand": "moves.expand moves.expand_backward",
    "Exponential": "loss.exponential loss.exponential_backward",
    "Gather": "moves.gathered moves.summed_at",
    "Gru": "gru.gru gru.gru_backward",
    "Indexed": "pointwise.select pointwise.select_backward",
    "Interpolate": "pooling.interpolated pooling.interpolated_backward",
    "JoinHeads": "moves.split_heads moves.placed",
    "LayerNorm": "norm.layer_norm norm.layer_norm_backward",
    "LogSoftmax": "loss.log_probabilities",
    "LogValues": "loss.log_values loss.log_values_backward",
    "Lstm": "lstm.lstm lstm.lstm_backward",
    "Masked": "attention.softmax attention.softmax_backward",
    "MatMul": "attention.matmul attention.matmul_backward",
    "MaxPool": "pooling.max_pool pooling.max_pool_backward",
    "Multiply": "pointwise.multiply pointwise.multiply_backward",
    "Narrow": "layers.narrowed",
    "Narrow16": "deploy_attention.narrow",
    "Pad": "moves.padded moves.placed",
    "Permute": "recurrent.swap moves.placed",
    "Products": "layers.affine layers.affine_input_gradient layers.affine_weight_gradient",
    "Relu": "pointwise.clamp pointwise.clamp_backward",
    "Reshape": "pointwise.reshaped",
    "Rnn": "rnn.rnn rnn.rnn_backward",
    "Roll": "moves.rolled moves.placed",
    "Scale": "pointwise.scale pointwise.scale_backward",
    "Short": "step.batch_norm_input",
    "Softmax": "attention.softmax attention.softmax_backward",
    "SplitHeads": "moves.split_heads moves.placed",
    "States": "recurrent.stacked",
    "TableActivation": "pointwise.table_activation pointwise.table_backward",
    "TransposedProducts": (
        "transposed.exact_sums transposed.input_gradient transposed.weight_gradient"
    ),
    "WeighedEntropy": "loss.weighed_entropy loss.general_cross_entropy",
}
"""What restates an operation in `spec.training`, which knows no operations."""
NO_FORM = {reason: [] for reason in WITHOUT_FORM.values()}
for _operation, _reason in WITHOUT_FORM.items():
    NO_FORM[_reason].append(_operation.name)
DEPLOYED = {operation.name for operation in RULES}
ONLY_DEPLOYED = "deployed networks alone round so"
TRAINING_FACETS = [
    Facet("forward", {*TRAINING} - {"Narrow16"}, {ONLY_DEPLOYED: ["Narrow16"]}),
    Facet(
        "gradient",
        {name for name, operation in OPERATIONS.items() if operation.gradient},
        {ONLY_DEPLOYED: ["Narrow16"]},
    ),
    Facet(
        "plain",
        PLAIN,
        {
            "float32, whose bits depend on the machine": FLOAT,
        },
    ),
    Facet(
        "deployed", DEPLOYED, {**NO_FORM, "deployed a batch norm takes 8 bits: Narrow": ["Short"]}
    ),
    Facet(
        "exported",
        {name for name, operation in OPERATIONS.items() if has_operators(operation)},
        {
            "it has no deployed form": {*TRAINING} - DEPLOYED,
            "a parameter is a constant of the graph": ["Entry"],
        },
    ),
]

TABLES = {
    "real": (REAL, REAL_FACETS),
    "integer": (INTEGER, INTEGER_FACETS),
    "training": (TRAINING, TRAINING_FACETS),
}


def table(names: Iterable[str], facets: Iterable[Facet]) -> str:
    """Rows by name, letters for reasons, and what the letters mean."""
    letters: dict[str, str] = {}

    def cell(name: str, facet: Facet) -> str:
        if name in facet.have:
            return "yes"
        (reason,) = (r for r, group in facet.reasons.items() if name in group)
        return letters.setdefault(reason, ascii_lowercase[len(letters)])

    lines = [["operator", *(facet.title for facet in facets)]]
    lines.append(["---"] * len(lines[0]))
    lines += [[f"`{name}`", *(cell(name, f) for f in facets)] for name in sorted(names)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    legend = "\n".join(f"* {letter}: {reason}." for reason, letter in letters.items())
    return f"{rows}\n\n{legend}"


@pytest.mark.parametrize("kind", TABLES)
def test_a_cell_without_a_rule_has_a_reason(kind):
    names, facets = TABLES[kind]
    faults = [fault for facet in facets for fault in facet.faults(names)]
    assert not faults, "\n".join(faults)


def test_the_page(golden):
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    for kind, (names, facets) in TABLES.items():
        before, rest = text.split(f"<!-- {kind} -->")
        _, after = rest.split(f"<!-- /{kind} -->")
        text = f"{before}<!-- {kind} -->\n{table(names, facets)}\n<!-- /{kind} -->{after}"
    golden(PAGE, text)


def test_what_restates_an_operation_exists():
    for names in PLAIN.values():
        for name in names.split():
            room, function = name.split(".")
            module = importlib.import_module(f"samebits.spec.training.{room}")
            assert callable(getattr(module, function)), name


def test_what_is_wrong_is_found():
    facet = Facet("C", {"a", "b"}, {"because": ["b", "c"], "not known": ["z"]})
    assert facet.faults(["a", "b", "c", "d"]) == [
        "b, C: has a rule, and a reason for none, and 1 reasons",
        "d, C: has no rule, and 0 reasons",
        "z, C: no such operator",
    ]
