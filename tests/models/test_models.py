import hashlib

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pencil.errors import ModelError, RecipeError
from pencil.models import ModelSettings, build, preact_resnet32, provenance, resolve


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_preact_resnet32_has_the_size_of_the_paper():
    """1.86 M at Tanaka's widths; 32 weighted layers: a stem, 3 stages of 5 blocks of 2, and a classifier."""
    network = preact_resnet32(3, 10)
    assert parameters(network) == 1_860_138
    main = [
        name for name, m in network.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and "shortcut" not in name
    ]
    assert len(main) == 32
    assert parameters(preact_resnet32(3, 10, widths=(16, 32, 64))) == 466_714
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert network.forward_features(torch.zeros(1, 3, 32, 32)).shape == (1, 128, 8, 8)


def test_resnet34_keeps_the_resolution_of_small_images():
    network = build(ModelSettings(name="resnet34_cifar"), (3, 32, 32), 100, seed=0)
    assert parameters(network) == 21_328_292
    features = []
    network.layer4.register_forward_hook(lambda *seen: features.append(seen[2].shape[2:]))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    assert tuple(features[0]) == (4, 4)


@pytest.mark.parametrize(("name", "size"), [("resnet50", 23_528_522), ("efficientnet_b0", 4_020_358)])
def test_networks_of_timm_go_by_the_papers_names(name, size):
    assert parameters(build(ModelSettings(name=name), (3, 64, 64), 10, seed=0)) == size


@pytest.mark.parametrize("number", range(6))
def test_every_efficientnet_of_the_paper_is_known(number):
    import timm

    from pencil.models import TIMM

    assert timm.is_model(TIMM[f"efficientnet_b{number}"])


def test_auto_follows_the_inputs():
    auto = ModelSettings()
    assert resolve(auto, (20,)).name == "mlp"
    assert resolve(auto, (3, 32, 32)).name == "small_cnn"
    assert resolve(auto, (3, 224, 224)).name == "timm/resnet18"


def test_same_seed_same_weights():
    first, again, other = (build(ModelSettings(name="preact_resnet32"), (3, 32, 32), 10, seed) for seed in (1, 1, 2))
    assert torch.equal(first.fc.weight, again.fc.weight) and not torch.equal(first.fc.weight, other.fc.weight)


OWN = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes, input_shape, width=4):
        super().__init__(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Linear(width, num_classes))

def linear(num_classes):
    return nn.LazyLinear(num_classes)

def wrong():
    return 3
