"""Inputs of the networks of quality_networks.py, made as their packages make them.

Pictures of CIFAR-10 pasted into scenes, spoken digits in a row, drawn faces, texts rendered with
Pillow's own font, files of many types: all from seeds. Seeds of different parity share no picture
and no recording, so that a network can be quantized with one and measured with the other.
"""

from __future__ import annotations

import functools
import io
import json
import tarfile
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from quality_networks import BYTES, CQT

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Sampler = Callable[["Source", Rng], dict[str, Array]]

TEXT = (
    "the small river runs past an old stone bridge where people meet every morning before work "
    "starts and nobody asks why letters from distant towns arrive late or who carried them over "
    "green hills in heavy rain but children know that each story ends well if someone keeps time"
)
WORDS = TEXT.split()


def samples(name: str, count: int, seed: int, data: Path, models: Path) -> dict[str, Array]:
    """Inputs of a network by name, [count, ...]; of one with states [count, calls, ...].

    data: the folder of cifar10_jpeg.tar and fsdd.tar. models: what `prepare` wrote, since inputs of
    some networks are outputs of others
    """
    source = Source(data, models, seed % 2)
    rng = np.random.default_rng([seed, *name.encode()])
    made = [SAMPLERS[name](source, rng) for _ in range(count)]
    return {key: np.stack([one[key] for one in made]) for key in made[0]}


