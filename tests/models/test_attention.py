"""The attention structure: on which networks it stands, what it computes, and how its weights are kept."""

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pencil
from pencil.errors import DataError, ModelError
from pencil.models import Attention, AttentionNetwork, ModelSettings, build, reinitialized
from pencil.training.settings import OptimizerSettings, build_optimizer
from pencil.user_file import Trust

WIDTH = 8


def attend(name, shape, classes=5, *, seed=0, **more):
    settings = ModelSettings(name=name, attention=True, attention_width=WIDTH, **more)
    return build(settings, shape, classes, seed, trust=Trust(everything=True))


def pooled(tail):
    """The rest of a network that takes the mean over its map."""
    return lambda plain, features: getattr(plain, tail)(features.mean(dim=(2, 3)))


# Network, options, input size, map size, and what the whole network does with its map.
KINDS = [
    ("timm/test_resnet", {}, 64, (2, 2), pooled("fc")),
    ("torchvision/resnet18", {}, 64, (2, 2), pooled("fc")),
    ("torchvision/mobilenet_v3_small", {}, 64, (2, 2), pooled("classifier")),
    ("torchvision/squeezenet1_1", {}, 64, (3, 3), lambda plain, features: plain.classifier(features).flatten(1)),
    ("torchvision/densenet121", {}, 64, (2, 2), pooled("classifier")),
    ("torchvision/swin_t", {}, 64, (2, 2), pooled("head")),
    ("small_cnn", {"width": 4}, 28, (7, 7), lambda plain, features: plain[14:](features)),
    ("small_cnn", {"width": 4, "pool": True}, 28, (7, 7), lambda plain, features: plain[14:](features)),
    ("preact_resnet32", {"widths": [4, 4, 8]}, 32, (8, 8), pooled("fc")),
    ("resnet34_cifar", {}, 8, (1, 1), pooled("fc")),
    ("fast_cnn", {"width": 0.125}, 32, (3, 3), lambda plain, features: plain.fc(features.amax((2, 3))) / 9),
]


@pytest.mark.parametrize(("name", "options", "size", "map_size", "tail"), KINDS)
def test_it_stands_on_any_convolutional_network(name, options, size, map_size, tail, tmp_path):
    """A plain network's file gives the backbone its weights, and the map is the one that the plain network pools.

    All of it trains, and its head can have a learning rate of its own.
    """
    shape = (3, size, size)
    plain = build(ModelSettings(name=name, options=options), shape, 4, seed=5).eval()
    save_file(plain.state_dict(), tmp_path / "w.safetensors")
    network = attend(name, shape, 7, options=options, weights=tmp_path / "w.safetensors").eval()
    x = torch.randn(2, *shape)
    assert network.map_size == map_size and network(x).shape == (2, 7) and network.maps(x).shape == (2, 7, *map_size)
    torch.testing.assert_close(tail(plain, network.features(x)), plain(x))
    kept = {name.removeprefix("backbone.") for name in network.state_dict() if not name.startswith("head.")}
    assert kept < set(plain.state_dict())
    copied = copy.deepcopy(network).train()  # as trainers do
    copied(x).sum().backward()
    trained = {name: parameter.grad for name, parameter in copied.named_parameters() if parameter.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    factors = OptimizerSettings(lr_factors={"head": 5.0})
    groups = {group["factor"]: group["params"] for group in build_optimizer([network], factors).param_groups}
    assert groups.keys() == {1.0, 5.0} and set(groups[5.0]) == set(network.head.parameters())


def test_the_structure_written_out():
    """To more channels, batch normalisation and ReLU, to a map per class, and a weighted sum over each class's map."""
    head, features = Attention(6, 3, (2, 4), width=16).double(), torch.randn(5, 6, 2, 4, dtype=torch.float64)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    wide = torch.einsum("oc,bchw->bohw", head.expand.weight[:, :, 0, 0], features)
    mean, variance = wide.mean((0, 2, 3), keepdim=True), wide.var((0, 2, 3), unbiased=False, keepdim=True)
    scaled = (wide - mean) / (variance + head.bn.eps).sqrt() * head.bn.weight[:, None, None] + head.bn.bias[
        :, None, None
    ]
    maps = torch.einsum("oc,bchw->bohw", head.classes.weight[:, :, 0, 0], scaled.clamp(min=0))
    maps = maps + head.classes.bias[:, None, None]
    logits = (maps * head.gather.weight[:, 0]).sum((2, 3)) + head.gather.bias
    torch.testing.assert_close(head.train()(features), logits)


def test_maps_are_what_each_place_adds_to_the_logits():
    network = attend("small_cnn", (1, 16, 16)).eval()
    nn.init.normal_(network.head.gather.weight)
    nn.init.normal_(network.head.gather.bias)
    x = torch.randn(3, 1, 16, 16)
    maps = network.maps(x)
    assert maps.shape == (3, 5, 4, 4)
    torch.testing.assert_close(maps.sum(dim=(2, 3)) + network.head.gather.bias, network(x))


def test_attention_starts_as_a_mean_over_the_map():
    network = attend("timm/resnet10t", (3, 64, 64)).eval()
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network(x), network.head.class_maps(network.features(x)).mean(dim=(2, 3)))
    again = reinitialized(copy.deepcopy(network), seed=3, number=1)
    assert torch.equal(again.head.gather.weight, network.head.gather.weight)
    assert not torch.equal(again.head.expand.weight, network.head.expand.weight)


