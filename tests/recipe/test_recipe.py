import tomllib

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pencil import RecipeError, recipe
from pencil.methods import Auto, CrossEntropy
from pencil.methods.schedules import Constant, StepDecay


def test_defaults_make_a_recipe_and_a_method():
    made = recipe.parse({"data": {"source": "digits"}})
    assert isinstance(made.build_method(), Auto)
    assert made.training.batch_size == 128 and made.data.validation is None


def test_numbers_become_schedules_and_come_back_from_toml():
    tree = {"method": {"name": "pencil", "step": 4, "finetune_lr": {"kind": "step", "start": 0.2, "at": [4, 8]}}}
    made = recipe.parse(tree)
    method = made.build_method()
    assert method.step == Constant(4.0) and method.finetune_lr == StepDecay(0.2, at=(4.0, 8.0))
    again = recipe.parse(tomllib.loads(made.to_toml()))
    assert again.to_toml() == made.to_toml()


@for_all(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 10**6),
    rate=st.floats(0, 1),
    kind=st.sampled_from(["symmetric", "circular", "instance"]),
    lr=st.floats(1e-6, 10),
    optimizer=st.sampled_from(["sgd", "rmsprop", "adamw"]),
    epochs=st.none() | st.integers(1, 1000),
    description=st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])),
)
def test_every_recipe_survives_toml(seed, batch, rate, kind, lr, optimizer, epochs, description):
    made = recipe.parse(
        {
            "seed": seed,
            "description": description,
            "data": {"source": "digits", "noise": {"kind": kind, "rate": rate}},
            "method": {"name": "cross_entropy", "lr": lr},
            "training": {"batch_size": batch, "optimizer": {"name": optimizer}}
            | ({"epochs": epochs} if epochs else {}),
        }
    )
    assert recipe.parse(tomllib.loads(made.to_toml())).to_toml() == made.to_toml()
    assert isinstance(made.build_method(), CrossEntropy)


def test_all_mistakes_are_reported_at_once_with_suggestions():
    tree = {
        "sede": 1,
        "data": {"noise": {"kind": "symmetric", "rate": 50}},
        "method": {"name": "pencil", "stp": 4.0, "beta": "much"},
        "training": {"batch_siez": 3, "precision": "fp8"},
    }
    with pytest.raises(RecipeError) as caught:
        recipe.parse(tree, "my.toml")
    message = str(caught.value)
    assert "6 errors in my.toml" in message
    assert "sede: there is no such key; did you mean 'seed'?" in message
    assert "method.stp: there is no such key; did you mean 'method.step'?" in message
    assert "training.batch_siez: there is no such key; did you mean 'training.batch_size'?" in message
    assert "method.beta" in message and "'much'" in message
    assert "data.noise" in message and "50" in message
    assert "training.precision" in message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"method": {"name": "pensil"}}, r"no method 'pensil'; expected auto, pencil"),
        ({"method": {"name": "pencil", "step": 1.0, "label_lr": 200.0}}, r"both step and the paper's label_lr"),
        ({"method": {"name": "pencil", "pull": 1.0, "alpha": 0.1}}, r"both pull and the paper's alpha"),
        ({"method": {"name": "nowhere.py:Mine"}}, r"nowhere.py does not exist"),
        ({"method": {"name": "pencil", "compatibility": "prnted"}}, r"method.compatibility.*'printed' or 'published'"),
        ({"method": {"name": "pencil", "backbone_epochs": -1}}, r"method.backbone_epochs.*-1"),
        ({"method": {"name": "pencil", "rounds": 0}}, r"method.rounds"),
        ({"method": {"name": 3}}, r"method.name: expected a name; saw 3"),
        ({"method": {"name": "pencil", "lr": -1}}, r"method.lr.*greater than or equal to 0"),
        (
            {"method": {"name": "pencil", "lr": {"kind": "multiply", "start": 1, "factor": 0.9, "every": 0}}},
            r"every.*greater than 0",
        ),
        (
            {"method": {"step": 2.0}},
            r"method.step: there is no such key for method auto; pencil has it \(method.name = pencil\)",
        ),
        ({"training": {"optimizer": {"nesterov": True, "momentum": 0}}}, r"nesterov needs a momentum"),
        ({"training": {"seed": 1}}, r"training.seed: there is no such key; did you mean 'seed'"),
    ],
)
def test_bad_methods_are_named(tree, message):
    with pytest.raises(RecipeError, match=message):
        recipe.parse(tree)


