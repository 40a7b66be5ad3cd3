"""What is installed is whole: the wheel holds everything that the program reads, and finds it there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, *roots: Path, cwd: Path) -> str:
    """What a program prints that finds our packages in `roots` and nowhere else."""
    # -S leaves out the site folder with its editable install; the libraries in it come last on the path
    # instead.
    libraries = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WATCHKEEPER"))
    }
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in (*roots, *libraries))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_holds_every_file_of_both_packages(names: set[str]) -> None:
    for root, package in ((ROOT / "core", "watchkeeper"), (ROOT / "tui", "watchkeeper_tui")):
        for file in (root / package).rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                assert file.relative_to(root).as_posix() in names


def test_the_wheel_holds_types_roles_themes_and_the_licence(names: set[str]) -> None:
    assert {"watchkeeper/py.typed", "watchkeeper_tui/py.typed"} <= names
    roles = {Path(name).stem for name in names if name.startswith("watchkeeper/agents/roles/builtin/")}
    assert {"planner", "explorer", "writer", "coder"} <= roles
    shipped = {Path(name).name for name in names if name.startswith("watchkeeper_tui/shipped_themes/")}
    assert shipped == {theme.name for theme in (ROOT / "themes").glob("*.toml")}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_neither_tests_nor_leavings(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"watchkeeper", "watchkeeper_tui"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".db", ".pyc"))]


def test_the_wheel_brings_both_commands_and_says_what_it_needs(unpacked: Path) -> None:
    info = next(unpacked.glob("*.dist-info"))
    scripts = (info / "entry_points.txt").read_text(encoding="utf-8")
    assert "wk = watchkeeper.__main__:main" in scripts
    assert "watchkeeper = watchkeeper.__main__:main" in scripts
    metadata = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {re.split("[<>;]", line)[0].strip() for line in metadata.get_all("Requires-Dist") or []}
    assert {"anthropic", "click", "mcp", "sqlite-utils", "textual", "tiktoken"} <= needed


def test_themes_and_roles_are_found_in_an_installed_wheel(unpacked: Path, tmp_path: Path) -> None:
    printed = run(
        "import watchkeeper, watchkeeper_tui.theming as t; from pathlib import Path\n"
        "from watchkeeper.agents.roles import load_roles\n"
        "themes, problems = t.load_themes([t.shipped_folder()])\n"
        "print(watchkeeper.__file__, t.shipped_folder(), len(themes), problems, 'planner' in"
        " load_roles(Path('.')), sep='|')",
        unpacked,
        cwd=tmp_path,
    )
    where, folder, count, problems, planner = printed.split("|")
    assert where.startswith(str(unpacked))
    assert folder == str(unpacked / "watchkeeper_tui" / "shipped_themes")
    assert int(count) == len(list((ROOT / "themes").glob("*.toml")))
    assert (problems, planner) == ("[]", "True")


def test_themes_of_a_checkout_are_those_that_are_edited(tmp_path: Path) -> None:
    printed = run(
        "import watchkeeper_tui.theming as t; print(t.shipped_folder())", ROOT / "core", ROOT / "tui", cwd=tmp_path,
    )  # fmt: skip
    assert printed == str(ROOT / "themes")


def test_the_command_of_an_installed_wheel_runs(unpacked: Path, tmp_path: Path) -> None:
    printed = run(
        "import sys; from watchkeeper.cli.app import run; sys.exit(run(['sessions', '--help']))",
        unpacked,
        cwd=tmp_path,
    )
    assert "List up to --limit sessions" in printed


def release(checkout: Path, *words: str) -> str:
    """What `.ci/release` says when it stops."""
    done = subprocess.run(
        ["bash", ".ci/release", *words], cwd=checkout, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_release_stops_with_one_line_before_it_builds(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        about = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *about, *words], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    (tmp_path / ".ci").mkdir()
    (tmp_path / "core" / "watchkeeper").mkdir(parents=True)
    (tmp_path / ".ci" / "release").write_text((ROOT / ".ci" / "release").read_text())
    (tmp_path / "core" / "watchkeeper" / "_version.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [0.1.0] - unreleased\n")
    git("init", "-q", "-b", "main")
    git("add", ".")
    assert "name the version" in release(tmp_path)
    assert "name the version" in release(tmp_path, "next")
    assert "unknown option: --push" in release(tmp_path, "0.1.0", "--push")
    assert "commit or remove these changes" in release(tmp_path, "0.1.0")
    git("commit", "-qm", "All")
    assert 'write: __version__ = "0.2.0"' in release(tmp_path, "0.2.0")
    assert "no dated section for 0.1.0" in release(tmp_path, "0.1.0")
    git("tag", "v0.1.0")
    assert "the tag v0.1.0 exists" in release(tmp_path, "0.1.0")
    git("switch", "-qc", "other")
    assert "git switch main" in release(tmp_path, "0.1.0")