@pytest.mark.parametrize("ask", [lambda network, x: network(x), lambda network, x: network.maps(x)])
def test_inputs_of_another_size_are_refused(ask):
    network = attend("timm/test_resnet", (3, 64, 64))
    with pytest.raises(
        ModelError, match=r"96 x 64 pixels have a feature map of 3 x 2; .* for a feature map of 2 x 2; use .* 64 x 64"
    ):
        ask(network, torch.zeros(2, 3, 96, 64))


@pytest.mark.parametrize(
    ("number", "pixels", "places"), [(0, 224, 7), (1, 240, 8), (2, 260, 9), (3, 300, 10), (4, 380, 12), (5, 456, 15)]
)
def test_maps_of_the_papers_networks_at_their_own_sizes(number, pixels, places):
    with torch.device("meta"):  # shapes alone
        network = build(ModelSettings(name=f"efficientnet_b{number}", attention=True), (3, pixels, pixels), 80, seed=0)
    assert network.map_size == (places, places)
    assert network.head.expand.out_channels == 2048 and network.head.gather.weight.shape == (80, 1, places, places)


def test_channels_that_come_last_are_known_for_channels():
    options = {"embed_dim": 16, "depths": [1, 1], "num_heads": [1, 1], "img_size": 56}
    network = attend("timm/swin_tiny_patch4_window7_224", (3, 56, 56), options=options).eval()
    x = torch.randn(2, 3, 56, 56)
    assert network.backbone(x).shape == (2, 7, 7, 32) and network.head.expand.in_channels == 32
    assert torch.equal(network.features(x), network.backbone(x).permute(0, 3, 1, 2))


class Last(nn.Module):
    """A map with its channels last; at its trial size all three dimensions are 8."""

    def __init__(self, last=True):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3, stride=2, padding=1), last

    def forward(self, x):
        return self.conv(x).permute(0, 2, 3, 1) if self.last else self.conv(x)


class OneSize(Last):
    def forward(self, x):
        assert x.shape[2] == 16, "16 pixels only"
        return super().forward(x)


@pytest.mark.parametrize("last", [True, False])
def test_where_no_one_tells_channels_are_what_does_not_grow(last):
    network = AttentionNetwork(Last(last), (3, 16, 16), 5, WIDTH)
    assert network.channels_last is last and network.map_size == (8, 8)
    assert network(torch.zeros(1, 3, 16, 16)).shape == (1, 5)


def test_channels_that_cannot_be_told_are_refused():
    with pytest.raises(
        ModelError, match=r"shape \(8, 8, 8\), in which the channel dimension is ambiguous.* num_features"
    ):
        AttentionNetwork(OneSize(), (3, 16, 16), 5, WIDTH)


