"""Of a model that is packed as it is loaded, the unpacked weights never lie there all at once."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch

from cadenza.checkpoints import read_folder
from cadenza.engine.loading import open_checkpoint
from cadenza.engine.models import FolderWeights, load_decoder, transformers_model
from cadenza.engine.models.families import BY_ARCHITECTURE
from cadenza.engine.models.folder_config import config_from_folder
from cadenza.engine.models.transformers_model import TransformersModel
from cadenza.kernels import linear
from cadenza.kernels.linear import Weight, native, pack
from tests.engine.models.tiny import OTHERS, Tiny

pytestmark = pytest.mark.skipif(
    not native.is_supported(torch.float32), reason="packing takes what it is given where it can"
)
NUM_LAYERS = 5


class Watched(FolderWeights):
    """Weights that tell how many of those they gave are still held by somebody."""

    def __init__(self, folder: Path) -> None:
        super().__init__(read_folder(folder))
        self.given: list[weakref.ref[torch.Tensor]] = []

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        weight = super().get(name, shape)
        if weight.ndim == 2:
            self.given.append(weakref.ref(weight))
        return weight

    def num_held(self) -> int:
        return sum(weight() is not None for weight in self.given)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("kind", "layers"), [("Llama", "native"), ("Gemma2", "plain")])
def test_a_layer_is_let_go_once_it_is_packed(
    kind: str, layers: str, int8: bool, tmp_path: Path
) -> None:
    Tiny(kind, {"num_hidden_layers": NUM_LAYERS, "head_dim": 32}).save(tmp_path)
    config = config_from_folder(read_folder(tmp_path), BY_ARCHITECTURE[f"{kind}ForCausalLM"])
    source = Watched(tmp_path)
    held: list[int] = []

    model = load_decoder(
        config,
        source,
        torch.float32,
        torch.device("cpu"),
        lambda *_: held.append(source.num_held()),
        quantization="int8" if int8 else "none",
    )

    assert model.layers == layers
    assert len(held) == NUM_LAYERS + 1
    products = 4  # of a layer: the others are copied as they are joined
    assert max(held) <= products


def test_a_product_of_transformers_is_let_go_once_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = OTHERS["OLMo2"]
    model = tiny.save(tmp_path)
    given = [
        weakref.ref(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    held: list[int] = []

    def watched(weight: torch.Tensor) -> Weight:
        held.append(sum(product() is not None for product in given))
        return pack(weight)

    monkeypatch.setattr(transformers_model, "pack", watched)

    TransformersModel(open_checkpoint(tmp_path).config, model)

    assert held == list(range(len(given), 0, -1))


def test_what_a_device_of_its_own_memory_has_got_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer by layer, each weight by itself: the host never holds more than it is sending."""
    monkeypatch.setattr(linear, "uses_triton", lambda _: True)
    Tiny("Llama", {"num_hidden_layers": NUM_LAYERS, "head_dim": 32}).save(tmp_path)
    config = config_from_folder(read_folder(tmp_path), BY_ARCHITECTURE["LlamaForCausalLM"])
    source = Watched(tmp_path)
    held: list[int] = []

    model = load_decoder(
        config,
        source,
        torch.bfloat16,
        torch.device("meta"),
        lambda *_: held.append(source.num_held()),
    )

    assert (model.layers, model.device.type) == ("plain", "meta")
    assert held == [0] * (NUM_LAYERS + 1)
    assert len(source.given) == NUM_LAYERS * 7 + 2
