"""Makes an environment with one version of PyTorch, for `make test-torch TORCH=2.15.0` and `make test PYTHON=...`.

    python tests/support/torch_environment.py [--optional] 2.15.0 .venv-torch-2.15.0

With `--optional` an interpreter for which there is no such PyTorch gets an environment without it: its tests skip.

Builds of PyTorch for CUDA, the only ones for Linux that the package index has, require two gigabytes of libraries which
a host without a GPU loads and never calls. These are left out here, and empty libraries with the same names and
functions take their place, so that `import torch` works; this takes a C compiler and binutils. A build for the CPU,
where pip finds one, is used as it is.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOR_CUDA = re.compile(r"nvidia|cuda|triton")
REQUIREMENTS = "import importlib.metadata as m, json; print(json.dumps(m.requires('torch')))"
VERSION = "import torch; print('PyTorch', torch.__version__)"
FAILURE = 100
"""What every function of an empty library returns: for CUDA, that there is no device."""


def main(version: str, folder: Path, optional: bool) -> None:
    """Make the environment, unless it exists."""
    installed = folder / ".installed"
    if installed.exists():
        return
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if install(version, pip, optional):
        install_without_cuda(folder, python, pip)
    else:
        run(*pip, "-e", f"{ROOT}[dev]")
        print(f"There is no PyTorch {version} for Python {sys.version.split()[0]}: tests that need it will be skipped.")
    installed.touch()


def install(version: str, pip: tuple[object, ...], optional: bool) -> bool:
    """Install PyTorch alone; False where it is optional and the package index has none for this interpreter."""
    command = [str(word) for word in (*pip, "--no-deps", f"torch=={version}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not (optional and "No matching distribution found" in done.stderr):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return not done.returncode


def install_without_cuda(folder: Path, python: Path, pip: tuple[object, ...]) -> None:
    """What Tradewind's tests and PyTorch need, and empty libraries for what is left out of it."""
    required = [text for text in json.loads(run(python, "-c", REQUIREMENTS)) if "extra ==" not in text]
    run(*pip, "-e", f"{ROOT}[dev]", *(text for text in required if not FOR_CUDA.match(text)))
    (libraries,) = folder.glob("lib/python*/site-packages/torch/lib")
    if (libraries / "libtorch_cuda.so").exists():
        # The runtime is small, and is asked at once whether there is a device: it has to be the real one.
        toolkits = [re.sub(r"\[.*\]", "[cudart]", text) for text in required if text.startswith("cuda-toolkit")]
        run(*pip, *toolkits)
        replace_missing(libraries)
    print(run(python, "-W", "error", "-c", VERSION).strip(), "in", folder)


def replace_missing(libraries: Path) -> None:
    """Put an empty library beside PyTorch's own for each one that they need and that is not there."""
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found", run("ldd", libraries / "libtorch_python.so"), re.M)))
    functions: dict[str, dict[str, set[str]]] = {library: defaultdict(set) for library in missing}
    for path in sorted(libraries.glob("*.so*")):
        library_of: dict[str, str] = {}
        for part in run("readelf", "--version-info", "--wide", path).split("File: ")[1:]:
            library_of |= dict.fromkeys(re.findall(r"Name: (\S+)", part), part.split()[0])
        for name, version in re.findall(r" U (\w+)@?(\S*)$", run("nm", "-D", "--with-symbol-versions", path), re.M):
            if library_of.get(version) in functions:
                functions[library_of[version]][version].add(name)
            elif not version and re.match(r"nccl|cu|nvshmem", name) and missing:
                functions[missing[0]][""].add(name)  # any library will do for a function without a version
    for library, by_version in functions.items():
        build(libraries / library, by_version)


def build(library: Path, functions: dict[str, set[str]]) -> None:
    """Compile a library with these functions, by their versions."""
    names = sorted(set().union(*functions.values()))
    versions = [f"{version} {{ global: {'; '.join(sorted(of))}; }};" for version, of in functions.items() if version]
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder) / "empty.c", Path(folder) / "versions"
        source.write_text("\n".join(f"int {name}(void) {{ return {FAILURE}; }}" for name in names))
        script.write_text("\n".join(versions))
        how = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}"]
        how += [f"-Wl,--version-script={script}"] if versions else []
        run("cc", *how, source, "-o", library)


def run(*command: object) -> str:
    """What a command prints; ends the program if it fails."""
    words = [str(word) for word in command]
    if shutil.which(words[0]) is None:
        sys.exit(f"{words[0]!r} is not installed, and needed to load this build of PyTorch without CUDA's libraries.")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--optional", action="store_true")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    main(given.version, given.folder, given.optional)
