from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from rlhf_api.spec import ModelSpec, ValueModelSpec
from rlhf_trainer.errors import ConfigError
from rlhf_trainer.models import attention, load, precision, tiny


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no folder .*/nowhere"):
        load.load_config(ModelSpec(path="./nowhere"), tmp_path)


def test_links_of_a_mounted_config_map_are_kept(tmp_path):
    (tmp_path / "..2026_11_29_10_00_00.1" / "model").mkdir(parents=True)
    (tmp_path / "..data").symlink_to("..2026_11_29_10_00_00.1")
    (tmp_path / "model").symlink_to("..data/model")
    assert load.locate(ModelSpec(path="model"), tmp_path) == str(tmp_path / "model")


def test_hub_failure_also_says_that_there_is_no_such_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_trainer.hub.unreachable", lambda *_: None)
    with pytest.raises(ConfigError, match=r"cannot be read from the hub, and there is no folder /.*/owner/name: "):
        load.load_config(ModelSpec(path="owner/name"), tmp_path)


@pytest.mark.parametrize("path", ["model/actor", "ckpt/7"])
def test_folder_to_be_made_is_not_asked_of_the_hub(tmp_path, monkeypatch, path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(ConfigError, match=rf"no folder /.*/{path}, and taken as a hub id it is not in the cache"):
        load.load_actor(ModelSpec(path=path), tmp_path, torch.float32, "sdpa")


def test_folder_without_config_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty has no config\.json"):
        load.load_config(ModelSpec(path="empty"), tmp_path)


def test_folder_without_tokenizer_is_named(tmp_path):
    tiny.make(tmp_path / "bare", hidden=32, layers=1, with_tokenizer=False)
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        load.load_tokenizer(ModelSpec(path="bare"), tmp_path)


def test_folder_without_weights_is_named(tmp_path):
    tiny.make(tmp_path / "m", hidden=32, layers=1)
    (tmp_path / "m" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="weights cannot be loaded"):
        load.load_actor(ModelSpec(path="m"), tmp_path, torch.float32, "sdpa")


@pytest.mark.parametrize(("rows", "accepted"), [(100, False), (128, True), (160, True)])
def test_rc38_tokenizer_larger_than_embedding_is_refused_with_both_numbers(tmp_path, rows, accepted):
    tiny.make(tmp_path / "m", hidden=32, layers=1, vocab_size=rows)
    if not accepted:
        with pytest.raises(ConfigError, match=r"128 ids but the embedding only 100 rows"):
            load.load_tokenizer(ModelSpec(path="m"), tmp_path)
        return
    load.load_tokenizer(ModelSpec(path="m"), tmp_path)
    model = load.load_actor(ModelSpec(path="m"), tmp_path, torch.float32, "sdpa")
    assert model.get_input_embeddings().num_embeddings == rows


def test_scaled_logits_are_refused(tmp_path, tiny_models):
    shutil.copytree(tiny_models / "qwen2-tied", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"logit_scale": 0.25}))
    with pytest.raises(ConfigError, match="logit_scale"):
        load.load_config(ModelSpec(path="m"), tmp_path)


def test_random_initialisation_depends_on_its_seed_alone(tiny_models):
    def weights(seed):
        spec = ModelSpec(path="qwen2-tied", init="random", seed=seed)
        return load.load_actor(spec, tiny_models, torch.float32, "sdpa").get_input_embeddings().weight

    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    assert torch.equal(torch.get_rng_state(), state)


def test_critic_from_a_language_model_starts_with_zero_values(tiny_models):
    model = load.load_value(ValueModelSpec(path="qwen2-tied"), tiny_models, torch.float32, "sdpa")
    assert bool((model.score.weight == 0).all())


def test_value_model_keeps_its_head(tiny_models):
    model = load.load_value(ValueModelSpec(path="qwen2-value"), tiny_models, torch.float32, "sdpa", needs_head=True)
    reference = AutoModelForSequenceClassification.from_pretrained(tiny_models / "qwen2-value", num_labels=1)
    assert torch.equal(model.score.weight, reference.score.weight)
    assert bool((model.score.weight != 0).any())


