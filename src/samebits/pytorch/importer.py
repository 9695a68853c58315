"""torch modules as real graphs: torch.export, then one mapping rule for each ATen operator."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from samebits.errors import InputError, UnsupportedError
from samebits.ir.foreign import Result
from samebits.ir.graph import Graph, GraphBuilder
from samebits.pytorch.aten import RULES
from samebits.pytorch.aten.quantized import ADVICE
from samebits.pytorch.call import AtenCall, dtype_name, module_path, operator_name
from samebits.settled import tracing

CHECKS = ("_assert", "sym_constrain_range")  # calls of torch's own checks start with these


def import_module(module: nn.Module, example_inputs: tuple[torch.Tensor, ...]) -> Graph:
    """The real graph of a module in eval mode, for inputs of the examples' shapes and types.

    Graph inputs are named as the arguments of `forward`; outputs are what it returns, flattened.
    Operators without a rule are decomposed by torch as far as it can. The module's training modes
    are restored. Raises InputError for examples that the module does not take, UnsupportedError
    for what cannot be traced, with every ATen operator that has no rule and the modules it is in.
    """
    name = type(module).__name__
    if not isinstance(example_inputs, tuple) or not all(
        isinstance(example, torch.Tensor) for example in example_inputs
    ):
        found = type(example_inputs).__name__
        raise InputError(f"{name}: expected a tuple of tensors as example inputs, found {found}")
    with tracing(), _eval_mode(module), torch.no_grad(), warnings.catch_warnings():
        # torch's own deprecations: nothing that a user of this function could change.
        warnings.simplefilter("ignore")
        program = _exported(module, example_inputs, name)
    return _Import(program, name, True).run()


def import_program(program: ExportedProgram, name: str, trusted: bool) -> Graph:
    """The real graph of an exported program, for the shapes that it was exported with.

    trusted: torch may compute what depends on constants alone by operators that have no rule; no
             file says what that takes in time and memory

    Raises UnsupportedError as `import_module`, and for dimensions left open.
    """
    with tracing(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Import(_decomposed(program, name), name, trusted).run()


@contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


PACKING = "pack_padded_sequence"  # of torch: sequences with lengths of their own


def _packs(module: nn.Module, example_inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether a recurrent layer of the module is given packed sequences."""
    found = []
    hooks = [
        part.register_forward_pre_hook(
            lambda _, given: found.append(isinstance(given[0], nn.utils.rnn.PackedSequence))
        )
        for part in module.modules()
        if isinstance(part, nn.RNNBase)
    ]
    try:
        module(*example_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return any(found)


def _exported(
    module: nn.Module, example_inputs: tuple[torch.Tensor, ...], name: str
) -> ExportedProgram:
    """The module as a functional program, operators without a rule decomposed.

    Raises InputError where the module does not take the examples, UnsupportedError where torch
    cannot trace it.
    """
    # torch.export takes a tensor that is given twice for one input, read wherever both are.
    example_inputs = tuple(example.detach().clone() for example in example_inputs)
    try:
        module(*example_inputs)
    except Exception as error:  # the module's own code: whatever it raises
        shapes = ", ".join(str(list(example.shape)) for example in example_inputs)
        raise InputError(
            f"{name}: expected example inputs that the module takes, found {shapes} "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error
    try:
        program = torch.export.export(module, example_inputs)
    except Exception as error:  # torch.export's errors have no common type
        advice = "take control flow that depends on data out of forward"
        if _packs(module, example_inputs):
            advice = (
                f"leave out {PACKING}: give the layer sequences of one length, padded behind their "
                "end, and read the step that counts"
            )
        raise UnsupportedError(
            f"{name}: expected a module that torch.export can trace, found "
            f"{type(error).__name__}: {_first_line(error)}; {advice}"
        ) from error
    return _decomposed(program, name)


def _decomposed(program: ExportedProgram, name: str) -> ExportedProgram:
    """The program with operators without a rule decomposed as far as torch can."""
    try:
        # Operators in place become functional, all others that have a rule stay whole.
        table: dict[Any, Any] = dict(torch.export.default_decompositions().items())
        program = program.run_decompositions(
            {op: rule for op, rule in table.items() if operator_name(op) not in RULES}
        )
    except Exception as error:  # a damaged file may raise anything too
        raise UnsupportedError(
            f"{name}: expected operators that torch can decompose, found "
            f"{type(error).__name__}: {_first_line(error)}; change the module, and export a file "
            "again"
        ) from error
    return program


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _calls(program: ExportedProgram) -> list[fx.Node]:
    """The calls that compute something: neither the parts of a tuple nor torch's own checks."""
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function"
        and node.target is not operator.getitem
        and not operator_name(node.target).startswith(CHECKS)
    ]


class _Import:
    def __init__(self, program: ExportedProgram, name: str, trusted: bool) -> None:
        self.program, self.name = program, name
        self.builder = GraphBuilder(name)
        self.results: dict[fx.Node, Result] = {}
        self.inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self.fixed = self._fixed() if trusted else set()
        self.tensors: dict[fx.Node, Any] = {}  # of fixed nodes, as far as they are known
        self.problems: list[str] = []  # what has no counterpart, a line each
        self.unknown: set[fx.Node] = set()  # nodes without a result because of them

    def run(self) -> Graph:
        calls = set(_calls(self.program))
        self._check(calls)
        for node in self.program.graph.nodes:
            if self.unknown.intersection((node, *node.all_input_nodes)):
                self.unknown.add(node)
                continue
            try:
                self._node(node, calls)
            except UnsupportedError as error:
                self.problems.append(str(error))
                self.unknown.add(node)
        if self.problems:
            raise UnsupportedError("\n".join(dict.fromkeys(self.problems)))
        return self.builder.build(self._outputs())

    def _node(self, node: fx.Node, calls: set[fx.Node]) -> None:
        """Enter the result of one node, whose operands have theirs."""
        if node.op == "placeholder":
            self._placeholder(node, self.inputs[node.name])
        elif node.target is operator.getitem:
            source, index = cast("tuple[fx.Node, int]", node.args)
            self.results[node] = self.results[source][index]
        elif node in calls and operator_name(node.target) in RULES:
            self.results[node] = self._call(node)
        elif node in calls:
            self.results[node] = self.builder.constant(node.name, self._computed(node))

    def _check(self, calls: set[fx.Node]) -> None:
        """Note every operator without a rule and its modules, and the buffers that the module
        changes."""
        places: dict[str, list[str]] = {}
        for node in self.program.graph.nodes:
            if node in calls and operator_name(node.target) not in RULES and node not in self.fixed:
                path = module_path(node) or "the module itself"
                found = places.setdefault(str(node.target), [])
                if path not in found:
                    found.append(path)
                self.unknown.add(node)
        if places:
            listed = "; ".join(f"{op} in {', '.join(paths)}" for op, paths in places.items())
            known = (
                text for start, text in ADVICE.items() if any(op.startswith(start) for op in places)
            )
            advice = "; ".join(dict.fromkeys(known)) or "replace these modules or functions"
            self.problems.append(
                f"{self.name}: expected ATen operators that graphs have, found {listed}; {advice}"
            )
        mutated = self.program.graph_signature.buffers_to_mutate
        if mutated:
            self.problems.append(
                f"{self.name}: expected a module that keeps its buffers, found changes of "
                f"{', '.join(mutated.values())}; import it in a form without state"
            )

    def _fixed(self) -> set[fx.Node]:
        """The nodes that depend on no input of the module and on no random number."""
        fixed: set[fx.Node] = set()
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                free = self.inputs[node.name].kind != InputKind.USER_INPUT
            else:
                random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
                free = node.op == "call_function" and not random
            if free and fixed.issuperset(node.all_input_nodes):
                fixed.add(node)
        return fixed

    def _computed(self, node: fx.Node) -> np.ndarray[Any, Any]:
        """The value of a fixed node, by torch itself. UnsupportedError for several results."""
        needed, waiting = set(), [node]
        while waiting:
            found = waiting.pop()
            if found not in needed and found not in self.tensors:
                needed.add(found)
                waiting += found.all_input_nodes
        for each in self.program.graph.nodes:  # operands first
            if each in needed and each.op == "placeholder":
                self.tensors[each] = self._stored(each)
            elif each in needed:
                arguments = (each.args, each.kwargs)
                args, kwargs = fx.node.map_arg(arguments, lambda n: self.tensors[n])
                self.tensors[each] = each.target(*args, **kwargs)
        value = self.tensors[node]
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(
                f"aten.{operator_name(node.target)} in {module_path(node) or 'the module itself'}: "
                "expected one tensor from an operator without a rule, found several; replace it "
                "in the module"
            )
        dtype_name(value.dtype, node.name)
        return np.array(value.detach().cpu().numpy())

    def _stored(self, node: fx.Node) -> torch.Tensor:
        """The parameter, buffer or constant of the module behind a placeholder."""
        target = self.inputs[node.name].target
        tensor = self.program.state_dict.get(target)
        return self.program.constants[target] if tensor is None else tensor

    def _placeholder(self, node: fx.Node, spec: Any) -> None:
        """Enter an input of the program: one of `forward`, or a parameter, buffer or constant of
        the module that something reads."""
        if spec.kind == InputKind.USER_INPUT:
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                raise UnsupportedError(
                    f"{self.name}: expected tensors as inputs, found {value!r} for {node.name}"
                )
            dtype = dtype_name(value.dtype, f"input {node.name}")
            shape = tuple(int(size) for size in value.shape)
            self.results[node] = self.builder.input(node.name, dtype, shape)
            return
        if not node.users:  # num_batches_tracked and the like
            return
        tensor = self._stored(node)
        dtype_name(tensor.dtype, str(spec.target))
        array = np.array(tensor.detach().cpu().numpy())
        self.results[node] = self.builder.constant(str(spec.target), array)

    def _call(self, node: fx.Node) -> Result:
        call = AtenCall(node, self.builder, self.results)
        try:
            result = RULES[operator_name(node.target)](call)
        except ValueError as error:
            raise UnsupportedError(f"{call.where}: {error}; replace it in the module") from error
        names = [result] if isinstance(result, str) else list(result)
        metas = [call.meta] if isinstance(result, str) else list(call.meta)
        for name, meta in zip(names, metas, strict=True):
            if name and call.shape_of(name) != tuple(meta.shape):
                raise call.unsupported(f"shape {list(meta.shape)}", list(call.shape_of(name)))
        return result

    def _outputs(self) -> list[str]:
        (output,) = (node for node in self.program.graph.nodes if node.op == "output")
        names = []
        specs = self.program.graph_signature.output_specs
        for index, (node, spec) in enumerate(zip(output.args[0], specs, strict=True)):
            if spec.kind != OutputKind.USER_OUTPUT:  # a module in place also changes its input
                continue
            result = self.results.get(node) if isinstance(node, fx.Node) else None
            if not isinstance(result, str):
                raise UnsupportedError(
                    f"{self.name}: expected tensors as outputs, found {node!r} at place {index}"
                )
            names.append(result)
        return names
