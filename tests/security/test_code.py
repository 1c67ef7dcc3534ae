"""No line of a Python file that somebody else's recipe names is executed unless the user says so."""

import json
import shutil
from pathlib import Path

import pytest
from commands import pencil
from received import has_run, make_home

import pencil as package
from pencil import recipe
from pencil.bench.spec import read_spec
from pencil.errors import RecipeError, RunError
from pencil.job import resume_run
from pencil.methods import find_method
from pencil.models import ModelSettings, build
from pencil.review.session import Review
from pencil.user_file import NO_FILES, Trust, load_module

EXPORT = ("export", "run", "--format", "safetensors", "--out", "net.safetensors")
REFUSED = {
    "train a method": ("train", "method.toml", "--out", "new"),
    "train a model": ("train", "model.toml", "--out", "new"),
    "train both": ("train", "both.toml", "--out", "new"),
    "train in processes": ("train", "both.toml", "--out", "new", "--processes", "2"),
    "train --resume, stopped": ("train", "both.toml", "--out", "stopped", "--resume"),
    "train --resume, finished": ("train", "both.toml", "--out", "run", "--resume"),
    "resume, stopped": ("resume", "stopped"),
    "resume, finished": ("resume", "run"),
    "predict": ("predict", "run", "new.npy"),
    "evaluate": ("evaluate", "run", "--data", "data.npz"),
    "export": EXPORT,
    "bench": ("bench", "spec.toml", "--out", "grid", "--processes", "1"),
}
WITHOUT_CODE = {
    "check a method": ("check", "method.toml"),
    "check a model": ("check", "model.toml"),
    "check both": ("check", "both.toml", "--json"),
    "check a run": ("check", "run"),
    "recipes show": ("recipes", "show", "both.toml"),
    "report": ("report", "run"),
    "report of two": ("report", "run", "run"),
    "labels": ("labels", "run"),
    "audit": ("audit", "run", "--sheet", "sheet.csv"),
    "labels as Parquet": ("labels", "run", "--format", "parquet", "--anyway", "--out", "labels.parquet"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("received"))


@pytest.fixture
def home(prepared, tmp_path):
    """A copy, so that the file has never been executed in this process under its path."""
    return Path(shutil.copytree(prepared, tmp_path / "home"))


@pytest.mark.parametrize("name", REFUSED)
def test_commands_refuse_files_of_a_recipe_in_one_line(home, name):
    before = sorted(home.rglob("*"))
    said = pencil(*REFUSED[name], cwd=home, code=2).stderr
    assert "x/evil.py" in said and "--trust" in said and ("method.name" in said or "model.name" in said)
    assert said.count("\n") == 1 and said.startswith("error: ")
    assert not has_run(home) and sorted(home.rglob("*")) == before


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "train in processes"])
def test_with_trust_they_work(home, name):
    pencil(*REFUSED[name], "--trust", cwd=home)
    assert has_run(home)


def test_processes_refuse_the_file_of_a_stopped_run(home):
    pencil("resume", "stopped", "--processes", "2", cwd=home, code=2)
    assert not has_run(home)


def test_processes_work_with_trust(home):
    pencil("train", "both.toml", "--out", "new", "--processes", "2", "--trust", cwd=home)
    assert has_run(home) and (home / "new" / "summary.json").exists()


@pytest.mark.parametrize("name", WITHOUT_CODE)
def test_commands_that_need_no_code_run_none(home, name):
    pencil(*WITHOUT_CODE[name], cwd=home)
    assert not has_run(home)


def test_check_names_the_files_that_it_did_not_run(home):
    said = pencil("check", "both.toml", cwd=home).stdout
    assert "60 rows" in said and "x/evil.py (method.name)" in said and "x/evil.py (model.name)" in said
    assert "time        not estimated: a Python file of the recipe was not run" in said
    found = json.loads(pencil("check", "method.toml", "--json", cwd=home).stdout)
    assert found["not_run"] == {"method.name": "x/evil.py"} and found["ready"] is False
    assert found["phases"] is None and found["parameters"] > 0 and found["problems"] == []
    (home / "method.toml").write_text((home / "method.toml").read_text() + "\n[training]\nbatch_sice = 3\n")
    assert "training.batch_sice" in pencil("check", "method.toml", cwd=home, code=2).stderr
    assert not has_run(home)


def test_review_runs_no_code(home):
    with Review(home / "run") as review:
        review.details.neighbours.wait()  # which loads the data too
        assert len(review.queue) == 60
    assert not has_run(home)


