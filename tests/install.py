"""The three ways to install that the README and RELEASING.md name, each in folders of its own, from this checkout:
`uvx --from WHEEL wk`, `pipx install WHEEL` and `uv tool install .`.

    python -m tests.install [--wheel FILE] [--sizes]

It needs the package index that pip uses. Without `--wheel` it builds one, which needs hatchling. `--sizes` also prints
each package of the default install with its size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST_SECONDS = 900.0
OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}
"""Settings of pip that uv reads from its own variables only."""


def run(*words: str | Path, environment: dict[str, str], cwd: Path = ROOT) -> str:
    done = subprocess.run(
        words, env=environment, cwd=cwd, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def settings_of_pip() -> dict[str, str]:
    """The package index of this machine, as uv's variables."""
    printed = run(sys.executable, "-m", "pip", "config", "list", environment=dict(os.environ))
    found = {}
    for line in printed.splitlines():
        key, _, value = line.partition("=")
        name = key.strip().rpartition(".")[2]
        if name in OF_PIP:
            found[OF_PIP[name]] = value.strip().strip("'\"")
    return found


def user(folder: Path) -> dict[str, str]:
    """The environment of a user whose home is `folder`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WATCHKEEPER", "PYTHON", "UV_"))
    }
    for name in ("VIRTUAL_ENV", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        kept.pop(name, None)
    bin_folder = folder / ".local" / "bin"
    return (
        kept
        | settings_of_pip()
        | {
            "HOME": str(folder),
            "PATH": os.pathsep.join((str(bin_folder), kept.get("PATH", os.defpath))),
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip does: the best version of all indexes
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            "PIPX_DEFAULT_PYTHON": sys.executable,
        }
    )


def works(*command: str | Path, environment: dict[str, str]) -> None:
    """The installed command answers, lists sessions, and checks the installation."""
    home = Path(environment["HOME"])
    assert run(*command, "--version", environment=environment, cwd=home).startswith("watchkeeper ")
    assert "wk demo" in run(*command, "--help", environment=environment, cwd=home)
    assert json.loads(run(*command, "sessions", "--json", environment=environment, cwd=home)) is not None
    run(*command, "doctor", environment=environment, cwd=home)


def built(folder: Path) -> Path:
    """A wheel of this checkout."""
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(folder),
        environment=dict(os.environ),
    )
    return next(folder.glob("*.whl"))


def trials(wheel: Path, folder: Path) -> None:
    builder = dict(os.environ)
    tools = folder / "tools"
    run(sys.executable, "-m", "venv", str(tools), environment=builder)
    run(tools / "bin" / "python", "-m", "pip", "install", "-q", "uv", "pipx", environment=builder)

    environment = user(home := folder / "uvx")
    home.mkdir()
    works(tools / "bin" / "uvx", "--from", str(wheel), "wk", environment=environment)
    print(f"uvx --from {wheel.name} wk: works")

    environment = user(home := folder / "uv")
    home.mkdir()
    environment["UV_CACHE_DIR"] = str(folder / "uvx" / "uv-cache")
    run(tools / "bin" / "uv", "tool", "install", ".", environment=environment)
    works(home / ".local" / "bin" / "wk", environment=environment)
    run(tools / "bin" / "uv", "tool", "uninstall", "watchkeeper", environment=environment)
    assert not (home / ".local" / "bin" / "wk").exists()
    print("uv tool install .: works, and is removed without a trace in bin")

    environment = user(home := folder / "pipx")
    home.mkdir()
    run(tools / "bin" / "pipx", "install", str(wheel), environment=environment)
    works(home / ".local" / "bin" / "wk", environment=environment)
    run(tools / "bin" / "pipx", "uninstall", "watchkeeper", environment=environment)
    assert not (home / ".local" / "bin" / "wk").exists()
    print(f"pipx install {wheel.name}: works, and is removed without a trace in bin")


def size_of(package: Distribution) -> int:
    """Bytes of a package's files; compiled modules are not counted, since an installer may leave them out."""
    files = (Path(str(package.locate_file(file))) for file in package.files or ())
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.exists())


def print_sizes(wheel: Path, folder: Path) -> None:
    venv = folder / "sizes"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv), environment=dict(os.environ))
    run(
        sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q", "--no-compile", str(wheel),
        environment=dict(os.environ),
    )  # fmt: skip
    site = next(venv.glob("lib/python*/site-packages"))
    found = sorted(((size_of(one), one.name) for one in distributions(path=[str(site)])), reverse=True)
    print(f"{len(found)} packages, {sum(size for size, _ in found) / 1e6:.0f} MB without compiled modules")
    for size, name in found:
        print(f"{size / 1e6:7.1f} MB  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wheel", type=Path, help="the wheel to install")
    parser.add_argument("--sizes", action="store_true", help="print each package with its size as well")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="watchkeeper-install-"))
    try:
        wheel = options.wheel.resolve() if options.wheel else built(folder / "wheels")
        trials(wheel, folder)
        if options.sizes:
            print_sizes(wheel, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
