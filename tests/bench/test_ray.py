"""A grid on a Ray cluster has the results that it has on one machine."""

import os
import sys

import pytest
from test_bench import SMALL

from pencil.bench.ray_engine import _result, run_cells_on_ray
from pencil.bench.runner import run_cell
from pencil.bench.spec import Spec
from pencil.errors import RecipeError


def one_cell(**more):
    return Spec.model_validate({**SMALL, "seeds": [1], "noises": SMALL["noises"][:1], "methods": SMALL["methods"][:1]})


def test_without_ray_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        RecipeError, match=r"--engine ray needs Ray; install it with pip install 'pencil-labels\[ray\]'"
    ):
        run_cells_on_ray(list(one_cell().cells()), tmp_path, None, lambda *_: None)


def test_a_cell_that_failed_says_what_was_raised():
    ray = pytest.importorskip("ray")

    class Cluster:
        exceptions = ray.exceptions

        def get(self, _task):
            trace = "ray::run_cell() (pid=7, ip=192.0.2.2)\nTraceback\nMemoryError: no memory"
            raise ray.exceptions.RayTaskError("run_cell", trace, MemoryError("no memory"))

    assert _result(Cluster(), None) == {"status": "failed", "error": "MemoryError: no memory"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cells_on_a_local_cluster(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its workers find the same modules
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cells, seen, news = list(one_cell().cells()), [], []
    results = run_cells_on_ray(
        cells,
        tmp_path,
        1,
        lambda cell, result, left: seen.append((result["status"], left)),
        lambda cell, status: news.append((cell.label, getattr(status, "stage", status))),
    )
    assert seen == [("done", 0)]
    assert news[0] == (cells[0].label, "loading data") and any("epoch 1/3" in stage for _, stage in news)
    found, expected = results[cells[0].identity()], run_cell(cells[0])
    assert found["curves"] == expected["curves"]
    run_cells_on_ray(cells, tmp_path, None, lambda *_: pytest.fail("it has a result already"))
