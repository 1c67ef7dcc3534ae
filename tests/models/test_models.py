import hashlib

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pencil.errors import ModelError, RecipeError
from pencil.job.network import resolve
from pencil.models import ModelSettings, build, preact_resnet32, provenance
from pencil.user_file import Trust


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


def test_torchvisions_networks_take_any_classes_and_channels():
    network = build(ModelSettings(name="torchvision/mobilenet_v3_small"), (3, 32, 32), 7, seed=0)
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    grey, more = (
        build(ModelSettings(name="torchvision/mobilenet_v3_small"), (channels, 32, 32), 7, seed=0).eval()
        for channels in (1, 6)
    )
    x = torch.randn(2, 1, 32, 32)
    expected = network(x.expand(-1, 3, -1, -1))  # a channel repeated means what it meant
    torch.testing.assert_close(grey(x), expected)
    torch.testing.assert_close(more(x.expand(-1, 6, -1, -1)), expected)


def test_torchvisions_auxiliary_classifiers_are_left_out():
    network = build(ModelSettings(name="torchvision/googlenet"), (3, 64, 64), 3, seed=0)
    assert network.train()(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


@pytest.fixture
def published(monkeypatch):
    """What stands for torchvision's published ResNet-18."""
    from torchvision.models import ResNet18_Weights, resnet18

    state = resnet18(num_classes=1000).state_dict()
    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", lambda *args, **kwargs: state)
    return state


@pytest.mark.parametrize(("channels", "attention"), [(3, False), (1, False), (3, True)])
def test_torchvisions_pretrained_weights_get_a_fresh_output_layer(published, channels, attention):
    settings = ModelSettings(name="torchvision/resnet18", pretrained=True, attention=attention, attention_width=8)
    network = build(settings, (channels, 32, 32), 5, seed=0)
    backbone = network.backbone if attention else network
    assert torch.equal(backbone.get_submodule("layer4.1.conv2").weight, published["layer4.1.conv2.weight"])
    assert torch.equal(
        backbone.conv1.weight, published["conv1.weight"] if channels == 3 else published["conv1.weight"].sum(1, True)
    )
    assert network.eval()(torch.zeros(2, channels, 32, 32)).shape == (2, 5)
    again = build(settings, (channels, 32, 32), 5, seed=0)
    other = build(settings, (channels, 32, 32), 5, seed=1)
    last = "head.expand.weight" if attention else "fc.weight"
    assert torch.equal(again.state_dict()[last], network.state_dict()[last])
    assert not torch.equal(other.state_dict()[last], network.state_dict()[last])
    digests = {provenance(settings, one, 5)["sha256_of_tensors"] for one in (network, other)}
    assert len(digests) == 1  # of what was pretrained, not of the fresh head


def test_pretrained_weights_that_cannot_be_fetched_say_what_to_do(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    settings = ModelSettings(name="torchvision/mobilenet_v3_small", pretrained=True)
    with pytest.raises(
        ModelError, match=r"cannot be downloaded \(no route to host\); use efficientnet_lite0.*or save them to a file"
    ):
        build(settings, (3, 32, 32), 5, seed=0)


def test_small_cnn_can_pool_over_all_places():
    settings = ModelSettings(name="small_cnn", options={"width": 4, "pool": True})
    network = build(settings, (1, 28, 28), 5, seed=0).eval()
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(network(x), network[-1](network[:14](x).mean(dim=(2, 3))))


def test_auto_follows_the_inputs():
    auto = ModelSettings()
    assert resolve(auto, (20,)).name == "mlp"
    assert resolve(auto, (3, 32, 32)).name == "small_cnn"
    photos = resolve(auto, (3, 224, 224))
    assert (photos.name, photos.pretrained, photos.train) == ("efficientnet_lite0", True, "head")
    assert resolve(auto, (3, 224, 224), gpu=True).train == resolve(auto, (3, 224, 224), augmented=True).train == "all"
    assert resolve(ModelSettings(attention=True), (3, 224, 224)).train == "all"
    assert resolve(ModelSettings(name="timm/resnet18"), (3, 224, 224)).train == "all"


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
    network = build(
        ModelSettings(name=f"{path}:Net", options={"width": 7}), (5,), 3, seed=0, trust=Trust(everything=True)
    )
    assert network[1].weight.shape == (7, 5) and network[2].weight.shape == (3, 7)
    assert build(ModelSettings(name=f"{path}:linear"), (5,), 3, seed=0, trust=Trust(everything=True))(
        torch.zeros(2, 5)
    ).shape == (
        2,
        3,
    )
    with pytest.raises(ModelError, match=r"returns a int; expected a torch.nn.Module"):
        build(ModelSettings(name=f"{path}:wrong"), (5,), 3, seed=0, trust=Trust(everything=True))
    with pytest.raises(ModelError, match="does not define 'Other'"):
        build(ModelSettings(name=f"{path}:Other"), (5,), 3, seed=0, trust=Trust(everything=True))
    with pytest.raises(ModelError, match="does not take the options"):
        build(ModelSettings(name=f"{path}:Net", options={"depth": 7}), (5,), 3, seed=0, trust=Trust(everything=True))
    with pytest.raises(RecipeError, match="does not exist"):
        build(ModelSettings(name="none.py:Net"), (5,), 3, seed=0, trust=Trust(everything=True))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (
            {"name": "resnet51"},
            (3, 8, 8),
            r"no model 'resnet51' .did you mean 'resnet50'.*; expected mlp, small_cnn, .*my_model.py:Net",
        ),
        ({"name": "timm/resnet18x"}, (3, 8, 8), "timm has no model 'resnet18x'"),
        ({"name": "preact_resnet32"}, (9,), "needs images"),
        ({"name": "small_cnn", "pretrained": True}, (3, 8, 8), "no pretrained weights for 'small_cnn'"),
        ({"name": "torchvision/resnet18"}, (9,), "needs images"),
        (
            {"name": "torchvision/resnet1"},
            (3, 8, 8),
            "no model 'resnet1'; did you mean resnet101, resnet152, resnet18",
        ),
        ({"name": "torchvision/effnet_b0"}, (3, 8, 8), r"no model 'effnet_b0'; did you mean efficientnet_b0"),
        ({"name": "torchvision/fcn_resnet50"}, (3, 8, 8), "torchvision has no model 'fcn_resnet50'"),
        ({"name": "torchvision/resnet18", "options": {"depth": 3}}, (3, 8, 8), "does not take the options"),
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
    with pytest.warns(UserWarning, match=r"no matching 18.weight, 18.bias; they start fresh"):
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
    torch.save({"a": torch.ones(4)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    damaged = bytearray((tmp_path / "old.pt").read_bytes())
    names = ["evil.pt", "list.pt", "cut.safetensors", "none.pt"]
    for place in range(10, 60):  # the pickle in the file then raises almost any kind of error
        names.append(f"{place}.pt")
        (tmp_path / names[-1]).write_bytes(bytes([*damaged[:place], 0x80, *damaged[place + 1 :]]))
    for name in names:
        with pytest.raises(ModelError, match=r"cannot read weights|does not contain plain weights|do not fit"):
            build(settings(tmp_path / name), (3, 8, 8), 5, seed=0)
