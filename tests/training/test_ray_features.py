"""Features that the machines of a Ray cluster compute are those of one machine, to the last bit."""

import os
import shutil
import signal
import sys

import pytest
import torch
from conftest import truncate
from test_features import photo_recipe, photos  # noqa: F401

from pencil.data.inputs.base import DIGEST
from pencil.data.inputs.feature_store import FeatureStore
from pencil.data.read import load
from pencil.errors import DataError, RecipeError, Stopped, TrainingError
from pencil.job import run_recipe
from pencil.job.assembly import assemble
from pencil.training import cluster, ray_features
from pencil.training import features as features_module
from pencil.training.extraction import on_this_machine
from pencil.training.features import compute_features, count_missing


def as_job(folder, *more):
    chosen = photo_recipe(folder, *more)
    return assemble(chosen, load(chosen.data))


class FakeRay:
    """Runs a task when it is submitted; tasks end in the reverse of their order."""

    class cloudpickle:  # noqa: N801 - as in Ray
        register_pickle_by_value = staticmethod(lambda _module: None)

    class exceptions:  # noqa: N801
        class RayError(Exception): ...

    def __init__(self):
        self.most = self.joined = self.idle = 0
        self.initialized, self.cancelled = True, []

    def is_initialized(self):
        return self.initialized

    def init(self, **_options):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ray does
        self.joined += 1

    def shutdown(self):
        pass

    def cancel(self, reference):
        self.cancelled.append(reference)

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        return _Reference(value)

    def remote(self, **options):
        assert options == {"num_cpus": 1, "num_gpus": 0, "max_retries": 1}
        return lambda function: _Task(function)

    def wait(self, references, num_returns, timeout):
        self.most = max(self.most, len(references))
        if self.idle:
            self.idle -= 1
            return [], references
        return references[-1:], references[:-1]

    def get(self, reference):
        return reference.value


class _Reference:
    def __init__(self, value):
        self.value = value


class _Task:
    def __init__(self, function):
        self.function = function

    def remote(self, *arguments):
        return _Reference(self.function(*arguments))


@pytest.fixture
def fake(monkeypatch):
    made = FakeRay()
    for module in (cluster, ray_features):
        monkeypatch.setattr(module, "import_ray", lambda: made)
    monkeypatch.setattr(features_module, "CHUNK", 6)
    return made


def test_features_in_any_order_are_the_same_bits(photos, tmp_path, fake):  # noqa: F811
    job = as_job(photos)
    here = compute_features(job.prepared.splits, job.network, tmp_path / "here", engine=on_this_machine())
    there = compute_features(job.prepared.splits, job.network, tmp_path / "there", engine=ray_features.on_ray())
    assert there.computed == here.computed == 40 and there.normalization == here.normalization
    for name, part in vars(here.splits).items():
        assert part is None or torch.equal(part.inputs.in_memory, getattr(there.splits, name).inputs.in_memory)
    assert fake.most == ray_features.AHEAD * 2  # a bounded number of results waits


def test_what_a_stopped_pass_has_computed_is_kept(photos, tmp_path, fake):  # noqa: F811
    job = as_job(photos)

    def stop(done, _total):
        if done >= 12:
            raise Stopped("enough")

    engine = ray_features.on_ray()
    with pytest.raises(Stopped):
        compute_features(job.prepared.splits, job.network, tmp_path / "store", engine=engine, report=stop)
    assert count_missing(job.prepared.splits, 1280, tmp_path / "store") == 28
    assert compute_features(job.prepared.splits, job.network, tmp_path / "store", engine=engine).computed == 28


def test_unreadable_images_are_named_as_on_one_machine(photos, tmp_path, fake):  # noqa: F811
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    truncate(next(iter(sorted((folder / "dark").iterdir()))))
    with pytest.raises(DataError, match=r"1 of 40 images cannot be read: .*dark/"):
        as_job(folder).with_features(engine="ray")
    with pytest.warns(UserWarning, match=r"image 'dark/.*cannot be read.*skipped"):
        job = as_job(folder, ("data.bad_rows", "skip")).with_features(engine="ray")
    unreadable = [part.inputs.readable for part in vars(job.features).values() if part and not part.inputs.complete]
    assert sum(int((~readable).sum()) for readable in unreadable) == 1


def test_a_machine_that_sees_other_files_is_refused(photos, tmp_path, fake, monkeypatch):  # noqa: F811
    job = as_job(photos)
    compute_chunk = ray_features._compute_chunk

    def other_files(*arguments):
        found = compute_chunk(*arguments)
        return found._replace(digests=[bytes([7] * DIGEST), *found.digests[1:]])

    monkeypatch.setattr(ray_features, "_compute_chunk", other_files)
    with pytest.raises(DataError, match=r"1 of 6 images, the first '.*/.*png', cannot be read or are different on"):
        compute_features(job.prepared.splits, job.network, tmp_path / "store", engine=ray_features.on_ray())
    assert count_missing(job.prepared.splits, 1280, tmp_path / "store") == 40


def test_a_dead_machine_is_one_clear_line(photos, tmp_path, fake, monkeypatch):  # noqa: F811
    def died(_reference):
        raise fake.exceptions.RayError("the node died\nlong text")

    monkeypatch.setattr(fake, "get", lambda one: one.value if not isinstance(one.value, tuple) else died(one))
    with pytest.raises(TrainingError, match=r"computed on the cluster: RayError: the node died; expected"):
        as_job(photos, ("data.cache", str(tmp_path))).with_features(engine="ray")


