"""`Network`: a model as the front door gives it, and all that can be done with one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from samebits import progress
from samebits.errors import (
    FidelityError,
    FidelityWarning,
    InputError,
    SamebitsError,
)
from samebits.ir import Graph, Value
from samebits.model import Model
from samebits.recipes import (
    Accelerator,
    FineTuning,
    Given,
    Packaging,
    Recipe,
    reading_of,
    takes,
)
from samebits.reports.report import Report, Reported, printable, section
from samebits.results import CompiledNetwork, Firmware, Generation, Profile, Trace, Verification
from samebits.settled import outside, settled

if TYPE_CHECKING:
    from samebits.contract import Contract
    from samebits.predictions import Prediction
    from samebits.quantization import Fidelity, Held, QuantizationReport, RecurrentReport
    from samebits.reports.page.network import NetworkFacts
    from samebits.reports.page.verdict import BackendsCompared

Array = np.ndarray[Any, Any]
MEASURED = 8  # samples on which a page says what layers lose
TARGETS = ("c", "npu")


@dataclass(frozen=True, eq=False, repr=False)
class Network(Reported):
    """A float network, a quantized network or firmware.

    model:        as data
    quantization: what quantization did to it, where this session quantized it
    notes:        sentences about it that its user should read
    held:         the float network that this session quantized, and samples of the calibration to
                  measure its integers on
    """

    model: Model
    quantization: QuantizationReport | RecurrentReport | None = None
    notes: tuple[str, ...] = ()
    held: Held | None = None

    @property
    def fidelity(self) -> Fidelity | None:
        """How much the integers keep of the float network; None where nobody has measured it."""
        return self.model.fidelity

    @property
    def origin(self) -> tuple[Graph, Sequence[Sequence[Array]]] | None:
        """The float network and a few samples, of one without states."""
        if self.held is None or self.held.sequences:
            return None
        return self.held.graph, self.held.first[:MEASURED]

    @settled
    def check_fidelity(self, floor: float | None = None) -> None:
        """FidelityError for a verdict below a floor in dB; without one, and for what lies above it,
        FidelityWarning where the integers have lost the network."""
        verdict = self.model.fidelity
        if verdict is None:
            return
        if floor is not None and verdict.below(floor):
            raise FidelityError(f"{self.source}: {verdict.refusal(floor)}")
        if text := verdict.warning():
            warnings.warn(f"{self.source}: {text}", FidelityWarning, stacklevel=outside())

    @property
    def source(self) -> str:
        """Where it came from."""
        return self.model.source

    @cached_property
    def kind(self) -> str:
        """float network, quantized network, integer network or firmware."""
        from samebits.reports.facts import kind_name

        return kind_name(self.model)

    @property
    def quantized(self) -> bool:
        """Whether it has an integer form, which backends compute."""
        return self.kind in ("quantized network", "integer network")

    @cached_property
    def interface(self) -> Graph:
        """The graph whose inputs and outputs it takes and gives: integers where it has them."""
        if self.model.firmware is not None or self.quantized:
            return self.model.interface
        return self.model.real

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Names, types, shapes and scales of what it takes; states of a step graph last."""
        return tuple(self.interface.values[name] for name in self.interface.inputs)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The same of what it gives."""
        return tuple(self.interface.values[name] for name in self.interface.outputs)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, part)) for part in (self.inputs, self.outputs))
        return f"<{self.kind} {self.source}: {inputs} -> {outputs}>"

    @settled
    @takes(data="samples")
    def run(
        self,
        samples: Any,
        backend: str | None = None,
        *,
        codes: bool = False,
    ) -> dict[str, Array]:
        """The outputs for samples, by name: real numbers in binary32, of firmware in binary16.

        samples: as `verify` takes them
        backend: a name; by default the one that defines the bits. A float network has none: it is
                 computed in binary64
        codes:   the integers of a quantized network instead

        Raises InputError for samples that do not fit, or a backend that cannot run here.
        """
        from samebits.verification.inputs import dequantize, given_codes
        from samebits.verification.registry import usable
        from samebits.verification.run import reference_of, run_float

        if self.kind == "float network":
            if backend is not None or codes:
                raise InputError(
                    f"{self.source}: expected a quantized network for a backend and for codes, "
                    "found a float one; quantize it first, or leave backend and codes out"
                )
            return run_float(self.model, samples)
        chosen = usable(backend or reference_of(self.model), self.model)
        arrays = chosen.run(self.model, given_codes(samples, self.model))
        found = zip(self.outputs, arrays, strict=True)
        if codes or self.kind == "firmware":
            return {value.name: array for value, array in found}
        return {
            value.name: array if array.dtype.kind == "f" else dequantize(array, value)
            for value, array in found
        }

    @settled
    @takes(data="data")
    def predict(self, data: Any, backend: str | None = None) -> Prediction:
        """Named answers for raw data, one for every sample that is given, in its order: classes
        with their scores, the labels that hold, or values in their unit. The same from every
        backend.

        data:    a pandas.DataFrame or a table, whose columns are taken by name in any order; images
                 or recordings: a folder, a file, a list of files; an array of raw rows in the order
                 of the contract's columns, or of images as uint8; Pillow's images; or what `verify`
                 takes. Labels are not needed
                 Arrays in `sb.prepared` are what the network itself takes, such as rows that are
                 standardised already
        backend: as `run` takes it

        Raises InputError for a network whose contract has no rule for its output, and for data that
        does not fit its contract: one error lists all columns that lack and all that are besides.
        """
        from samebits.predictions import predict

        return predict(self.model, data, backend)

    @settled
    @takes(data="samples")
    def verify(
        self,
        samples: Any = "random:100",
        backends: Sequence[str] | None = None,
        *,
        available: bool = False,
        signers: str | Path | None = None,
        seed: int | None = None,
        raw: bool = False,
    ) -> Verification:
        """Compute samples on several backends and compare them for equality, without tolerance.

        samples:   real numbers or codes: an array, a tensor, a dict of them, a DataLoader or
                   another iterable, an .npz file; all samples of a folder, a table, a DataFrame of
                   pandas or a Dataset, in their order, or what `sb.read` gave; or random:N codes of
                   (seed, input)
        backends:  names. Each must be able to run here, else InputError says what is missing. None:
                   the usual ones that can run, onnxruntime in its integer form where binary32 may
                   differ, and the result says which were left out
        available: every backend of this kind of model that can run here, instead
        signers:   of a folder: a file of allowed signers (`man ssh-keygen`), one of whom must have
                   signed its report.json, of a training folder its result.json
        raw:       samples are raw rows or images, as `predict` takes them, and answers are compared
                   too: C computes all from raw values (docs/spec/tables.md 5)

        Of a folder that `compile` or `ship` wrote, all files are checked first, and backends of
        generated C build the C of that folder. Where one differs, is missing or is not of the
        package, where another version wrote it, or where no signature of `signers` holds, nothing
        is built or run, and the result is false: `refused` says why. Of a folder of firmware and of
        a training folder the files are compared with the SHA-256 that it states; `checked` says
        what that leaves open.

        Raises InputError for a float network, unknown names and samples that do not fit.
        """
        from samebits.predictions import compared
        from samebits.verification.inputs import name_of
        from samebits.verification.run import chosen_backends
        from samebits.verification.sealed import check_folder

        if isinstance(backends, str):
            raise InputError(
                f"backends: expected a list of names, found the text {backends!r}; give a list"
            )
        names, strict = chosen_backends(self.model, backends, available)
        folder = check_folder(self.model, signers)
        if folder.refused:
            return Verification(self.source, 0, {}, (), refused=folder.refused)
        usual = backends is None and not available
        count, ports, expected, verdicts = compared(
            folder.model, samples, names, strict, usual, seed, raw
        )
        return Verification(
            self.source,
            count,
            dict(zip(ports.outputs, expected, strict=True)),
            tuple(verdicts),
            name_of(samples),
            reading_of(samples)[1].to_dict(),
            int(seed or 0),
            *folder.said,
        )

    @settled
    def rebuild(self, out: str | Path) -> str:
        """Write the package of C that this network was read from once more: from its model file and
        the options that its report.json states come the same bytes again, in `out`. Gives the
        SHA-256 of report.json.

        Raises InputError for a network from elsewhere and where `out` holds other files;
        PackageError where another version wrote the package, or its report cannot be read.
        """
        from samebits.verification.package import rebuild

        return rebuild(self.model, Path(out).absolute())

    @property
    def contract(self) -> Contract:
        """The meaning of its inputs and outputs, as far as it is known."""
        return self.model.meaning

    @settled
    def with_contract(self, contract: Contract | Mapping[str, Any] | str | Path) -> Network:
        """The network with what its author says of it: its name and version, what inputs and
        outputs mean. It stands in the files, the C and the pages that are made of it.

        contract: a Contract, JSON data or the name of a file of it (docs/guide/files.md); what it
                  leaves out stays as it was

        Raises InputError for what is no contract, or of other inputs and outputs.
        """
        from samebits.model import described

        return replace(self, model=described(self.model, contract))

    @settled
    def as_steps(self) -> Network:
        """The network as one step of a sequence: recurrent layers and causal attention keep what
        they need in states (docs/spec/graph.md section 1). A step graph itself.

        Raises UnsupportedError where a step would have to wait for later ones.
        """
        from samebits.ir.rewrite import simplify
        from samebits.ir.steps import step_graph

        if self.model.real.states:
            return self
        steps = simplify(step_graph(simplify(self.model.real)))
        return Network(replace(self.model, graph=steps, deployed=None, package=None))

    @settled
    def generate(
        self,
        prompt: str | bytes | Sequence[int],
        tokens: int = 100,
        *,
        seed: int = 0,
        top_k: int | None = None,
        temperature: float = 1.0,
        backends: Sequence[str] = ("torch",),
    ) -> Generation:
        """Tokens that follow a prompt, from a language model, drawn in integers: the same on every
        backend (docs/spec/sampling.md). True where they are.

        prompt:      text, whose bytes are tokens, or tokens
        top_k:       candidates of each draw; None: all
        temperature: 0 takes the most likely token each time
        backends:    reference, torch, or targets of generated C (c, cortex-m3 ...)

        Raises InputError for what does not fit, UnsupportedError for a network that is no language
        model or not quantized.
        """
        from samebits.verification.generation import generate, request_of

        if not self.quantized:
            raise InputError(
                f"{self.source}: expected a quantized language model to draw tokens of, found a "
                f"{self.kind}; quantize it first"
            )
        given = list(prompt.encode() if isinstance(prompt, str) else prompt)
        model = self.as_steps().model
        request = request_of(model, given, tokens, seed, top_k, temperature)
        names = [backends] if isinstance(backends, str) else list(dict.fromkeys(backends))
        return Generation(self.source, tuple(given), seed, generate(model, request, names))

    @settled
    @takes(data="samples")
    def trace(
        self,
        samples: Any = "random:1",
        backend: str | None = None,
        *,
        seed: int | None = None,
    ) -> Trace:
        """The hash of every layer in every run, and the codes where the backend has them.

        `sb.audit` names the first layer where two traces part. Arguments and errors as `run`.
        """
        from samebits.verification.inputs import given_codes
        from samebits.verification.registry import usable
        from samebits.verification.run import reference_of
        from samebits.verification.trace import to_record

        chosen = usable(backend or reference_of(self.model), self.model)
        codes = given_codes(samples, self.model, seed)
        runs = chosen.trace(self.model, codes)
        return Trace(to_record(self.model, self.source, chosen.name, runs))

    @settled
    @takes(data="samples")
    def profile(
        self,
        board: str = "cortex-m3",
        samples: Any = "random:1",
        *,
        seed: int | None = None,
    ) -> Profile:
        """Instructions of every layer's C on an emulated board, for the first of the samples.

        board:   a board that C is built for, such as cortex-m3
        samples: as for `verify`

        Raises InputError for another name, where the board cannot be emulated here or the network
        does not fit it, and for samples that do not fit.
        """
        from samebits.codegen.run.profile import layer_costs
        from samebits.codegen.run.targets import find_board
        from samebits.verification.inputs import given_codes, step

        place = find_board(board)
        graph = self.model.integer
        taken = given_codes(samples, self.model, seed)
        first = [
            codes[: step(graph.values[name])]
            for name, codes in zip(graph.inputs, taken, strict=True)
        ]
        progress.stage("counting instructions")
        layers, total = layer_costs(graph, place, first)
        return Profile(self.source, board, tuple(layers), total)

    @settled
    @takes(Packaging, Accelerator)
    def compile(
        self,
        out: str | Path,
        *recipes: Recipe,
        target: str | None = None,
        sizes: bool | None = None,
        stream: bool | None = None,
        sign: str | Path | None = None,
    ) -> CompiledNetwork | Firmware:
        """Generate portable C, or firmware of the neural processor (which takes float networks).

        out:     folder to write; an earlier one of the same kind is replaced
        recipes: Packaging for C, or Accelerator for firmware
        target:  c or npu; by default that of the recipe, else c
        sizes:   c: whether to build for the boards, to measure flash, RAM and stack
        stream:  c: one step of a sequence (`as_steps`), with `model_step` and its states
        sign:    a private key of yours, or the public one of a key in ssh-agent: report.json.sig is
                 its signature of report.json, by ssh-keygen

        Raises InputError for options of another target, and where `out` holds other files;
        UnsupportedError for operators without a counterpart.
        """
        from samebits.building import firmware_of, package_of

        asked = Given("compile", recipes, Packaging, Accelerator)
        if target is None:
            target = "npu" if Accelerator in asked else "c"
        if target not in TARGETS:
            raise InputError(f"--target: expected one of {', '.join(TARGETS)}, found {target!r}")
        of_npu = target == "npu"
        others: dict[str, Any] = dict(asked[Packaging if of_npu else Accelerator].chosen())
        if of_npu:
            others |= {"sizes": sizes, "stream": stream}
        for name, value in others.items():
            if value is not None:
                raise InputError(
                    f"--{name.replace('_', '-')} does not apply to --target {target}, found "
                    f"{value}; leave it out, or give --target {'c' if of_npu else 'npu'}"
                )
        if of_npu:
            return firmware_of(self.model, Path(out), asked[Accelerator], sign)
        model = (self.as_steps() if stream else self).model
        return package_of(model, Path(out), asked[Packaging], bool(sizes), sign)

    @settled
    @takes(FineTuning, data="data")
    def finetune(self, data: Any, *recipes: Recipe, device: str = "cpu") -> Network:
        """This quantized classifier trained on: forward its integers, backward straight through.

        Weights and biases change; scales, zero points and tables stay. Which codes come out depends
        on the machine, as training in float32 does; what they compute then does not.

        data:    digits, a folder or file of data for training, or a Dataset; its training samples;
                 or what `sb.read` gave
        recipes: FineTuning

        Raises InputError for a network that is not quantized and for data that does not fit,
        UnsupportedError for operators without a rule for gradients.
        """
        from samebits.data.load import given_data
        from samebits.finetuning import finetune
        from samebits.quantization import QuantizationReport
        from samebits.verification.deployable import deployable
        from samebits.verification.fidelity import measured

        if self.kind != "quantized network":
            raise InputError(
                f"{self.source}: expected a quantized network to fine-tune, found: {self.kind}; "
                "quantize it first"
            )
        shape = self.inputs[0].shape[1:]
        asked, earlier = Given("finetune", recipes, FineTuning), self.model.known
        data, options = reading_of(data)
        data = given_data(data, input_shape=shape, options=options, earlier=earlier)
        if self.model.rate is not None:
            data.check_rate(self.model.rate)
        made = finetune(self.model.real, data, asked[FineTuning], device)
        report = self.quantization
        if isinstance(report, QuantizationReport):
            report = replace(report, changes=(*report.changes, *made.changes))
        losses = " to ".join(f"{loss:.4g}" for loss in (made.losses[0], made.losses[-1]))
        note = (
            f"fine-tuned on {data.source}: {made.steps} steps, mean loss of the first and last "
            f"epoch {losses}; ratios of tensors were measured before"
        )
        model = deployable(replace(self.model, graph=made.graph))
        verdict = None if self.held is None else measured(model, self.held)
        kept = replace(model, fidelity=verdict)
        net = Network(kept, report, (*self.notes, note), self.held)
        net.check_fidelity()
        return net

    @settled
    def save(self, path: str | Path) -> Path:
        """Write the network: .onnx (QDQ form where it is quantized), .tflite or, of firmware, .nnp.

        A .tflite file of a quantized network states the meaning `tflite`: its own codes are those
        of TensorFlow Lite Micro, single ones other than this network's (docs/spec/tflite.md).

        Raises InputError for another ending, UnsupportedError with every operator that a .tflite
        file cannot have.
        """
        path, wanted = Path(path), ".nnp" if self.kind == "firmware" else ".onnx or .tflite"
        if path.suffix not in wanted.split(" or "):
            raise InputError(f"{path}: expected a name ending in {wanted} for a {self.kind}")
        if path.suffix == ".tflite":
            from samebits.tflite.export import save as save_lite

            save_lite(self.model.lite, self.model.integer, self.model.meaning, path)
        elif self.model.firmware is not None:
            from samebits.npu.machine.image import write_program

            write_program(path, self.model.program, self.model.image)
        else:
            from samebits.onnx import save_qdq

            save_qdq(self.model.real, path, facts=self.model.facts)
        return path

    @settled
    @takes(data="samples")
    def report(
        self,
        samples: Any = None,
        *,
        verified: Verification | None = None,
        against: Network | None = None,
        board: str | None = None,
        clock: str | None = None,
        run: str | Path | None = None,
        saved: str | Path | CompiledNetwork | None = None,
        seed: int | None = None,
    ) -> Report:
        """A summary: inputs, outputs, layers, bytes, multiply-adds, formats, hash; and the cost of
        quantization, where this session quantized it. `save("page.html")` writes the page of the
        network: its graph, every layer, memory over time, weights and tables.

        samples: as `verify` takes them: the usual backends are compared on them, and the page says
                 what every layer loses on the first of them
        verified: what `verify` gave, instead of comparing again
        against: the float network that this one was quantized from, to measure losses against
        board:   counts every layer's instructions on this emulated board, as `profile`, and
                 measures flash, RAM and stack, as `compile`
        clock:   of that board, such as 64MHz: the page estimates the time of a run
        run:     a training folder, whose curves the page shows; without samples the answers to its
                 own test samples are measured, where its data is still there
        saved:   where the network lies, for the commands that the page shows, if not in its source;
                 or the C compiled of it, whose figures the page states
        seed:    of random:N samples; beside `verified` its own is taken

        Raises InputError for samples that do not fit and options that do not apply.
        """
        from samebits.reports.page.firmware import firmware_sections
        from samebits.reports.page.network import check_options, network_sections
        from samebits.reports.page.quality import quality_text
        from samebits.reports.quantization import fidelity_section, quantization_sections
        from samebits.reports.summary import network_summary
        from samebits.verification import inputs
        from samebits.verification.evaluate import quality_for_page
        from samebits.verification.meanings import other_meaning
        from samebits.verification.quality import Quality

        quality, unmeasured = quality_for_page(self.model, samples, run)
        samples = None if isinstance(samples, Quality) else samples
        check_options(self, samples is not None, against, board, clock)
        if verified is not None:
            if seed is not None:
                raise InputError(
                    f"--seed {seed}: expected none beside `verified`, which keeps the seed of its "
                    "own samples; leave it out"
                )
            seed = verified.seed if samples is None or inputs.is_random(samples) else None
        else:
            by_board = board is not None and samples is None
            inputs.check_seed(seed, "random:1" if by_board else samples)
        given = None
        chosen = reading_of(samples)[1].to_dict()
        if samples is not None:  # without, it may have no integer form
            given = inputs.read_once(samples, self.interface, self.model)
        summary = network_summary(self.source, self.kind, self.model)
        sections = [*quality_text(quality), *summary.sections]
        other = "" if given is None else other_meaning(self.model, given, seed)
        sections += [section(other)] if other else []
        cost = [] if self.quantization is None else quantization_sections(self.quantization)
        if self.notes and cost:
            cost.append(section(*(f"note: {note}" for note in self.notes)))
        sections += cost
        if self.fidelity is not None:
            sections.append(fidelity_section(self.fidelity))
        if samples is not None and verified is None:
            name = inputs.name_of(samples)
            verified = replace(self.verify(given, seed=seed), inputs=name, reading=chosen)
            sections += verified.report().sections
        compared = None if verified is None else self._compared(verified)
        made = saved if isinstance(saved, CompiledNetwork) else None
        place = self.source if saved is None else str(saved if made is None else made.folder)
        if self.model.firmware is not None:
            return Report(
                summary.title,
                summary.summary,
                sections,
                lambda: firmware_sections(self.model, compared, place),
            )
        facts = replace(
            self._facts(given, against, board, seed),
            quality=quality,
            unmeasured=unmeasured,
            clock=clock or "",
            cpu="" if made is None else made.memory.cpu,
            compared=compared,
            cost=cost,
            saved=place,
            other_meaning=other,
            run=None if run is None else Path(run),
        )
        if made is not None:
            facts = replace(facts, needs=made.targets)
        return Report(
            summary.title,
            summary.summary,
            sections,
            lambda: network_sections(self.model, self.kind, facts),
        )

    # --- inside ---------------------------------------------------------------------------------

    def _compared(self, v: Verification) -> BackendsCompared:
        from samebits.reports.page.verdict import BackendsCompared
        from samebits.verification.run import reference_of

        reference = reference_of(self.model)
        return BackendsCompared(reference, v.samples, v.inputs, v.verdicts, v.reading, v.seed)

    def _facts(
        self, samples: Any, against: Network | None, board: str | None, seed: int | None
    ) -> NetworkFacts:
        """The facts that a page states of the network besides what is in it."""
        from samebits.codegen.run.requirements import requirements
        from samebits.codegen.run.targets import find_board
        from samebits.ir.canonical import canonicalize
        from samebits.reports.page.network import NetworkFacts
        from samebits.verification.inputs import chunks, given_reals

        origin, reals = self.origin or (None, [])
        if against is not None:
            origin = canonicalize(against.model.real)
        if samples is not None:
            given = given_reals(samples, self.interface, seed)
            reals = chunks(self.interface, given)[:MEASURED]
        facts = NetworkFacts(samples=reals, origin=origin)
        if board is None:
            return facts
        find_board(board)
        try:
            profile = self.profile(board, "random:1" if samples is None else samples, seed=seed)
            needs = [requirements(self.model.integer, board)]
        except SamebitsError as error:
            why = f"Instructions on {board} were not counted: {printable(str(error))}"
            return replace(facts, uncounted=why)
        return replace(facts, profile=(board, profile.layers, profile.total), needs=needs)