USERS = """
import torch
from torch import nn
from torch.nn import functional as F


class Traced(nn.Module):
    # Pooling by a window as large as the map, and dropout that is not a layer
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Linear(6, num_classes)

    def forward(self, x):
        x = F.dropout(F.relu(self.conv(x)), 0.5, training=self.training)
        return self.fc(F.avg_pool2d(x, 8).view(x.size(0), -1))


class Noisy(Traced):
    # In training it does more on the way to its map
    def forward(self, x):
        if self.training:
            x = F.relu(x + torch.randn_like(x))
        return super().forward(x)


class TwoWays(Traced):
    # In training it does more after its map
    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.mean((2, 3))) + 0 if self.training else self.fc(x.mean((2, 3)))


class Flat(nn.Sequential):
    # One input size only, because of its classifier
    def __init__(self, num_classes):
        super().__init__(nn.Conv2d(3, 6, 3, stride=2), nn.Flatten(), nn.Linear(6 * 49, num_classes))


class Branching(nn.Module):
    # What cannot be traced
    def __init__(self, num_classes):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Linear(6, num_classes)

    def body(self, x):
        return self.conv(x if x.mean() > 100 else -x)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


class Says(Branching):
    def forward_features(self, x):
        return self.body(x)


class Features(Branching):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.features = self.conv
        del self.conv

    def body(self, x):
        return self.features(x if x.mean() > 100 else -x)


class Two(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 6, 5), nn.Linear(12, num_classes)

    def forward(self, x):
        return self.fc(torch.cat([self.a(x).mean((2, 3)), self.b(x).mean((2, 3))], 1))


class Tokens(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.patch, self.mix, self.fc = nn.Conv2d(3, 6, 4, 4), nn.Linear(6, 6), nn.Linear(6, num_classes)

    def forward(self, x):
        return self.fc(self.mix(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class Fixed(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3), nn.Linear(6, num_classes)
        self.place = nn.Parameter(torch.zeros(6, 16, 16))

    def forward(self, x):
        return self.fc(self.b(self.a(x) + self.place).mean((2, 3)))
"""


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(USERS)
    return path


@pytest.mark.parametrize(
    ("own", "kept", "dropped", "size"),
    [
        ("Traced", {"conv.weight", "conv.bias"}, {"fc.weight", "fc.bias"}, (8, 8)),
        ("Noisy", {"conv.weight", "conv.bias"}, {"fc.weight", "fc.bias"}, (8, 8)),
        ("Flat", {"0.weight", "0.bias"}, {"2.weight", "2.bias"}, (7, 7)),
        ("Says", {"conv.weight", "conv.bias"}, {"fc.weight", "fc.bias"}, (8, 8)),
        ("Features", {"features.weight", "features.bias"}, {"fc.weight", "fc.bias"}, (8, 8)),
    ],
)
def test_a_users_network(own, kept, dropped, size, users):
    pixels = (3, 16, 16)
    network = copy.deepcopy(attend(f"{users}:{own}", pixels)).eval()
    assert set(network.backbone.state_dict()) == kept
    assert set(attend(f"{users}:{own}", pixels).backbone.removed_tensors) == dropped
    x = torch.randn(2, *pixels)
    assert network(x).shape == (2, 5) and torch.equal(network(x), network(x))
    assert network.map_size == size
    if own in ("Traced", "Noisy"):
        assert not torch.equal(network.backbone.train()(x), network.backbone(x))  # its dropout is at work again


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("Branching", r"cannot be traced \(.*add a method forward_features\(x\)"),
        ("Two", "its output depends on several feature maps"),
        ("TwoWays", "continues differently after its feature map in training"),
        ("Tokens", r"its last features have shape \(16, 6\); expected \(channels, height, width\)"),
        ("Fixed", "inputs of a single size"),
    ],
)
def test_a_users_network_whose_map_cannot_be_found(own, message, users):
    with pytest.raises(ModelError, match=message):
        attend(f"{users}:{own}", (3, 16, 16))


@pytest.mark.parametrize(
    ("name", "shape", "more", "message"),
    [
        (
            "timm/vit_tiny_patch16_224",
            (3, 224, 224),
            {},
            r"features of shape \(197, 192\); expected a feature map .* timm/",
        ),
        ("timm/vit_tiny_patch16_224", (3, 64, 64), {}, r"features of shape \(17, 192\); expected a feature map"),
        ("timm/efficientvit_b0", (3, 64, 64), {}, "with the attention structure: Cannot disable pooling"),
        (
            "torchvision/vit_b_16",
            (3, 32, 32),
            {"options": {"image_size": 32}},
            "'torchvision/vit_b_16' has no feature map",
        ),
        (
            "mlp",
            (3, 8, 8),
            {},
            r"'mlp' has no feature map .* expected \(channels, height, width\).*model.attention to false",
        ),
        ("mlp", (9,), {}, r"needs images .* the inputs have shape \(9,\); set model.attention to false"),
        ("small_cnn", (9,), {}, "needs images"),
    ],
)
def test_networks_without_a_map_are_refused(name, shape, more, message):
    with pytest.raises(ModelError, match=message):
        attend(name, shape, **more)


