import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

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


def test_the_lock_file_is_plain_pins():
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        name, _, version = line.partition("==")
        assert name and version and not set(line) & set(" @/;"), line
