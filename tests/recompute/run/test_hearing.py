"""A step in BFP that is traced runs without its plan, and says so."""

from recompute_nets import make
from samebits.progress import Listener, listening
from samebits.recompute.plan.schedule import compile_schedule
from samebits.recompute.run.apply import Executor
from samebits.recompute.run.profile import survey
from samebits.train.run.trace import Recorder


class Notes(Listener):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def test_a_traced_step_says_that_it_has_no_plan():
    """Its hashes are those of the step without a plan, as it is that step."""
    case, notes = make("resnet8", "bfp"), Notes()
    tape, network = survey(case.model, case.inputs, case.loss)
    run = Executor(tape, network, compile_schedule(network, network.choices()))
    recorder, found = Recorder(case.model), []
    with listening(notes):
        for forward in (case.model, run, run):
            with recorder.forward_pass():
                loss = case.loss(forward(case.inputs))
            loss.backward()
            recorder.shard_ends(loss)
            found.append(recorder.take())
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    assert notes.texts == [
        "steps run without the plan while they are traced: a trace hears modules"
    ]


def test_sums_are_kept_as_codes():
    """Of 16 bits before a batch norm and of 8 elsewhere; but for the model's output, of which the
    loss reads 32."""
    case = make("resnet8", "bfp")
    tape, network = survey(case.model, case.inputs, case.loss)
    assert set(tape.widths.values()) == {8, 16}
    assert tape.output not in tape.widths
    run = Executor(tape, network, compile_schedule(network, ()))
    state, _ = run.run_forward(case.inputs, False)
    wide = [v for v, (value, *_) in state.values.items() if value.sums is not None]
    assert wide == [tape.output]
