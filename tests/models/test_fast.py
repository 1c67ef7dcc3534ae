import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import pencil
from pencil.errors import ModelError
from pencil.models import ModelSettings, build, fast_cnn, reinitialized
from pencil.models.fast import FastCnn, patch_filters


def counted(width, side=32):
    """Parameters and forward operations for one RGB image, from the shapes of the layers."""
    first, second, third = (int(width * whole) for whole in (64, 256, 256))
    places = [(side - 1) // 2**halvings for halvings in range(4)]
    weights = {  # of each 3 x 3 convolution, and the side of its map: the first of a stage works before the pool
        "1.1": (24 * first * 9, places[0]),
        "1.2": (first * first * 9, places[1]),
        "2.1": (first * second * 9, places[1]),
        "2.2": (second * second * 9, places[2]),
        "3.1": (second * third * 9, places[2]),
        "3.2": (third * third * 9, places[3]),
    }
    norms = 2 * (24 + 2 * (first + second + third))  # scale and shift: of the patches, and twice in each stage
    parameters = sum(count for count, _ in weights.values()) + norms + 10 * third
    multiply_adds = sum(count * place**2 for count, place in weights.values()) + 10 * third
    return parameters, 2 * (multiply_adds + 24 * 12 * places[0] ** 2)


@pytest.mark.parametrize(
    ("width", "parameters", "flops"),
    [(0.25, 126_832, 20_270_144), (0.5, 497_840, 66_132_544), (1.0, 1_972_528, 236_294_720)],
)
def test_size_and_operations(width, parameters, flops):
    network = fast_cnn(3, 10, width=width)
    assert counted(width)[0] == parameters == sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter:
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert counter.get_total_flops() == 2 * counted(width)[1]
    assert counted(width)[1] == flops
    assert network.forward_features(torch.zeros(2, 3, 32, 32)).shape == (2, int(256 * width), 3, 3)


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_patch_filters_are_an_orthonormal_basis_and_its_negative(channels):
    filters = patch_filters(channels).flatten(1)
    half = 4 * channels
    assert filters.shape == (2 * half, half)
    torch.testing.assert_close(filters[:half] @ filters[:half].T, torch.eye(half))
    assert torch.equal(filters[half:], -filters[:half])
    assert fast_cnn(channels, 4, width=0.125)(torch.zeros(2, channels, 9, 12)).shape == (2, 4)


def test_the_first_layer_does_not_train_and_the_others_do():
    network = fast_cnn(3, 10, width=0.125)
    network(torch.randn(4, 3, 32, 32)).sum().backward()
    fixed = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert fixed == {name for name, _ in network.named_parameters() if "bn" in name and name.endswith("weight")}
    assert "patches" in dict(network.named_buffers())


def test_a_stage_starts_by_passing_its_inputs_on():
    stage = fast_cnn(3, 10, width=0.5).stages[1]
    x = torch.randn(2, 32, 6, 6)
    torch.testing.assert_close(stage.conv1(x)[:, :32], x)
    torch.testing.assert_close(stage.conv2(stage.conv1(x)), stage.conv1(x))


def test_further_networks_have_weights_of_their_own_and_the_same_first_layer():
    first, other = (reinitialized(fast_cnn(3, 10, width=0.125), seed=3, number=number) for number in (1, 2))
    assert torch.equal(first.patches, other.patches)
    assert not torch.equal(first.stages[1].conv1.weight, other.stages[1].conv1.weight)


def test_small_images_and_widths_are_refused():
    network = build(ModelSettings(name="fast_cnn"), (3, 8, 32), 10, seed=0)
    with pytest.raises(ModelError, match=r"images of 8 x 32 pixels; expected at least 9 x 9; set data.resize"):
        network(torch.zeros(2, 3, 8, 32))
    with pytest.raises(ModelError, match=r"width 0.001; expected a factor"):
        build(ModelSettings(name="fast_cnn", options={"width": 0.001}), (3, 32, 32), 10, seed=0)


def test_it_learns_two_colours():
    """End to end, through the options of the recipes: alternating flips, smoothing, a triangle, Nesterov momentum."""
    y = torch.arange(96) % 2
    x = torch.rand(96, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    x[y == 1, 0, 2:8, 2:8] += 2  # plain to see: how soon it is learned depends on the processor
    settings = {
        "data.augmentation": {"crop_padding": 1, "flip": "alternate"},
        "model.options": {"width": 0.125},
        "method": {"name": "cross_entropy", "lr": {"kind": "triangle", "peak": 0.2}, "label_smoothing": 0.1},
        "training.optimizer": {"momentum": 0.85, "nesterov": True},
        "training.batch_size": 8,
        "training.channels_last": True,
    }
    run = pencil.fit("fast_cnn", (x[:64], y[:64]), test=(x[64:], y[64:]), epochs=8, settings=settings, progress=False)
    assert isinstance(run.model, FastCnn)
    assert run.metrics[-1]["test_accuracy"] > 0.9
    expected = [0, 0.2 * 0.625, *(0.25 * (1 - epoch / 8) for epoch in range(2, 8))]  # the peak is at epoch 1.6
    assert [record["lr"] for record in run.metrics] == pytest.approx(expected)
