import ast
import email
import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import pencil

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_recipes_types_licence_and_command(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*pip, str(tmp_path / "dist"), str(tmp_path)], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("pencil_labels-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry,) = [name for name in names if name.endswith("entry_points.txt")]
        assert "pencil = pencil.cli:main" in archive.read(entry).decode()
    for expected in (
        "pencil/py.typed",
        "pencil/recipe/shipped/digits-symmetric-50.toml",
        "pencil/bench/specs/table3.toml",
        "pencil/cli/train.py",
        "pencil/bench/templates/results.html.jinja",
    ):
        assert expected in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests")]


WHEELS = "PENCIL_TEST_WHEELS"
"""Names a folder with a wheel of everything that pencil needs; by default pip looks where it is configured to."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source distribution, as `python -m build` makes them of a clone."""
    pytest.importorskip("build", reason="build is not installed; run `make setup`")
    folder = tmp_path_factory.mktemp("build")
    kept = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
    for name in kept:
        shutil.copy(ROOT / name, folder)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


@pytest.mark.slow
def test_the_metadata_is_complete(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        found = email.message_from_string(archive.read(name).decode())
    assert found["Name"] == "pencil-labels" and found["Version"] == pencil.__version__
    assert found["License-Expression"] == "Apache-2.0" and found["Requires-Python"] == ">=3.11" and found["Keywords"]
    assert found["Description-Content-Type"] == "text/markdown" and "# pencil" in found.get_payload()
    classifiers = found.get_all("Classifier")
    assert "Typing :: Typed" in classifiers and "Development Status :: 4 - Beta" in classifiers
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/pencil/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]  # they need the rest of a clone


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_built_runs_the_demo_in_an_empty_environment(built, tmp_path, kind):
    """Offline: pip may use the wheels of a folder and nothing else."""
    (package,) = built.glob(kind)
    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    wheels = os.environ.get(WHEELS)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", *(["--find-links", wheels] if wheels else [])]
    done = subprocess.run([*pip, str(package)], env=clean, capture_output=True, text=True)
    if done.returncode and not wheels:
        pytest.skip(f"pip finds no wheels offline; set {WHEELS} to a folder with them: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    command = [str(tmp_path / "empty" / "bin" / "pencil"), "demo", "--out", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = {summary["method"]: summary for summary in json.loads(done.stdout)}
    assert results["auto"]["test_accuracy"]["last"] > results["cross_entropy"]["test_accuracy"]["last"]


def test_the_lowest_lock_is_the_lower_end_of_the_ranges():
    writer = runpy.run_path(str(ROOT / ".ci/write_lowest_lock.py"))
    assert writer["lowest_pins"]() == (ROOT / "requirements-lowest.lock").read_text().splitlines(), "make lowest-lock"
    assert not [name for name in pins("requirements-lowest.lock") if name.startswith(("nvidia", "cuda"))]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-run.lock", "requirements-lowest.lock"])
def test_the_lock_files_are_plain_pins(lock):
    for line in (ROOT / lock).read_text().splitlines():
        name, _, version = line.partition("==")
        assert name and version and not set(line) & set(" @/;"), line


def pins(lock="requirements.lock") -> dict[str, str]:
    lines = (ROOT / lock).read_text().splitlines()
    return {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}


def needs(name: str) -> set[str]:
    """What an installed package asks for on this machine."""
    asked = map(Requirement, requires(name) or ())
    chosen = (one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""}))
    return {one.name.lower().replace("_", "-").replace(".", "-") for one in chosen}


def test_the_lock_file_of_a_run_agrees_with_the_full_one_and_lacks_nothing_that_a_run_needs():
    every, run = pins(), pins("requirements-run.lock")
    assert run.items() <= every.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {Requirement(one).name for one in project["dependencies"]}
    assert named | {"setuptools"} <= run.keys()  # setuptools builds pencil itself
    assert {one for name in run for one in needs(name)} <= run.keys()
    tools = {Requirement(one).name for one in project["optional-dependencies"]["dev"]}
    assert len(run) < len(every) / 2 + 1 and not tools & run.keys() - {"httpx2"}  # which huggingface_hub asks for


def test_make_writes_the_lock_file_of_a_run_as_it_is():
    writer = runpy.run_path(str(ROOT / ".ci/write_run_lock.py"))
    assert list(writer["run_pins"]()) == (ROOT / "requirements-run.lock").read_text().splitlines()


def test_the_demo_installs_no_more_than_a_run_needs():
    dry = ["make", "--dry-run", "--always-make", "demo"]
    done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "-r requirements-run.lock" in done and "requirements.lock" not in done
    whole = subprocess.run([*dry[:-1], "setup"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert whole.index("-r requirements-run.lock") < whole.index("-r requirements.lock")


def test_the_ranges_fit_the_lock_file_and_start_where_weights_only_is_sound():
    from packaging.version import Version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    for name, allowed in needed.items():
        assert allowed.contains(pins()[name]), f"{name} {pins()[name]} is locked, {allowed} is asked for"
    for name, floor in {"torch": "2.10", "torchvision": "0.25", "timm": "1.0.20"}.items():
        (lowest,) = [Version(one.version) for one in needed[name] if one.operator == ">="]
        assert lowest >= Version(floor), name


def test_every_torch_load_is_weights_only():
    """And numpy never unpickles, and nothing else does."""
    calls = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("torch.load", "torch.jit.load"):
                calls.append(path)
                assert options.get("weights_only") == "True", path
            assert called not in ("pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "dill.load"), path
            assert options.get("allow_pickle", "False") == "False", path
    assert calls
