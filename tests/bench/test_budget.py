"""Equal time: cells train for their budget of seconds, and tables show that beside equal epochs."""

import numpy as np
import pytest

from pencil import recipe
from pencil.bench import runner, tables
from pencil.bench.budget import plan
from pencil.bench.spec import Spec
from pencil.cli import bench as command
from pencil.data import Splits, from_arrays
from pencil.errors import RecipeError
from pencil.files import write_json
from pencil.job import run_recipe
from pencil.job.network import Trial, needs_trial, resolve
from pencil.user_file import as_trust

SLOW = """
import time

from pencil.methods import Auto, Constant, CrossEntropy, Phase


class Slow(CrossEntropy):
    def loss(self, outputs, batch):
        time.sleep(0.02)
        return super().loss(outputs, batch)


class SlowAtTheEnd(CrossEntropy):
    \"\"\"The second of two phases takes five times as long.\"\"\"

    def start(self, task):
        (phase,) = super().start(task)
        return Phase("first", 30, self.first, Constant(0.02)), Phase("second", 30, self.second, Constant(0.02))

    def first(self, outputs, batch):
        time.sleep(0.02)
        return self.loss(outputs, batch)

    def second(self, outputs, batch):
        time.sleep(0.1)
        return self.loss(outputs, batch)


class SlowAuto(Auto):
    def backbone_loss(self, outputs, batch):
        time.sleep(0.02)
        return super().backbone_loss(outputs, batch)

    def correction_loss(self, outputs, batch):
        time.sleep(0.02)
        return super().correction_loss(outputs, batch)
"""


def spec_of(method, **more):
    """A tiny cell: two steps an epoch."""
    tree = {
        "name": "tiny",
        "seeds": [1],
        "reference": "one",
        "recipe": {
            "data": {"source": "digits", "rows": 120, "test_rows": 40},
            "model": {"name": "mlp", "options": {"width": 8}},
            "training": {"epochs": 3, "batch_size": 64},
        },
        "methods": [{"name": "one", "set": {"method": {"name": method}}}],
    }
    return Spec.model_validate(tree | more)