def test_the_reason_is_what_the_task_raised():
    exceptions = pytest.importorskip("ray.exceptions")
    cause = MemoryError("no memory for 3 GB\nmore")
    trace = "ray::f() (pid=7, ip=192.0.2.2)\nTraceback\n  f()\nMemoryError: no memory"
    assert cluster.reason_of(exceptions.RayTaskError("f", trace, cause)) == "MemoryError: no memory for 3 GB"
    assert cluster.reason_of(exceptions.RayTaskError("f", trace, None)) == "MemoryError: no memory"
    assert cluster.reason_of(exceptions.WorkerCrashedError()).startswith("WorkerCrashedError: The worker died")
    assert cluster.reason_of(ConnectionError()) == "ConnectionError"


def test_a_cluster_is_joined_once_and_only_for_work(photos, tmp_path, fake):  # noqa: F811
    fake.initialized, job = False, as_job(photos)
    assert job.prepared.splits.validation is not None
    for _ in range(2):
        compute_features(job.prepared.splits, job.network, tmp_path / "store", engine=ray_features.on_ray())
    assert fake.joined == 1  # for two splits; the second pass finds all features


def test_a_stop_is_still_a_stop_when_ray_has_been_joined(fake, monkeypatch):
    fake.initialized = False

    def save_and_stop(*_): ...

    before = signal.signal(signal.SIGTERM, save_and_stop)
    try:
        with cluster.joined_cluster():
            assert signal.getsignal(signal.SIGTERM) is save_and_stop
        assert signal.getsignal(signal.SIGTERM) is save_and_stop and fake.joined == 1

        def fails(**_options):
            fake.__class__.init(fake)
            raise ConnectionError

        monkeypatch.setattr(fake, "init", fails)
        with pytest.raises(RecipeError, match=r"cannot join the Ray cluster '.*': ConnectionError; expected"):
            cluster.joined_cluster().__enter__()
        assert signal.getsignal(signal.SIGTERM) is save_and_stop
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_still_runs_is_cancelled_when_something_raises(photos, tmp_path, fake):  # noqa: F811
    job = as_job(photos)

    def stop(_done, _total):
        raise Stopped("at once")

    fake.idle = 1  # the stop is seen while no task ends
    with pytest.raises(Stopped) as stopped:
        compute_features(
            job.prepared.splits, job.network, tmp_path / "store", engine=ray_features.on_ray(), report=stop
        )
    assert stopped.traceback  # holds the frames: nothing is closed by chance
    assert len(fake.cancelled) == ray_features.AHEAD * 2


def test_no_gpu_is_used_where_tasks_have_none(photos, tmp_path, fake, monkeypatch):  # noqa: F811
    monkeypatch.setattr(fake, "cluster_resources", lambda: {"CPU": 2.0, "GPU": 4.0})
    compute_chunk, asked = ray_features._compute_chunk, set()

    def look(shared, on_gpu, number, rows):
        asked.add(on_gpu)
        return compute_chunk(shared, on_gpu, number, rows)

    monkeypatch.setattr(ray_features, "_compute_chunk", look)
    as_job(photos, ("training.device", "cpu"), ("data.cache", str(tmp_path))).with_features(engine="ray")
    assert asked == {False} and fake.most == ray_features.AHEAD * 2
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # Ray hides no GPU from such a task
    assert ray_features._extractor(torch.nn.Identity(), on_gpu=False).compute.device.type == "cpu"


def test_a_network_that_is_trained_as_a_whole_has_nothing_to_spread(pets):
    chosen = photo_recipe(pets, ("model.name", "small_cnn"))
    with pytest.warns(UserWarning, match="--engine ray only computes the features of a frozen backbone"):
        assemble(chosen, load(chosen.data)).with_features(engine="ray")


def test_an_engine_that_is_unknown_or_missing_is_refused_at_once(photos, monkeypatch):  # noqa: F811
    with pytest.raises(RecipeError, match="--engine is 'spark'; expected local or ray"):
        run_recipe(photo_recipe(photos), engine="spark")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecipeError, match="--engine ray needs Ray"):
        run_recipe(photo_recipe(photos), engine="ray")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_on_a_local_cluster_is_the_run_on_one_machine(photos, tmp_path, monkeypatch):  # noqa: F811
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its workers find the same modules
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(features_module, "CHUNK", 8)
    caches = {name: ("data.cache", str(tmp_path / name)) for name in ("here", "there")}
    here = run_recipe(photo_recipe(photos, caches["here"]), tmp_path / "run-here")
    there = run_recipe(photo_recipe(photos, caches["there"]), tmp_path / "run-there", engine="ray")
    assert here.labels.table.equals(there.labels.table)
    for name, value in here.model.state_dict().items():
        assert torch.equal(value, there.model.state_dict()[name]), name
    stores = [FeatureStore(next((tmp_path / name).glob("*/")), 1280) for name in ("here", "there")]
    digests = list(stores[0]._rows)
    assert (stores[0].read(digests) == stores[1].read(digests)).all() and len(digests) == 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_task_whose_process_dies_runs_once_more(photos, tmp_path, monkeypatch):  # noqa: F811
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(features_module, "CHUNK", 8)
    compute_chunk, mark = ray_features._compute_chunk, tmp_path / "died"

    def dies_once(shared, on_gpu, number, rows):
        if number == 2 and not mark.exists():
            mark.touch()
            os._exit(1)
        return compute_chunk(shared, on_gpu, number, rows)

    monkeypatch.setattr(ray_features, "_compute_chunk", dies_once)
    job = as_job(photos)
    found = compute_features(job.prepared.splits, job.network, tmp_path / "store", engine=ray_features.on_ray())
    assert found.computed == 40 and mark.exists()