"""


def test_a_users_own_file(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(OWN)
    network = build(ModelSettings(name=f"{path}:Net", options={"width": 7}), (5,), 3, seed=0)
    assert network[1].weight.shape == (7, 5) and network[2].weight.shape == (3, 7)
    assert build(ModelSettings(name=f"{path}:linear"), (5,), 3, seed=0)(torch.zeros(2, 5)).shape == (2, 3)
    with pytest.raises(ModelError, match=r"gives a int; expected a torch.nn.Module"):
        build(ModelSettings(name=f"{path}:wrong"), (5,), 3, seed=0)
    with pytest.raises(ModelError, match="defines no model 'Other'"):
        build(ModelSettings(name=f"{path}:Other"), (5,), 3, seed=0)
    with pytest.raises(ModelError, match="does not take the options"):
        build(ModelSettings(name=f"{path}:Net", options={"depth": 7}), (5,), 3, seed=0)
    with pytest.raises(RecipeError, match="does not exist"):
        build(ModelSettings(name="none.py:Net"), (5,), 3, seed=0)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"name": "resnet51"}, (3, 8, 8), r"no model 'resnet51'; expected mlp, small_cnn, .*my_model.py:Net"),
        ({"name": "timm/resnet18x"}, (3, 8, 8), "timm has no model 'resnet18x'"),
        ({"name": "preact_resnet32"}, (9,), "needs images"),
        ({"name": "small_cnn", "pretrained": True}, (3, 8, 8), "no pretrained weights for 'small_cnn'"),
        ({"name": "mlp", "attention": True}, (9,), "attention structure stands on networks of timm"),
    ],
)
def test_what_cannot_be_built_is_named(settings, shape, message):
    with pytest.raises(ModelError, match=message):
        build(ModelSettings(**settings), shape, 3, seed=0)


@pytest.fixture(params=["safetensors", "pt", "wrapped"])
def weights_file(request, tmp_path):
    """A small CNN for 5 classes, saved in one of the usual ways."""
    network = build(ModelSettings(name="small_cnn", options={"width": 4}), (3, 8, 8), 5, seed=7)
    if request.param == "safetensors":
        path = tmp_path / "w.safetensors"
        save_file(network.state_dict(), path)
    else:
        path = tmp_path / "w.pt"
        state = {f"module.{name}": value for name, value in network.state_dict().items()}
        torch.save({"epoch": 3, "state_dict": state} if request.param == "wrapped" else state, path)
    return path, network


def test_weights_from_a_file(weights_file):
    path, original = weights_file
    settings = ModelSettings(name="small_cnn", options={"width": 4}, weights=path)
    network = build(settings, (3, 8, 8), 5, seed=0)
    for name, value in original.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    assert provenance(settings, network, 5)["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_head_of_another_width_starts_fresh_and_says_so(weights_file):
    path, original = weights_file
    settings = ModelSettings(name="small_cnn", options={"width": 4}, weights=path)
    with pytest.warns(UserWarning, match=r"no fitting 18.weight, 18.bias; they start fresh"):
        network = build(settings, (3, 8, 8), 9, seed=0)
    assert torch.equal(network[0].weight, original[0].weight)
    assert torch.equal(network[18].weight, build(settings, (3, 8, 8), 9, seed=0, fresh=True)[18].weight)


def test_any_other_difference_is_refused(weights_file):
    path, _ = weights_file
    with pytest.raises(ModelError, match=r"do not fit the model: \d+ of another shape \(0.weight"):
        build(ModelSettings(name="small_cnn", options={"width": 8}, weights=path), (3, 8, 8), 5, seed=0)
    with pytest.raises(ModelError, match=r"missing .*unknown"):
        build(ModelSettings(name="preact_resnet32", weights=path), (3, 8, 8), 5, seed=0)


def test_files_that_are_no_weights_are_refused(tmp_path):
    def settings(path):
        return ModelSettings(name="small_cnn", weights=path)

    class Evil:
        def __reduce__(self):
            return print, ("code ran",)

    torch.save({"a": Evil()}, tmp_path / "evil.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "cut.safetensors").write_bytes(b"\x08")
    for name in ("evil.pt", "list.pt", "cut.safetensors", "none.pt"):
        with pytest.raises(ModelError, match=r"cannot read weights|holds no plain weights"):
            build(settings(tmp_path / name), (3, 8, 8), 5, seed=0)


def test_attention_takes_a_backbone_without_its_head(tmp_path):
    plain = build(ModelSettings(name="timm/resnet10t"), (3, 64, 64), 4, seed=5)
    save_file(plain.state_dict(), tmp_path / "w.safetensors")
    settings = ModelSettings(
        name="timm/resnet10t", attention=True, attention_width=16, weights=tmp_path / "w.safetensors"
    )
    network = build(settings, (3, 64, 64), 7, seed=0)
    assert torch.equal(network.backbone.conv1[0].weight, plain.conv1[0].weight)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 7)
    assert network.maps(torch.zeros(2, 3, 64, 64)).shape == (2, 7, 2, 2)
    with pytest.raises(ModelError, match=r"give a map of 3 x 3; this network was built for one of 2 x 2"):
        network(torch.zeros(2, 3, 96, 96))


def test_attention_starts_as_a_mean_over_the_map():
    network = build(ModelSettings(name="timm/resnet10t", attention=True, attention_width=8), (3, 64, 64), 3, seed=0)
    x = torch.randn(2, 3, 64, 64)
    network.eval()
    torch.testing.assert_close(network(x), network.maps(x).mean(dim=(2, 3)))


def test_attention_needs_a_map():
    with pytest.raises(ModelError, match="expected a map"):
        build(ModelSettings(name="timm/vit_tiny_patch16_224", attention=True), (3, 224, 224), 3, seed=0)