@pytest.fixture
def saved(tmp_path):
    """A network with the attention structure for 5 classes and images of 16 pixels, and the file it is in."""
    network = attend("small_cnn", (3, 16, 16), seed=7)
    nn.init.normal_(network.head.gather.weight)
    path = tmp_path / "w.safetensors"
    save_file(network.state_dict(), path)
    return path, network


def test_a_whole_networks_file_is_loaded_whole(saved):
    path, original = saved
    network = attend("small_cnn", (3, 16, 16), weights=path)
    for name, value in original.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name


def test_for_other_classes_the_layers_that_know_them_start_fresh(saved):
    path, original = saved
    with pytest.warns(UserWarning, match=r"no matching head.classes.weight, .*head.gather.bias; they start fresh"):
        network = attend("small_cnn", (3, 32, 32), 9, weights=path)  # with a map of another size, too
    assert torch.equal(network.head.expand.weight, original.head.expand.weight)
    assert network.head.gather.weight.shape == (9, 1, 8, 8)


def test_a_head_for_another_map_is_refused_with_the_size_to_use(saved):
    path, _ = saved
    with pytest.raises(
        ModelError,
        match=r"a feature map of 4 x 4; inputs of 32 x 32 pixels give one of 8 x 8; use inputs of 16 x 16 pixels",
    ):
        attend("small_cnn", (3, 32, 32), weights=path)


def test_a_head_left_out_of_the_file_starts_fresh(saved):
    path, original = saved
    save_file({name: value for name, value in load_file(path).items() if name.startswith("backbone.")}, path)
    with pytest.warns(UserWarning, match=r"no matching head.expand.weight"):
        network = attend("small_cnn", (3, 32, 32), weights=path)
    assert torch.equal(network.backbone.state_dict()["0.weight"], original.backbone.state_dict()["0.weight"])


def test_files_of_other_networks_are_refused(saved, tmp_path):
    path, _ = saved
    with pytest.raises(ModelError, match="contains a network with the attention structure"):
        build(ModelSettings(name="small_cnn", weights=path), (3, 16, 16), 5, seed=0)
    wider = build(ModelSettings(name="small_cnn", options={"width": 64}), (3, 16, 16), 5, seed=0)
    save_file(wider.state_dict(), tmp_path / "wider.safetensors")
    with pytest.raises(ModelError, match=r"do not fit the model: \d+ of another shape"):
        attend("small_cnn", (3, 16, 16), weights=tmp_path / "wider.safetensors")
    deeper = {**build(ModelSettings(name="small_cnn"), (3, 16, 16), 5, seed=0).state_dict(), "8.extra": torch.ones(1)}
    save_file(deeper, tmp_path / "deeper.safetensors")
    with pytest.raises(ModelError, match=r"1 unknown \(8.extra\)"):
        attend("small_cnn", (3, 16, 16), weights=tmp_path / "deeper.safetensors")


def test_a_finished_run_says_the_same_again_and_refuses_other_sizes(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 1, 16, 16)).astype(np.float32), np.arange(24) % 2
    settings = {
        "model.attention": True,
        "model.attention_width": WIDTH,
        "model.options": {"width": 4},
        "training.batch_size": 8,
        "training.optimizer": {"lr_factors": {"head": 5.0}},
    }
    run = pencil.fit("small_cnn", (x, y), out=tmp_path / "run", epochs=3, settings=settings, progress=False)
    opened = pencil.open_run(tmp_path / "run")
    assert torch.equal(opened.predict_probs(x), run.predict_probs(x))
    with pytest.raises(
        DataError, match=r"of shape \(1, 24, 24\); this network was trained on float of shape \(1, 16, 16\)"
    ):
        opened.predict_probs(np.zeros((2, 1, 24, 24), dtype=np.float32))
    with pytest.raises(ModelError, match="this network was built for a feature map of 4 x 4"):
        opened.model(torch.zeros(2, 1, 24, 24))