class Source:
    """Pictures, speech and texts of one half of the data, and the networks that prepare inputs."""

    def __init__(self, data: Path, models: Path, half: int) -> None:
        self._data, self._models, self._half = data, models, half

    def session(self, name: str) -> onnxruntime.InferenceSession:
        """A network of the folder in onnxruntime."""
        return _session(self._models / f"{name}.onnx")

    def picture(self, rng: Rng, side: int) -> Image.Image:
        """One picture of 32 x 32, enlarged."""
        held = _pictures(self._data)[self._half :: 2]
        small = Image.open(io.BytesIO(held[rng.integers(len(held))]))
        return small.resize((side, side), Image.Resampling.BICUBIC)

    def jpeg(self, rng: Rng) -> bytes:
        """The file of a picture."""
        held = _pictures(self._data)[self._half :: 2]
        return held[rng.integers(len(held))]

    def wav(self, rng: Rng) -> bytes:
        """The file of a spoken digit."""
        held = _recordings(self._data)[self._half :: 2]
        return held[rng.integers(len(held))]

    def scene(self, rng: Rng, side: int) -> Image.Image:
        """One picture as the background, three to six smaller ones in front of it."""
        scene = self.picture(rng, side)
        for _ in range(rng.integers(3, 7)):
            size = int(rng.integers(side // 6, side // 2))
            left, top = rng.integers(0, side - size, 2)
            scene.paste(self.picture(rng, size), (int(left), int(top)))
        return scene

    def faces(self, rng: Rng, side: int) -> Image.Image:
        """A scene with one or two drawn faces, which face detectors take for faces, if weakly."""
        image = self.scene(rng, side)
        for _ in range(rng.integers(1, 3)):
            width = side * rng.uniform(0.2, 0.4)
            left, top = rng.uniform(0, side - width), rng.uniform(0, side - 1.3 * width)
            _draw_face(ImageDraw.Draw(image), left, top, width, rng.uniform(0.7, 1.1))
        return image.filter(ImageFilter.GaussianBlur(side / 270))

    def speech(self, rng: Rng, count: int, rate: int = 16000) -> Array:
        """`count` samples of spoken digits with short pauses; the peak is between 0.2 and 0.9."""
        parts: list[Array] = []
        while sum(map(len, parts)) < count:
            parts += [_samples(self.wav(rng), rate), np.zeros(int(rng.uniform(0.02, 0.3) * rate))]
        joined = np.concatenate(parts)
        start = rng.integers(0, len(joined) - count + 1)
        taken = joined[start : start + count] + rng.normal(0, 3e-4, count)
        return np.asarray(taken / np.abs(taken).max() * rng.uniform(0.2, 0.9), np.float32)

    def noisy(self, rng: Rng, count: int) -> Array:
        """Speech in noise, 0 to 15 dB below it."""
        clean = self.speech(rng, count)
        noise = np.convolve(rng.normal(size=count), [1, 0.8, 0.5, 0.2], "same")
        level = np.sqrt(np.mean(clean**2) / np.mean(noise**2)) * 10 ** (-rng.uniform(0, 15) / 20)
        mixed = clean + level * noise
        return np.asarray(mixed / max(1, np.abs(mixed).max()), np.float32)

    def embeddings(self, rng: Rng, windows: int) -> Array:
        """Speech embeddings of windows that begin 80 ms after one another, [windows, 96]."""
        frames = 76 + 8 * (windows - 1)
        pcm = np.round(self.speech(rng, (frames + 3) * 160)[None] * 32767)
        mel = _mel_of(self.session("melspectrogram"), pcm)
        cut = np.stack([mel[8 * i : 8 * i + 76, :, None] for i in range(windows)])
        (found,) = self.session("embedding").run(None, {"input_1": cut})
        return np.asarray(found.reshape(windows, 96))


def _draw_face(
    draw: ImageDraw.ImageDraw, left: float, top: float, width: float, light: float
) -> None:
    """Hair, head, eyes, brows, nose and mouth; light: brightness of the skin."""

    def box(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float, float, float]:
        return left + x0 * width, top + y0 * width, left + x1 * width, top + y1 * width

    def skin(shade: float) -> tuple[int, int, int]:
        return int(225 * light * shade), int(180 * light * shade), int(150 * light * shade)

    hair, thick = (60, 40, 25), max(1, round(width / 28))
    draw.ellipse(box(-0.06, -0.12, 1.06, 1.0), fill=hair)
    draw.ellipse(box(0, 0, 1, 1.3), fill=skin(1))
    for eye in (0.3, 0.7):
        draw.ellipse(box(eye - 0.09, 0.49, eye + 0.09, 0.59), fill=(250, 250, 250))
        draw.ellipse(box(eye - 0.04, 0.49, eye + 0.04, 0.59), fill=(40, 30, 20))
        draw.line(box(eye - 0.12, 0.43, eye + 0.12, 0.43), fill=hair, width=thick)
    draw.line((*box(0.5, 0.55, 0.45, 0.81), *box(0.45, 0.81, 0.55, 0.81)), skin(0.75), thick)
    draw.ellipse(box(0.33, 0.94, 0.67, 1.03), fill=(180, 80, 80))


@functools.cache
def _pictures(data: Path) -> list[bytes]:
    return _files(data / "cifar10_jpeg.tar", "/test/")


@functools.cache
def _recordings(data: Path) -> list[bytes]:
    return _files(data / "fsdd.tar", ".wav")


def _files(archive: Path, part: str) -> list[bytes]:
    """The files of an archive whose path has this part, by name."""
    found = {}
    with tarfile.open(archive) as opened:
        for entry in opened:
            content = opened.extractfile(entry) if part in entry.name else None
            if content is not None:
                found[entry.name] = content.read()
    return [found[name] for name in sorted(found)]


@functools.cache
def _session(model: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def _samples(file: bytes, rate: int) -> Array:
    """A recording at another rate, between -1 and 1, interpolated linearly."""
    with wave.open(io.BytesIO(file)) as opened:
        given = opened.getframerate()
        pcm = np.frombuffer(opened.readframes(opened.getnframes()), "<i2") / 32768
    times = np.arange(int(len(pcm) * rate / given)) * given / rate
    return np.asarray(np.interp(times, np.arange(len(pcm)), pcm))


def _mel_of(session: onnxruntime.InferenceSession, pcm: Array) -> Array:
    """As openWakeWord has them: [frames, 32], divided by 10 and moved by 2."""
    found = np.asarray(session.run(None, {"input": pcm.astype(np.float32)})[0])
    return np.asarray(found[0, 0] / 10 + 2)


def mel_spectrogram(audio: Array, rate: int, size: int, hop: int, mels: int) -> Array:
    """librosa's melspectrogram in dB below its peak, (dB + 40) / 40: [frames, mels]."""
    padded = np.pad(audio, size // 2)
    starts = np.arange(0, len(padded) - size + 1, hop)
    frames = padded[starts[:, None] + np.arange(size)]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    power = np.abs(np.fft.rfft(frames * window)) ** 2 @ _mel_filters(rate, size, mels).T
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    decibels -= decibels.max()
    return np.asarray((np.maximum(decibels, -80) + 40) / 40, np.float32)


@functools.cache
def _mel_filters(rate: int, size: int, mels: int) -> Array:
    """Triangles of one area on Slaney's scale: linear below 1 kHz, logarithmic above."""
    step = np.log(6.4) / 27
    top = 15 + np.log(rate / 2 / 1000) / step
    scale = np.linspace(0, top, mels + 2)
    edges = np.where(scale < 15, scale * 200 / 3, 1000 * np.exp(step * (scale - 15)))
    bins = np.arange(size // 2 + 1) * rate / size
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    return np.asarray(triangles * 2 / (edges[2:] - edges[:-2])[:, None])


def sentence(rng: Rng, words: int) -> str:
    """Words in any order."""
    return " ".join(WORDS[i] for i in rng.integers(len(WORDS), size=words)).capitalize()


def line(rng: Rng, words: int, height: int = 48) -> Image.Image:
    """A rendered line of text, dark on light or light on dark."""
    text = sentence(rng, words)
    font = ImageFont.load_default(size=int(rng.integers(height // 2, height * 3 // 4)))
    left, top, right, bottom = font.getbbox(text)
    paper, ink = rng.integers(170, 256, 3), rng.integers(0, 90, 3)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    image = Image.new(
        "RGB", (int(right - left) + 16, int(bottom - top) + 12), tuple(paper.tolist())
    )
    ImageDraw.Draw(image).text((8 - left, 6 - top), text, fill=tuple(ink.tolist()), font=font)
    return image


def page(source: Source, rng: Rng, side: int) -> Image.Image:
    """Two to four lines of text on a picture."""
    image = source.picture(rng, side)
    for top in np.linspace(4, side - 36, int(rng.integers(2, 5))):
        text = line(rng, int(rng.integers(1, 4)), int(rng.integers(20, 36)))
        image.paste(text, (int(rng.integers(0, side // 3)), int(top)))
    return image


def chords(rng: Rng, count: int, rate: int) -> Array:
    """Plucked strings, two or three at a time, a new chord every 0.2 to 0.6 s."""
    audio = np.zeros(count)
    start = 0
    while start < count:
        times = np.arange(count - start) / rate
        for pitch in rng.choice(np.arange(40, 80), rng.integers(1, 4), replace=False):
            base = 440 * 2 ** ((pitch - 69) / 12)
            for harmonic in range(1, 9):
                tone = np.sin(2 * np.pi * base * harmonic * times + rng.uniform(0, 6))
                audio[start:] += tone * np.exp(-(1.5 + harmonic) * times) / harmonic
        start += int(rng.uniform(0.2, 0.6) * rate)
    return np.asarray(audio / np.abs(audio).max() * rng.uniform(0.3, 0.9), np.float32)


def planes(image: Image.Image) -> Array:
    """[3, height, width], 0 to 255."""
    return np.asarray(image, np.float32).transpose(2, 0, 1)


def _text_input(image: Image.Image, width: int) -> Array:
    """As PaddleOCR: 48 high, -1 to 1, zeros to the right."""
    wide = min(width, -(-48 * image.width // image.height))
    padded = np.zeros((3, 48, width), np.float32)
    padded[:, :, :wide] = planes(image.resize((wide, 48))) / 127.5 - 1
    return padded


def _silero_vad(source: Source, rng: Rng) -> dict[str, Array]:
    """Frames of 512 samples, each after the last 64 of the one before."""
    audio = np.concatenate([np.zeros(64, np.float32), source.speech(rng, 32 * 512)])
    return {"input": np.stack([audio[i : i + 576] for i in range(0, 32 * 512, 512)])[:, None]}


def _blocks(source: Source, rng: Rng) -> Array:
    """64 blocks of 512 noisy samples, 128 after one another."""
    audio = np.concatenate([np.zeros(384, np.float32), source.noisy(rng, 64 * 128)])
    return np.stack([audio[i : i + 512] for i in range(0, 64 * 128, 128)])


def _dtln_mask(source: Source, rng: Rng) -> dict[str, Array]:
    spectra = np.abs(np.fft.rfft(_blocks(source, rng)))
    return {"input_2": spectra.astype(np.float32)[:, None, None]}


def _dtln_signal(source: Source, rng: Rng) -> dict[str, Array]:
    """Blocks behind the first network's mask."""
    session, state = source.session("mask"), np.zeros((1, 2, 128, 2), np.float32)
    found = []
    for spectrum in np.fft.rfft(_blocks(source, rng)):
        size = np.abs(spectrum).astype(np.float32)[None, None]
        mask, state = session.run(None, {"input_2": size, "input_3": state})
        found.append(np.fft.irfft(mask[0, 0] * spectrum))
    return {"input_4": np.asarray(found, np.float32)[:, None, None]}


def _speech_embedding(source: Source, rng: Rng) -> dict[str, Array]:
    pcm = np.round(source.speech(rng, 79 * 160)[None] * 32767)
    return {"input_1": _mel_of(source.session("melspectrogram"), pcm)[:, :, None]}


def _wake_word(key: str, windows: int) -> Sampler:
    return lambda source, rng: {key: source.embeddings(rng, windows)}


def _dnsmos_p808(source: Source, rng: Rng) -> dict[str, Array]:
    return {"input_1": mel_spectrogram(source.noisy(rng, 144000), 16000, 321, 160, 120)[:900]}


def _basic_pitch(source: Source, rng: Rng) -> dict[str, Array]:
    music, voice = chords(rng, 43844, 22050), source.speech(rng, 43844, 22050)
    mixed = music + np.float32(rng.choice([0, 0.3])) * voice
    (found,) = source.session("basic_pitch.front").run(
        None, {"serving_default_input_2:0": mixed[None, :, None]}
    )
    return {CQT: found[0]}


def _swift_f0(source: Source, rng: Rng) -> dict[str, Array]:
    """One second."""
    audio = source.speech(rng, 16000)[None]
    (found,) = source.session("swift_f0.front").run(None, {"audio": audio})
    return {"v352": found[0]}


def _ppocr_det(source: Source, rng: Rng) -> dict[str, Array]:
    return {"x": planes(page(source, rng, 160)) / 127.5 - 1}


def _ppocr_rec(source: Source, rng: Rng) -> dict[str, Array]:
    return {"x": _text_input(line(rng, int(rng.integers(1, 6))), 320)}


def _ppocr_cls(source: Source, rng: Rng) -> dict[str, Array]:
    text = line(rng, int(rng.integers(1, 5)))
    turned = text.rotate(180) if rng.random() < 0.5 else text
    return {"x": _text_input(turned, 192)}


def _magika(source: Source, rng: Rng) -> dict[str, Array]:
    """The first and the last 1,024 bytes of a file, without blanks around them; 256 pads."""
    content = FILES[rng.integers(len(FILES))](source, rng)
    begin = [*content[:4096].lstrip()[:1024]]
    end = [*content[-4096:].rstrip()[-1024:]]
    left, right = [256] * (1024 - len(begin)), [256] * (1024 - len(end))
    row = np.asarray([[*begin, *left, *right, *end]], np.int32)
    (found,) = source.session("magika.front").run(None, {"bytes": row})
    return {BYTES: found[0]}


def _python(source: Source, rng: Rng) -> bytes:
    modules = sorted(Path(json.__file__).parents[1].glob("*.py"))
    return modules[rng.integers(len(modules))].read_bytes()


def _text(source: Source, rng: Rng) -> bytes:
    return ". ".join(sentence(rng, 9) for _ in range(rng.integers(2, 60))).encode()


def _json(source: Source, rng: Rng) -> bytes:
    rows = [{"id": int(rng.integers(9999)), "name": sentence(rng, 2)} for _ in range(20)]
    return json.dumps(rows, indent=2).encode()


def _csv(source: Source, rng: Rng) -> bytes:
    rows = [f"{i},{rng.normal():.3f},{sentence(rng, 2)}" for i in range(rng.integers(9, 90))]
    return "\n".join(["id,value,name", *rows]).encode()


def _html(source: Source, rng: Rng) -> bytes:
    items = "".join(f"<li><a href='#{i}'>{sentence(rng, 5)}</a></li>\n" for i in range(25))
    head = f"<!DOCTYPE html>\n<html>\n<head><title>{sentence(rng, 3)}</title></head>\n"
    return f"{head}<body>\n<ul>\n{items}</ul>\n</body>\n</html>\n".encode()


def _zip(source: Source, rng: Rng) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", _text(source, rng))
    return packed.getvalue()


def _png(source: Source, rng: Rng) -> bytes:
    packed = io.BytesIO()
    source.picture(rng, 48).save(packed, "PNG")
    return packed.getvalue()


def _nudenet(source: Source, rng: Rng) -> dict[str, Array]:
    return {"images": planes(source.faces(rng, 160)) / 255}


def _centerface(source: Source, rng: Rng) -> dict[str, Array]:
    return {"input.1": planes(source.faces(rng, 160))}


def _mtcnn(key: str, side: int) -> Sampler:
    """Pictures with faces, of the finer networks parts of them, transposed: these networks see
    all on its side."""

    def sample(source: Source, rng: Rng) -> dict[str, Array]:
        image = source.faces(rng, 192)
        if side < 96:
            size = int(rng.integers(40, 100))
            left, top = (int(place) for place in rng.integers(0, 192 - size, 2))
            image = image.crop((left, top, left + size, top + size))
        image = image.resize((side, side), Image.Resampling.BOX)
        return {key: ((planes(image) - 127.5) / 128).transpose(2, 1, 0)}

    return sample


def _open_nsfw(source: Source, rng: Rng) -> dict[str, Array]:
    """256 x 256, of which the middle is taken; blue, green, red without their means."""
    image = source.scene(rng, 256).crop((16, 16, 240, 240))
    means = np.asarray([104, 117, 123], np.float32)
    return {"input:0": np.asarray(image, np.float32)[:, :, ::-1] - means}


def _u2netp(source: Source, rng: Rng) -> dict[str, Array]:
    """One object in front of a plain or pictured background."""
    image = source.picture(rng, 96)
    size = int(rng.integers(36, 72))
    left, top = rng.integers(0, 96 - size, 2)
    image.paste(source.picture(rng, size), (int(left), int(top)))
    pixels = planes(image) / np.asarray(image).max()
    mean = np.asarray([0.485, 0.456, 0.406], np.float32)[:, None, None]
    std = np.asarray([0.229, 0.224, 0.225], np.float32)[:, None, None]
    return {"input.1": ((pixels - mean) / std).astype(np.float32)}


FILES: tuple[Callable[[Source, Rng], bytes], ...] = (
    Source.wav,
    Source.jpeg,
    _python,
    _text,
    _json,
    _csv,
    _html,
    _zip,
    _png,
)

SAMPLERS: dict[str, Sampler] = {
    "silero_vad": _silero_vad,
    "dtln_mask": _dtln_mask,
    "dtln_signal": _dtln_signal,
    "speech_embedding": _speech_embedding,
    "alexa": _wake_word("onnx::Flatten_0", 16),
    "hey_marvin": _wake_word("onnx::Flatten_0", 16),
    "timer": _wake_word("onnx::Flatten_0", 34),
    "dnsmos_p808": _dnsmos_p808,
    "basic_pitch": _basic_pitch,
    "swift_f0": _swift_f0,
    "ppocr_det": _ppocr_det,
    "ppocr_rec": _ppocr_rec,
    "ppocr_cls": _ppocr_cls,
    "magika": _magika,
    "nudenet": _nudenet,
    "centerface": _centerface,
    "mtcnn_pnet": _mtcnn("input_1", 96),
    "mtcnn_rnet": _mtcnn("input_2", 24),
    "mtcnn_onet": _mtcnn("input_3", 48),
    "open_nsfw": _open_nsfw,
    "u2netp": _u2netp,
}