def test_overrides_come_last_and_are_toml():
    tree = {"training": {"batch_size": 64}, "method": {"name": "pencil"}}
    changed = recipe.override(
        tree,
        ["training.batch_size=32", "method.step=4", "data.source=digits", 'data.noise={kind="circular", rate=0.3}'],
    )
    made = recipe.parse(changed)
    assert made.training.batch_size == 32 and made.data.noise.rate == 0.3 and made.method["step"]["value"] == 4.0
    assert tree == {"training": {"batch_size": 64}, "method": {"name": "pencil"}}  # never in place


@pytest.mark.parametrize("bad", ["seed", "=3", "a..b=1"])
def test_a_malformed_override_is_named(bad):
    with pytest.raises(RecipeError, match="form key=value"):
        recipe.override({}, [bad])


def test_what_can_be_named(tmp_path):
    assert recipe.find("digits")["data"]["source"] == "digits"
    (tmp_path / "mine.toml").write_text("seed = 3")
    assert recipe.find(str(tmp_path / "mine.toml")) == {"seed": 3}
    with pytest.raises(RecipeError, match="did you mean 'digits'"):
        recipe.find("digit")
    (tmp_path / "bad.toml").write_text("seed = = 3")
    with pytest.raises(RecipeError, match="is not TOML"):
        recipe.find(str(tmp_path / "bad.toml"))
    with pytest.raises(RecipeError, match="cannot read"):
        recipe.find(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("name", recipe.shipped())
def test_shipped_recipes_are_valid_and_described(name):
    made = recipe.parse(recipe.find(name), name)
    assert made.name == name and made.description


def test_a_users_own_method_works_like_ours(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from pencil.labels.losses import cross_entropy\n"
        "from pencil.methods import Method, Phase, Terms\n"
        "from pencil.methods import Schedule, as_schedule\n"
        "class Mine(Method):\n"
        "    def __init__(self, *, q: float = 0.7, lr: Schedule = 0.1):\n"
        "        self.q, self.lr = q, as_schedule(lr)\n"
        "    def start(self, task):\n"
        "        loss = lambda outputs, batch: Terms(self.q * cross_entropy(outputs.logits, batch.given_labels))\n"
        "        return (Phase('train', 2, loss, self.lr),)\n"
    )
    made = recipe.parse({"method": {"name": f"{path}:Mine", "q": 0.5}}, trust=True)
    assert made.build_method().q == 0.5
    with pytest.raises(RecipeError, match=r"method.qq: there is no such key"):
        recipe.parse({"method": {"name": f"{path}:Mine", "qq": 0.5}}, trust=True)
    with pytest.raises(RecipeError, match=r"does not define 'Other'.*it has Mine"):
        recipe.parse({"method": {"name": f"{path}:Other"}}, trust=True)
    path.write_text("def broken(:")
    with pytest.raises(RecipeError, match=r"mine.py cannot be loaded: SyntaxError"):
        recipe.parse({"method": {"name": f"{path}:Mine"}}, trust=True)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"training": {"lr": 0.1}}, "training.lr: there is no such key; did you mean 'method.lr'?"),
        ({"data": {"noise": "symmetric"}}, "data.noise: expected a table of keys; saw 'symmetric'"),
        (
            {"data": {"noise": {"kind": "symmetric", "rate": 3}}},
            "data.noise.rate: input should be less than or equal to 1; saw 3",
        ),
    ],
)
def test_a_mistake_is_named_by_the_key_that_was_written(tree, said):
    with pytest.raises(RecipeError) as caught:
        recipe.parse(tree)
    assert said in str(caught.value)
