"""Signatures of a report by `ssh-keygen -Y`, beside it as report.json.sig: made and checked.

The folder is untrusted. ssh-keygen reads copies in a folder of our own, gets no name from the
folder, runs without a shell, without the terminal and with next to nothing of the environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from samebits import entrance
from samebits.csrc import run_to_end
from samebits.errors import InputError, PackageError

PROGRAM = "ssh-keygen"
NAMESPACE = "samebits"  # of signatures: one that was made for something else does not count
LIMIT = 60.0  # seconds, in which a person may have to touch a key
LARGEST_SIGNATURE = 1 << 16  # bytes
LARGEST_SIGNERS = 1 << 24
SHORT = 200  # letters of what ssh-keygen says
ANSWERS = ("HOME", "SSH_AUTH_SOCK", "SSH_SK_PROVIDER")  # where an agent or a device has the key


def signature_of(name: str) -> str:
    """The name of the signature of a file, as ssh-keygen chooses it."""
    return f"{name}.sig"


def given_key(name: str | Path | None) -> Path | None:
    """The key that a user gave, if any. InputError where nothing can be signed with it, as far as
    that is seen without a try."""
    if name is None:
        return None
    key = Path(name)
    _check_name(key, "--sign", "a key")
    if shutil.which(PROGRAM) is None:
        raise InputError(
            f"--sign {key}: expected {PROGRAM} on $PATH to sign with, found none; install OpenSSH, "
            "or leave --sign out and sign report.json elsewhere"
        )
    try:
        entrance.opened(key).close()
    except OSError as error:
        raise InputError(
            f"--sign {key}: expected a private key, or the public one of a key in your agent, "
            f"found none that can be read ({error.strerror or error}); ssh-keygen -t ed25519 -f "
            "KEY makes one"
        ) from error
    return key


def sign(data: bytes, key: Path) -> bytes:
    """The signature of a file's bytes by a user's own key. Nothing is asked: a key with a
    passphrase signs through ssh-agent. Raises InputError."""
    given_key(key)
    with _work(data) as work:
        done = _run(("sign", "-n", NAMESPACE, "-f", str(key.absolute())), work, ANSWERS)
    if done.returncode or not done.stdout:
        raise InputError(
            f"--sign {key}: expected a key that {PROGRAM} can sign with, found that it cannot "
            f"({_said(done)}); add one with a passphrase to ssh-agent, and give its public key"
        )
    return done.stdout.encode()


def signer_of(folder: Path, name: str, data: bytes, signers: Path) -> str:
    """Who signed `data`, the bytes of a file of an untrusted folder: a name of the user's file of
    allowed signers, as `man ssh-keygen` describes it.

    Raises PackageError where there is no signature beside the file, none that holds or nothing to
    check it with; InputError where the file of signers cannot be read.
    """
    allowed = _signers(signers)
    path = folder / signature_of(name)
    try:
        signature = entrance.read(path, LARGEST_SIGNATURE, "sign again", within=folder)
    except (InputError, OSError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise PackageError(
            f"{path}: expected a signature of {name}, found none that can be read ({found}); its "
            f"author makes one: {PROGRAM} -Y sign -n {NAMESPACE} -f KEY {name}"
        ) from error
    if shutil.which(PROGRAM) is None:
        raise PackageError(
            f"{path}: expected {PROGRAM} on $PATH to check the signature with, found none; install "
            "OpenSSH, or check it where that is"
        )
    with _work(data, signature, allowed) as work:
        by = ("-f", str(work / "signers"), "-s", str(work / "signature"))
        found_by = _run(("find-principals", *by), work)
        for person in _names(found_by.stdout):
            done = _run(("verify", "-n", NAMESPACE, "-I", person, *by), work)
            if done.returncode == 0:
                return person
            found_by = done
    raise PackageError(
        f"{path}: expected a signature of this {name} by somebody whom {signers} names, found none "
        f"({_said(found_by)}); nothing of the folder was built or run: get it from its author again"
    )


# --- ssh-keygen -----------------------------------------------------------------------------


@contextlib.contextmanager
def _work(data: bytes, signature: bytes = b"", signers: bytes = b"") -> Iterator[Path]:
    """A folder of our own with what ssh-keygen reads."""
    with tempfile.TemporaryDirectory(prefix="samebits-") as folder:
        for name, content in (("data", data), ("signature", signature), ("signers", signers)):
            Path(folder, name).write_bytes(content)
        yield Path(folder)


def _run(
    arguments: Sequence[str], work: Path, variables: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """`ssh-keygen -Y` with the data as its standard input. Raises PackageError where it gives no
    answer."""
    program = shutil.which(PROGRAM) or PROGRAM
    environment = {name: os.environ[name] for name in ("PATH", *variables) if name in os.environ}
    pipe = subprocess.PIPE
    try:
        with entrance.opened(work / "data") as data:
            return run_to_end(
                [program, "-Y", *arguments],
                LIMIT,
                environment=environment,
                stdin=data,
                stdout=pipe,
                stderr=pipe,
                cwd=work,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PackageError(
            f"expected {PROGRAM} to sign or check within {LIMIT:g} seconds, found that it did not "
            f"({type(error).__name__}); run it yourself to see what it waits for"
        ) from error


def _names(text: str) -> list[str]:
    """The people of an answer of find-principals, without those that a pattern excludes."""
    names = [name for line in text.splitlines() for name in line.strip().split(",")]
    return [name for name in names if name and not name.startswith("!")]


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The words of ssh-keygen, short and on one line."""
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    return said[:SHORT] or f"exit code {done.returncode}"


def _signers(path: Path) -> bytes:
    """The user's file of allowed signers. Raises InputError."""
    _check_name(path, "--signers", "a file of allowed signers")
    try:
        return entrance.read(path, LARGEST_SIGNERS)
    except OSError as error:
        raise InputError(
            f"--signers {path}: expected a file of allowed signers, found none that can be read "
            f"({error.strerror or error}); each line has a name and a public key"
        ) from error


def _check_name(path: Path, option: str, what: str) -> None:
    if not str(path).isprintable():
        raise InputError(
            f"{option} {str(path)!a}: expected the name of {what} without control characters; "
            "rename it"
        )