NAMED = {
    "--method": ("train", "data.npz", "--method", "x/evil.py:Evil"),
    "--model": ("train", "data.npz", "--model", "x/evil.py:Net", "--method", "cross_entropy", "--epochs", "2"),
    "--set": ("train", "method.toml", "--set", "method.name=x/evil.py:Evil"),
    "--set with a table": ("train", "method.toml", "--set", 'method={name="x/evil.py:Evil"}'),
    "another path of the same file": ("train", "method.toml", "--method", "x/../x/evil.py:Evil"),
    "check": ("check", "data.npz", "--method", "x/evil.py:Evil"),
    "--resume": ("train", "both.toml", "--out", "stopped", "--resume", "--model", "x/evil.py:Net"),
}


@pytest.mark.parametrize("name", NAMED)
def test_files_that_the_command_names_run(home, name):
    pencil(*NAMED[name], cwd=home)
    assert has_run(home)


def test_a_named_file_does_not_stand_for_another(home):
    shutil.copy(home / "x" / "evil.py", home / "mine.py")
    said = pencil("train", "method.toml", "--model", "mine.py:Net", cwd=home, code=2).stderr
    assert "x/evil.py (method.name)" in said and "mine.py" not in said
    assert not has_run(home) and not (home / "ran").exists()


def test_the_recipe_of_a_stopped_run_needs_trust_of_its_own(home):
    pencil("train", "data.npz", "--out", "stopped", "--resume", cwd=home, code=2)
    assert not has_run(home)


def test_python_callers_trust_a_run_explicitly(home, monkeypatch):
    monkeypatch.chdir(home)
    with pytest.raises(RunError, match=r"run would run the Python file x/evil.py \(model.name\).*trust=True"):
        package.open_run("run")
    with pytest.raises(RecipeError, match=r"x/evil.py"):
        resume_run("stopped")
    with pytest.raises(RecipeError, match=r"x/evil.py"):
        recipe.parse(recipe.read(Path("method.toml")))
    with pytest.raises(RecipeError, match=r"x/evil.py"):
        next(read_spec("spec.toml").cells()).recipe()
    assert not has_run(home)
    assert package.open_run("run", trust=True).model.weight.shape == (3, 4)
    assert has_run(home)


def test_a_file_that_a_python_caller_names_runs(home, blobs):
    file = home / "x" / "evil.py"
    run = package.fit(f"{file}:Net", blobs, method=f"{file}:Evil", out=home / "fit")
    assert has_run(home) and run.summary.epochs == 2
    again = package.fit(f"{file}:Net", blobs, method=f"{file}:Evil", out=home / "fit", resume=True)
    assert again.summary == run.summary


def test_nothing_is_trusted_by_default(home, monkeypatch):
    monkeypatch.chdir(home)
    for refused in (
        lambda: load_module(Path("x/evil.py"), "Evil", NO_FILES),
        lambda: find_method("x/evil.py:Evil"),
        lambda: build(ModelSettings(name="x/evil.py:Net"), (4,), 3, seed=0),
        lambda: recipe.Recipe(method={"name": "x/evil.py:Evil"}).build_method(),
    ):
        with pytest.raises(RecipeError, match=r"x/evil.py"):
            refused()
    assert not has_run(home)
    assert not Trust(frozenset({home / "x" / "other.py"})).allows(Path("x/evil.py"))
    assert Trust(frozenset({home / "x" / "evil.py"})).allows(Path("x/evil.py"))


def test_one_place_executes_files():
    """What asks for trust is the only code that executes a file: no other module has the means."""
    source = Path(package.__file__).parent
    means = ("exec_module", "module_from_spec", "runpy", "exec(", "eval(", "__import__(", "pickle.load", "load_module(")
    found = {
        (path.relative_to(source).as_posix(), mean)
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        for mean in means
        if mean in line.replace(".eval(", "").replace("fuse_conv_bn_eval(", "")
    }
    assert found == {
        ("user_file.py", "exec_module"),
        ("user_file.py", "module_from_spec"),
        ("user_file.py", "load_module("),
        ("methods/__init__.py", "load_module("),
        ("models/__init__.py", "load_module("),
    }


def test_modules_of_the_current_folder_are_not_imported_by_processes(home):
    """``python -m`` would look for modules in the current folder, which may be somebody else's."""
    (home / "torch.py").write_text((home / "x" / "evil.py").read_text().replace('"ran"', '"x/ran"'))
    words = ("train", "data.npz", "--method", "cross_entropy", "--epochs", "1", "--out", "new", "--processes", "2")
    pencil(*words, cwd=home)
    assert not has_run(home)
