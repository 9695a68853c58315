"""A folder of recordings: integers from the microphone's samples on, a recurrent net, streaming C.

Shows:  features computed in integers, an LSTM trained in integers, and one step of it as C, which
        keeps its states from frame to frame.
Needs:  a C compiler; for the instruction count arm-none-eabi-gcc and qemu-system-arm.
Run:    python examples/keyword_spotting.py [FOLDER]
        (FOLDER/train/WORD/*.wav and FOLDER/test/WORD/*.wav, 16 bits, 8 or 16 kHz; without it four
        "words" are made: sounds that rise, fall, stay and warble)
Prints: the same on every machine, but for the instructions, which are the compiler's

    320 recordings of 4 words at 8000 Hz: 36 frames of 32 features
    80 of 80 right; parameters 61990378c0dbfdea
    C: 68,124 bytes of constants, 1,472 bytes of RAM, 384 bytes of states
    'warble', frame by frame: up up warble warble warble warble
    20 steps on training, torch, c; same bits: True
    282,188 instructions for a frame of 16 ms on a Cortex-M3
"""

import shutil
import sys
import wave
from pathlib import Path

import numpy as np

import samebits as sb
from samebits.data import load
from samebits.errors import SamebitsError

OUT = Path("build/examples/keyword_spotting")
RATE = 8000


def sounds(folder: Path) -> Path:
    """Four words, 100 recordings of each: a triangle wave with noise whose pitch moves in a way of
    its own. All in integers, so that every machine makes the same files."""
    rng = np.random.default_rng(0)
    for index in range(400):
        word = ("down", "flat", "up", "warble")[index % 4]
        length, low = rng.integers((3200, 300), (4800, 600))
        high, middle = rng.integers((1500, 600), (2500, 1500))
        time = np.arange(length)
        pitch = {  # in Hz
            "down": high - (high - low) * time // length,
            "flat": np.full(length, middle),
            "up": low + (high - low) * time // length,
            "warble": middle * (2000 + abs(16 * time % RATE - RATE // 2)) // 4000,
        }[word]
        tone = 4 * (abs(np.cumsum(pitch) % RATE - RATE // 2) - RATE // 4)  # -8000 .. 8000
        tone = tone * np.minimum(time, 800) // 800 + rng.integers(-900, 900, length)
        path = folder / ("train" if index < 320 else "test") / word / f"{index}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(tone.astype("<i2").tobytes())
    return folder


def main(folder: Path) -> None:
    """Train on recordings, compile, and listen to one frame by frame."""
    shutil.rmtree(OUT / "run", ignore_errors=True)  # what an earlier run left
    data = load(str(folder))
    frames, features = data.input_shape
    print(
        f"{len(data.train_labels)} recordings of {data.classes} words at {data.rate} Hz: ", end=""
    )
    print(f"{frames} frames of {features} features")
    adam = sb.Optimizer(optimizer="adam", lr=0.005)
    run = sb.fit(data, "lstm", OUT / "run", sb.Training(epochs=6, batch=32), adam)
    right, total = run.result.correct, run.result.test_count
    print(f"{right} of {total} right; parameters {run.sha256[:16]}")

    net = sb.load(run.folder)  # one time step: what it hears, and its states
    made = net.compile(OUT / "c", sb.Packaging(cpu="cortex-m3"))  # and OUT/c/audio, the features
    memory = made.memory
    print(f"C: {memory.constants:,} bytes of constants, {memory.arena:,} bytes of RAM, ", end="")
    print(f"{memory.state:,} bytes of states")

    sound, *states = net.inputs
    given = {state.name: np.zeros(state.shape, np.float32) for state in states}
    heard = []
    for frame in data.values(data.test_images)[-1]:
        logits, *after = net.run({sound.name: frame[None, None], **given}, "torch").values()
        given = {state.name: value for state, value in zip(states, after, strict=True)}
        heard.append(data.class_names[logits.argmax()])
    word = data.class_names[data.test_labels[-1]]
    print(f"{word!r}, frame by frame:", *heard[5::6])

    checked = net.verify("random:20", ["training", "torch", "c"])
    print(f"{checked.samples} steps on training, torch, c; same bits: {checked.same_bits}")
    cost = net.profile("cortex-m3").total
    print(f"{cost:,} instructions for a frame of 16 ms on a Cortex-M3")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else sounds(OUT / "recordings"))
    except SamebitsError as error:  # what is missing here: a sentence, and no traceback
        raise SystemExit(str(error)) from None