@pytest.mark.filterwarnings("ignore:held-out labels:UserWarning")
@pytest.mark.parametrize(("name", "budget"), [("Slow", 1.5), ("SlowAtTheEnd", 3.0), ("SlowAuto", 2.5)])
def test_a_cell_lands_within_its_budget(tmp_path, monkeypatch, name, budget):
    """On a machine with other work to do, the best of three."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    spec = spec_of(f"slow.py:{name}", budget_seconds=budget)
    spec._trust = as_trust(True)
    (cell,) = spec.cells()
    ratios = []
    for _ in range(3):
        found = runner.run_cell(cell)
        assert found["status"] == "done", found.get("traceback")
        assert found["summary"]["epochs"] > 3 and found["budget"] == budget
        ratios.append(found["summary"]["seconds"] / budget)
        if 0.7 <= ratios[-1] <= 1.2:
            return
    raise AssertionError(f"fractions of the budget: {ratios}")


class ChosenError(Exception):
    """Raised in place of training, with the recipe that would be trained."""


def network_of(run, *arguments, **options):
    """Return the network that a run would train, and whether there was a trial."""
    tried = []

    def assembled(recipe, loaded, **_):
        raise ChosenError(resolve(recipe.model, loaded.train.input_shape))

    def trial(recipe, loaded, *_, **__):
        if needs_trial(recipe, loaded):
            tried.append(True)
            return Trial(500, cnn=0.5, head=0.9, lead=0.1)
        return None

    with pytest.MonkeyPatch.context() as patch:
        for module in ("pencil.job.run", "pencil.bench.budget"):
            patch.setattr(f"{module}.assemble", assembled)
            patch.setattr(f"{module}.try_networks", trial)
        with pytest.raises(ChosenError) as found:
            run(*arguments, **options)
    return found.value.args[0], bool(tried)


@pytest.mark.parametrize("given", [{}, {"name": "small_cnn", "options": {"width": 4}}], ids=["default", "explicit"])
@pytest.mark.parametrize(("seconds", "tries"), [(60, False), (1200, True)])
def test_a_budget_has_the_network_of_train(seconds, tries, given):
    """Small colour images: ``pencil train --budget`` tries two networks only where the budget has room for that."""
    pixels = np.random.default_rng(0).integers(0, 255, (520, 3, 24, 24), dtype=np.uint8)
    loaded = Splits(from_arrays(pixels, np.arange(520) % 2))
    trained = recipe.parse({"model": given, "training": {"minutes": seconds / 60}})
    expected = network_of(run_recipe, trained, data=loaded)
    for method in ("auto", "cross_entropy"):
        cell = recipe.parse({"model": given, "training": {"epochs": 3}, "method": {"name": method}})
        assert network_of(plan, cell, loaded, seconds) == expected
    assert expected[1] == (tries and not given)
    assert expected[0].name == ("efficientnet_lite2" if expected[1] else "small_cnn")
    assert given.get("options", {}) == expected[0].options


@pytest.mark.parametrize("method", ["cross_entropy", "auto"])
@pytest.mark.filterwarnings("ignore:held-out labels:UserWarning")
def test_the_network_is_chosen_once(method, monkeypatch):
    """A planned recipe names its network: with epochs instead of minutes it would be open to a trial again."""
    monkeypatch.setattr("pencil.bench.budget.affordable_epochs", lambda *_: 7)
    pixels = np.random.default_rng(0).integers(0, 255, (520, 3, 24, 24), dtype=np.uint8)
    loaded = Splits(from_arrays(pixels, np.arange(520) % 2))
    planned = plan(recipe.parse({"method": {"name": method}}), loaded, 2.0)
    assert planned.model.name == "small_cnn" and not needs_trial(planned, loaded)


def test_a_budget_is_another_cell():
    plain, timed = spec_of("elr"), spec_of("elr", budget_seconds=60)
    (one,), (other,) = plain.cells(), timed.cells()
    assert one.identity() != other.identity() and "-60s-" in other.identity()
    with pytest.raises(ValueError, match="budget_seconds"):
        spec_of("elr", budget_seconds=0)


def result(share, epochs, seconds, budget=None):
    summary = {"test_accuracy": {"best": share, "last": share}, "epochs": epochs, "seconds": seconds, "labels": {}}
    return {"status": "done", "summary": summary, "curves": {}, "budget": budget}


def test_equal_time_stands_beside_equal_epochs(tmp_path):
    methods = [{"name": name, "set": {"method": {"name": name}}} for name in ("cross_entropy", "elr")]
    timed = spec_of("elr", methods=methods, reference="elr", budget_seconds=60)
    plain = timed.model_copy(update={"budget_seconds": None})
    (tmp_path / "cells").mkdir()
    shares = {"cross_entropy": (0.5, 0.7), "elr": (0.8, 0.6)}
    for spec, place in ((plain, 0), (timed, 1)):
        for cell in spec.cells():
            made = result(shares[cell.method][place], 40 if place == 0 else 77, 60.0, spec.budget_seconds)
            write_json(tmp_path / "cells" / f"{cell.identity()}.json", made)
    for spec in (plain, timed):
        command._write_tables(spec, spec, tmp_path)
        text = (tmp_path / "results.md").read_text()
        assert "Test accuracy at the last epoch, %: equal epochs beside 60 s" in text
        assert "| method | as given, equal epochs | as given, 60 s |" in text
        assert "| cross_entropy | 50.0 | **70.0** |" in text and "| elr | **80.0** | 60.0 |" in text
    assert "Epochs reached" in text and "| elr | 77.0 |" in text and "fit into 60 seconds" in text
    assert runner.budgets(tmp_path / "cells") == [60.0]


def test_without_a_second_budget_there_is_nothing_to_compare():
    spec = spec_of("elr")
    assert tables.compare_budgets(spec, {"equal epochs": tables.collect_entries(spec, {})}) == []


def test_a_budget_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text('[[methods]]\nname = "cross_entropy"\n')
    seen = []
    monkeypatch.setattr(command, "_run", lambda chosen, *_: seen.append(chosen) or [])
    command.bench(str(tmp_path / "tiny.toml"), out=tmp_path, budget="90s", as_json=True)
    assert seen[0].budget_seconds == pytest.approx(90)
    with pytest.raises(RecipeError, match="expected a time"):
        command.bench(str(tmp_path / "tiny.toml"), out=tmp_path, budget="soon")