def test_head_of_another_name_is_found(tmp_path, tiny_models):
    shutil.copytree(tiny_models / "qwen2-value", tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    head = tensors.pop("score.weight")
    save_file(tensors | {"value_head.weight": head}, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    model = load.load_value(ValueModelSpec(path="m", head_name="value_head"), tmp_path, torch.float32, "sdpa", needs_head=True)
    assert torch.equal(model.score.weight, head)


def test_reward_model_without_head_is_refused(tiny_models):
    with pytest.raises(ConfigError, match=r"needs the scalar head score\.weight"):
        load.load_value(ValueModelSpec(path="qwen2-tied"), tiny_models, torch.float32, "sdpa", needs_head=True)


def changed(source, folder, *, drop=(), add=None):
    """A copy of a model folder with other tensors."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in drop:
        del tensors[name]
    save_file(tensors | (add or {}), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LOADERS = {"actor": (load.load_actor, ModelSpec), "value": (load.load_value, ValueModelSpec)}
MLP = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("down", "gate", "up")]
NORM = "model.norm.weight"


@pytest.mark.parametrize("kind", LOADERS)
def test_missing_tensors_are_refused_by_name_and_count(tmp_path, tiny_models, kind):
    loader, spec = LOADERS[kind]
    changed(tiny_models / "qwen2-tied", tmp_path / "m", drop=[*MLP, NORM])
    with pytest.raises(ConfigError, match=rf"m lacks 4 tensors: {', '.join(MLP)}, \.\.\. of the \d+ that Qwen2"):
        loader(spec(path="m"), tmp_path, torch.float32, "sdpa")


def test_checkpoint_without_its_untied_output_layer_is_refused(tmp_path, tiny_models):
    tiny.make(tmp_path / "whole", hidden=32, layers=1, tied=False)
    changed(tmp_path / "whole", tmp_path / "m", drop=["lm_head.weight"])
    with pytest.raises(ConfigError, match=r"lacks 1 tensor: lm_head\.weight"):
        load.load_actor(ModelSpec(path="m"), tmp_path, torch.float32, "sdpa")
    load.load_value(ValueModelSpec(path="m"), tmp_path, torch.float32, "sdpa")


@pytest.mark.parametrize("kind", LOADERS)
def test_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path, tiny_models, kind):
    loader, spec = LOADERS[kind]
    changed(tiny_models / "qwen2-tied", tmp_path / "m", add={NORM: torch.ones(7)})
    with pytest.raises(ConfigError, match=r"1 tensor: model\.norm\.weight \(\[7\], the model's is \[\d+\]\)"):
        loader(spec(path="m"), tmp_path, torch.float32, "sdpa")


def test_head_with_several_labels_is_refused(tmp_path, tiny_models):
    changed(tiny_models / "qwen2-value", tmp_path / "m", add={"score.weight": torch.ones(2, 32)})
    with pytest.raises(ConfigError, match=r"score\.weight \(\[2, 32\], the model's is \[1, 32\]\).*one label"):
        load.load_value(ValueModelSpec(path="m"), tmp_path, torch.float32, "sdpa", needs_head=True)


@pytest.mark.parametrize("kind", LOADERS)
def test_tensors_without_use_are_logged_only_when_they_matter(tmp_path, tiny_models, kind, caplog):
    loader, spec = LOADERS[kind]
    tiny.make(tmp_path / "whole", hidden=32, layers=1, tied=False)
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}
    changed(tmp_path / "whole", tmp_path / "harmless", add=harmless)
    loader(spec(path="harmless"), tmp_path, torch.float32, "sdpa")
    assert not [record for record in caplog.records if record.name == load.__name__]
    changed(tmp_path / "whole", tmp_path / "more", add=harmless | {"model.layers.7.mlp.up_proj.weight": torch.ones(3)})
    loader(spec(path="more"), tmp_path, torch.float32, "sdpa")
    (record,) = [record for record in caplog.records if record.name == load.__name__]
    assert "has 1 tensor: model.layers.7.mlp.up_proj.weight that" in record.message


def test_attention_and_precision_on_cpu():
    assert attention.choose("auto", "cpu") == "sdpa"
    with pytest.raises(ConfigError, match="needs a GPU"):
        attention.choose("flash_attention_2", "cpu")
    assert precision.choose("bf16", "cpu") is torch.bfloat16
    assert precision.choose("auto", "cpu") is (torch.bfloat16 if precision.native_bf16("cpu") else torch.float32)


@pytest.mark.parametrize("name", ["qwen2-tied", "llama-tied"])
def test_tiny_vocabulary_is_one_token_a_character(tiny_models, name):
    tokenizer = load.load_tokenizer(ModelSpec(path=name), tiny_models)
    text = "#a1 @Z9\nx"
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == list(text)
    assert len(tokenizer) == 128
    assert len(tokenizer.decode(list(range(4, 128)))) == 124
