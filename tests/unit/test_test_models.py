"""The small models of ci/: their tensors, prompts and tokenizer, and the packed checkpoint."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import lzma
import random
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from made_wheel import ROOT
from patchset import references

sys.path.insert(0, str(ROOT / "ci"))
import deepseek_v4  # noqa: E402
import slice_model  # noqa: E402
import smoke_model  # noqa: E402
from deepseek_v4 import folder, geometry, prompts, tokenizer  # noqa: E402
from deepseek_v4.tensors import Tensor, tensors  # noqa: E402

ASSET = ROOT / "ci" / "smoke-model"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """The smoke model, unpacked by the command that a user runs, in a Python with nothing else."""
    place = tmp_path_factory.mktemp("models") / "smoke"
    command = [sys.executable, "-S", str(ROOT / "ci" / "smoke_model.py"), "unpack"]
    done = subprocess.run([*command, str(place)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


def header(file: Path) -> dict:
    with open(file, "rb") as data:
        (size,) = struct.unpack("<Q", data.read(8))
        found = json.loads(data.read(size))
    found.pop("__metadata__")
    return found


def test_the_checkpoint_has_the_tensors_of_its_geometry(checkpoint):
    found = {
        name: (tuple(each["shape"]), each["dtype"])
        for name, each in header(checkpoint / "model.safetensors").items()
    }
    assert found == {
        each.name: (each.shape, dtype(each)) for each in tensors(geometry.SMOKE)
    }
    assert len(found) == 2387


def dtype(tensor: Tensor) -> str:
    if tensor.int32:
        return "I32"
    return "F32" if tensor.float32 else "BF16"


def test_no_layer_of_the_checkpoint_has_a_learned_gate(checkpoint):
    """Rounding turns a learned gate's choice somewhere, which moves gaps by more than most faults.

    A table of tokens can't be turned: what is off then is off by the arithmetic that is tested. A learned gate
    runs in the slice model.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["num_hash_layers"] == config["num_hidden_layers"] == 3
    gates = {
        name for name in header(checkpoint / "model.safetensors") if "gate" in name
    }
    gates = {name.partition(".ffn.")[2] for name in gates if ".ffn.gate." in name}
    assert gates == {"gate.weight", "gate.tid2eid"}
    assert geometry.flash_slice(4).config()["num_hash_layers"] == 0


def test_each_token_names_six_experts_and_the_used_ones_are_there(checkpoint):
    data = (checkpoint / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entries = json.loads(data[8 : 8 + size])

    def stored(name: str) -> bytes:
        start, end = entries[name]["data_offsets"]
        return data[8 + size + start : 8 + size + end]

    asked = [each.text + each.answer for each in prompts.recorded()]
    tokens = {token for text in asked for token in tokenizer.encode(text)}
    for layer in range(3):
        table = struct.unpack("<1920i", stored(f"layers.{layer}.ffn.gate.tid2eid"))
        chosen = [table[row * 6 : row * 6 + 6] for row in range(320)]
        assert all(len(set(six)) == 6 and min(six) >= 0 for six in chosen)
        assert max(table) < 256
        for expert in {e for token in tokens for e in chosen[token]}:
            name = f"layers.{layer}.ffn.experts.{expert}.w1.weight"
            assert any(stored(name)), name


def test_the_checkpoint_is_the_one_whose_answers_are_recorded(checkpoint):
    recording = references.load(ASSET / "expected.json")
    data = (checkpoint / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == recording.checkpoint
    config = json.loads((checkpoint / "config.json").read_text())
    assert config == geometry.SMOKE.config()


def test_the_recording_covers_every_product_and_both_sides_of_the_selection():
    recording = references.load(ASSET / "expected.json")
    of = {each.prompt: each for each in recording.references}
    for prompt in prompts.products():
        assert of[prompt.text].text == prompt.answer
    assert recording.of("products")[0].text == "391"
    lengths = [each.prompt_tokens for each in recording.references]
    assert sum(1_900 < n <= 2_048 for n in lengths) >= 2
    assert sum(n > 2_048 for n in lengths) >= 12
    assert sum(n > 8_192 for n in lengths) >= 4 and max(lengths) >= 30_000
    assert recording.chat == ("reasoning", "tool call")
    asked = {prompt.text for prompt in prompts.recorded()}
    for each in recording.references:
        assert each.prompt in asked
        assert each.prompt_tokens == len(tokenizer.encode(each.prompt))
        assert each.text == tokenizer.decode(list(each.ids))
        assert each.ids[-1] == tokenizer.EOS_ID and len(each.gaps) == len(each.ids)
        assert min(each.gaps) >= smoke_model.LEAST_GAP
    # A gap that is off by as much as is allowed is far from another text.
    assert recording.tolerance == smoke_model.TOLERANCE <= smoke_model.LEAST_GAP / 5


def damaged(kind: str, packed: bytes) -> bytes | None:
    """The packed weights after an accident."""
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 1
    return {
        "other weights": lzma.compress(b"other weights"),
        "no archive": b"no archive",
        "truncated": packed[: len(packed) // 2],
        "a byte flipped": bytes(flipped),
        "missing": None,
    }[kind]


@pytest.mark.parametrize(
    "kind", ["other weights", "no archive", "truncated", "a byte flipped", "missing"]
)
def test_a_damaged_asset_is_named_and_leaves_nothing(
    kind, tmp_path, monkeypatch, capsys
):
    asset = tmp_path / "asset"
    shutil.copytree(ASSET, asset)
    monkeypatch.setattr(smoke_model, "ASSET", asset)
    file = asset / "model.safetensors.xz"
    data = damaged(kind, file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    place = tmp_path / "new" / "place"
    assert smoke_model.main(["unpack", str(place)]) == 4
    said = capsys.readouterr().err
    assert said.startswith("error: the packed smoke model is damaged: ")
    assert f"where: {file}\n" in said and "next:  restore the file: git" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_a_folder_with_another_model_is_not_unpacked_over(name, tmp_path, capsys):
    (tmp_path / name).write_text("of another model")
    assert smoke_model.main(["unpack", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} is not empty, and not the smoke model: config.json" in said
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "of another model"


def test_unpacking_twice_leaves_the_same_files(checkpoint, capsys):
    before = {each: each.stat().st_mtime_ns for each in checkpoint.iterdir()}
    assert smoke_model.main(["unpack", str(checkpoint)]) == 0
    assert {each: each.stat().st_mtime_ns for each in checkpoint.iterdir()} == before
    assert capsys.readouterr().out == f"{checkpoint}\n"


def test_an_unpacking_that_fails_leaves_nothing(tmp_path, monkeypatch, capsys):
    write = Path.write_bytes

    def full(file: Path, data: bytes) -> int:
        if file.name == "model.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        return write(file, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert smoke_model.main(["unpack", str(tmp_path / "new" / "place")]) == 4
    assert "No space left on device\nwhere:" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", ["060/config.json", ".060.part/config.json"])
def test_needles_are_not_trained_into_a_folder_with_something(there, tmp_path, capsys):
    file = tmp_path / "out" / there
    file.parent.mkdir(parents=True)
    file.write_text("of an earlier run")
    words = ["long", str(tmp_path / "no-state"), str(tmp_path / "out")]
    assert smoke_model.main(words) == 2
    assert f"{tmp_path / 'out'} is not empty" in capsys.readouterr().err
    assert file.read_text() == "of an earlier run"


def test_the_last_checkpoint_stays_when_two_are_of_one_second(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")

    def train(model, seconds, say, keep, **_):
        for value in ("before", "last"):
            keep(round(seconds), value)

    def save(value, _, directory):
        directory.mkdir(parents=True)
        (directory / "weights").write_text(value)

    # Without transformers: what is tested is the folders.
    for name, stand_in in {
        "training": SimpleNamespace(train_needles=train),
        "convert": SimpleNamespace(official=lambda state, _: state, save=save),
        "reference": SimpleNamespace(load=lambda *_: torch.nn.Module()),
    }.items():
        monkeypatch.setattr(deepseek_v4, name, stand_in, raising=False)
    start, out = tmp_path / "start", tmp_path / "out"
    start.mkdir()
    for name in ("config.json", "model.safetensors"):
        (start / name).touch()
    words = ["long", str(start), str(out), "--device", "cpu", "--seconds", "7"]
    assert smoke_model.main(words) == 0
    assert [folder.name for folder in out.iterdir()] == ["007"]
    assert (out / "007" / "weights").read_text() == "last"
    # The same command again finds them.
    assert smoke_model.main(words) == 2
    assert (out / "007" / "weights").read_text() == "last"


def test_text_goes_through_the_tokenizer_and_back():
    text = "17*23, na\u00efve \u2713"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode(tokenizer.chat("a"))
    assert ids == [0, 3, 7 + ord("a"), 4, 6]


@pytest.mark.parametrize("distractors", [0, 2])
def test_a_needle_stands_where_it_says(distractors):
    rng = random.Random(3)
    made = [
        prompts.needle(rng, 700, distractors=distractors, early=bool(i % 2))
        for i in range(20)
    ]
    assert len({len(tokenizer.encode(each.text)) for each in made}) == 1
    for i, each in enumerate(made):
        ids = tokenizer.encode(each.text)
        assert tokenizer.decode(ids[each.code_at : each.code_at + 4]) == each.answer
        assert each.text.count("The code of") == 1 + distractors
        if i % 2 and not distractors:
            assert each.code_at < 100


def test_prompts_are_the_same_every_time():
    assert prompts.recorded() == prompts.recorded()
    assert "17*23" in prompts.products()[0].text


def test_a_slice_has_flashs_layers_by_turns():
    made = geometry.flash_slice(5)
    assert made.ratios == (0, 4, 128, 4, 128) and made.note == "random"
    config = made.config()
    assert (config["hidden_size"], config["num_attention_heads"]) == (4096, 64)
    assert config["sm120_weights"] == "random"
    with pytest.raises(ValueError, match="3 layers, one of each kind"):
        geometry.flash_slice(2)
    assert geometry.flash_slice(4).expert_width == 2048
    narrow = geometry.flash_slice(4, expert_width=512)
    assert narrow.config()["moe_intermediate_size"] == 512


def test_all_of_flashs_layers_fit_a_gpu_with_narrow_experts(
    tmp_path, monkeypatch, capsys
):
    saved = []
    # The rest of a folder needs the package tokenizers.
    monkeypatch.setattr(slice_model, "save_rest", lambda shape, _: saved.append(shape))
    monkeypatch.setattr(slice_model, "_require_packages", lambda _: None)
    words = ["flash", "43", str(tmp_path / "m"), "--expert-width", "64"]
    assert slice_model.main(words) == 0
    said = capsys.readouterr().out
    assert (
        "43 layers, hidden 4096, 64 heads, 256 experts of 64; 29.9 GB of random" in said
    )
    (config,) = (shape.config() for shape in saved)
    assert config["sm120_weights"] == "random, of the loader"
    assert config["n_routed_experts"] == 256 and len(config["compress_ratios"]) == 43
    assert config["compress_ratios"].count(4) == config["compress_ratios"].count(128)


def test_shards_hold_every_tensor_once_in_order():
    every = list(tensors(geometry.TINY))
    groups = list(slice_model.shards(every, 100 << 20))
    assert [each for group in groups for each in group] == every
    for group in groups:
        assert len(group) == 1 or sum(each.bytes for each in group) <= 100 << 20


def test_random_tensors_depend_on_name_and_seed_alone():
    torch = pytest.importorskip("torch")
    every = {each.name: each for each in tensors(geometry.SMOKE)}
    weight = every["layers.0.attn.wkv.weight"]
    one = slice_model.random_tensor(weight, 0)
    assert torch.equal(one, slice_model.random_tensor(weight, 0))
    assert not torch.equal(one, slice_model.random_tensor(weight, 1))
    assert one.float().std().item() == pytest.approx(128**-0.5, rel=0.05)
    norm = slice_model.random_tensor(every["norm.weight"], 0)
    assert (norm == 1).all() and norm.dtype == torch.bfloat16
    sink = slice_model.random_tensor(every["layers.0.attn.attn_sink"], 0)
    assert (sink == 0).all() and sink.dtype == torch.float32


@pytest.mark.parametrize(
    "words, lacks",
    [(("tiny", "M"), "tokenizers"), (("tiny", "M", "--weights"), "safetensors")],
)
def test_a_python_that_lacks_a_package_writes_no_slice(tmp_path, words, lacks):
    command = [sys.executable, "-S", str(ROOT / "ci" / "slice_model.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert lacks in done.stderr and sys.executable in done.stderr
    assert not (tmp_path / "M").exists()


@pytest.mark.parametrize("words", [("table", "S"), ("long", "S", "D"), ("trial", "D")])
def test_a_python_without_torch_trains_and_tries_nothing(words, checkpoint, tmp_path):
    words = [
        str(checkpoint) if word == "D" and words[0] == "trial" else word
        for word in words
    ]
    command = [sys.executable, "-S", str(ROOT / "ci" / "smoke_model.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "has no torch" in done.stderr
    assert not list(tmp_path.iterdir())


def test_another_release_of_transformers_is_no_bug_of_ours(
    checkpoint, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("torch")
    for name in ("reference", "blocks"):
        monkeypatch.delitem(sys.modules, f"deepseek_v4.{name}", raising=False)
    other = ModuleType("transformers")
    other.__path__ = []
    monkeypatch.setitem(sys.modules, "transformers", other)
    monkeypatch.setitem(sys.modules, "transformers.models", None)
    monkeypatch.delattr(deepseek_v4, "reference", raising=False)
    assert smoke_model.main(["trial", str(checkpoint)]) == 4
    said = capsys.readouterr().err
    assert "error: this Python has no transformers.models" in said
    assert "transformers 5.8.1" in said


@pytest.fixture
def training_is_an_error(monkeypatch):
    """What trains, and all that stands on transformers, must not be reached."""
    for name in ("training", "convert", "reference"):
        monkeypatch.setitem(sys.modules, f"deepseek_v4.{name}", None)


@pytest.mark.parametrize("place", ["no-folder/state", "a-file/state"])
def test_nothing_is_trained_for_a_place_that_can_t_be_written(
    place, tmp_path, training_is_an_error, capsys
):
    (tmp_path / "a-file").touch()
    words = ["table", str(tmp_path / place), "--steps", "2"]
    assert smoke_model.main(words) == 4
    assert f"error: {tmp_path / place} can't be written: " in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_a_state_is_not_trained_over(make, tmp_path, training_is_an_error, capsys):
    make(tmp_path / "state")
    assert smoke_model.main(["table", str(tmp_path / "state")]) == 2
    assert f"{tmp_path / 'state'} is there already" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["expect", "trial", "pack"])
def test_a_missing_checkpoint_is_named(verb, tmp_path, training_is_an_error, capsys):
    place, out = tmp_path / "nope", ["--out", str(tmp_path / "out")]
    words = [verb, str(place), *(out if verb != "trial" else [])]
    assert smoke_model.main(words) == 2
    assert f"error: there is no folder {place}\n" in capsys.readouterr().err
    place.mkdir()
    (place / "config.json").touch()
    assert smoke_model.main(words) == 2
    said = capsys.readouterr().err
    assert f"{place} is no checkpoint: it has no model.safetensors\n" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["export", "long"])
@pytest.mark.parametrize("kind", ["text", "empty", "missing", "no tensors"])
def test_a_file_that_is_no_state_is_named(
    verb, kind, tmp_path, training_is_an_error, capsys
):
    torch = pytest.importorskip("torch")
    file = tmp_path / "README.md"
    if kind == "no tensors":
        torch.save({"weights": 3}, file)
    elif kind != "missing":
        file.write_text("# A page" if kind == "text" else "")
    assert smoke_model.main([verb, str(file), str(tmp_path / "X")]) == 2
    assert f"error: {file} is no state of the smoke model: " in capsys.readouterr().err
    assert not (tmp_path / "X").exists()


def test_a_checkpoint_is_not_exported_over_another(tmp_path, capsys):
    (tmp_path / "config.json").touch()
    assert smoke_model.main(["export", str(tmp_path / "state"), str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err


def test_a_device_that_torch_lacks_is_told_before_anything_is_trained(
    checkpoint, tmp_path, training_is_an_error, capsys
):
    pytest.importorskip("torch")
    # No machine has as many GPUs, one with a GPU neither.
    words = ["long", str(checkpoint), str(tmp_path / "out"), "--device", "cuda:99"]
    assert smoke_model.main(words) == 4
    assert "torch can't use the device 'cuda:99': " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_state_that_the_disk_has_no_room_for_leaves_no_part(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")

    def full(state, file):
        Path(file).touch()
        raise RuntimeError("PytorchStreamWriter failed writing file data/0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="PytorchStreamWriter"):
        smoke_model._save({}, tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_help_has_whole_sentences(capsys):
    with pytest.raises(SystemExit):
        smoke_model.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "as JSON; 1 when it does not know its products." in said


def test_a_slice_without_room_is_not_begun(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slice_model, "_require_packages", lambda _: None)
    monkeypatch.setattr(
        slice_model.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0)
    )
    words = ["flash", "4", str(tmp_path / "m"), "--weights"]
    assert slice_model.main(words) == 4
    said = capsys.readouterr().err
    assert f"take 54.8 GB and 0.0 GB are free\nwhere: {tmp_path}\n" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layers", ["2", "0", "-1", "44", "99"])
def test_no_slice_has_more_layers_than_flash_or_lacks_a_kind(layers, tmp_path, capsys):
    words = ["flash", str(tmp_path / "m"), "--expert-width", "64"]
    assert slice_model.main([words[0], "--", layers, words[1]]) == 2
    assert f"as many as Flash; not {layers}\n" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("width", ["0", "7", "-16", "24", "2064", "1000000"])
def test_a_width_that_sglang_cannot_run_is_refused(width, tmp_path, capsys):
    words = ["flash", "4", str(tmp_path / "m"), f"--expert-width={width}"]
    assert slice_model.main(words) == 2
    said = capsys.readouterr().err
    assert "16 to 2,048 wide, in steps of 16: SGLang's" in said
    assert f"; not {width}\n" in said and not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [["flash", "4"], ["tiny"]])
def test_a_slice_is_not_written_over_another_model(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(slice_model, "_require_packages", lambda _: None)
    (tmp_path / "config.json").write_text("of another model")
    assert slice_model.main([*kind, str(tmp_path)]) == 2
    assert f"error: {tmp_path} is not empty\n" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == "of another model"
    assert slice_model.main([*kind, str(tmp_path / "config.json")]) == 2
    assert "config.json is a file" in capsys.readouterr().err


def test_the_same_slice_again_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    def save_rest(shape, directory):
        for name in folder.REST:
            (directory / name).write_text(folder.config_text(shape))

    monkeypatch.setattr(slice_model, "save_rest", save_rest)
    monkeypatch.setattr(slice_model, "_require_packages", lambda _: None)
    words = ["flash", "4", str(tmp_path / "m"), "--expert-width"]
    assert slice_model.main([*words, "64"]) == 0
    before = {each: each.stat().st_mtime_ns for each in (tmp_path / "m").iterdir()}
    assert slice_model.main([*words, "64"]) == 0
    assert {e: e.stat().st_mtime_ns for e in (tmp_path / "m").iterdir()} == before
    assert slice_model.main([*words, "128"]) == 2
    assert slice_model.main([*words, "64", "--weights"]) == 2
    assert f"{tmp_path / 'm'} is not empty" in capsys.readouterr().err


def test_a_slice_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch, capsys):
    def full(_, directory):
        (directory / "config.json").touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(directory))

    monkeypatch.setattr(slice_model, "save_rest", full)
    monkeypatch.setattr(slice_model, "_require_packages", lambda _: None)
    assert slice_model.main(["tiny", str(tmp_path / "new" / "m")]) == 4
    said = capsys.readouterr().err
    assert "No space left on device\n" in said and "next:" in said
    assert not list(tmp_path.iterdir())


def test_an_answer_that_leads_by_too_much_is_pulled_back():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from deepseek_v4 import training

    def slope(lead: float) -> float:
        logits = torch.tensor([[lead, 0.0, -1.0]], requires_grad=True)
        training._answer_loss(logits, torch.tensor([0])).backward()
        return logits.grad[0, 0].item()

    enough = training.ANSWER_LEAD
    assert slope(enough - 1) < 0 == slope(enough) < slope(enough + 1)


def test_attention_in_blocks_is_transformers_attention(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from deepseek_v4 import blocks, training

    model = training.new_model(geometry.SMOKE).eval()
    monkeypatch.setattr(blocks, "_ROWS", 100)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.normal_()
    # Fewer than the entries of the longest prompt.
    model.model.layers[-1].self_attn.compressor.indexer.index_topk = 40
    for length in (3, 130, 270):
        ids = torch.randint(7, 263, (2, length))
        with torch.no_grad():
            ours = model(input_ids=ids, use_cache=False).logits
            last = blocks.last_logits(model, ids, 3)
            with attention_of_transformers(model):
                upstream = model(input_ids=ids, use_cache=False).logits
        assert upstream.abs().max() > 0.3
        # Where two scores are nearly alike, the last place of 512 may go to either.
        off = (ours - upstream).abs().amax(-1).flatten()
        assert (off < 1.25e-4).float().mean() > 0.97 and off[:130].max() < 1.25e-4
        assert (last - ours[:, -3:]).abs().max() < 1.25e-4


@contextmanager
def attention_of_transformers(model):
    """Its own classes again: a second copy of its module has them as they are written."""
    from deepseek_v4.reference import upstream

    name = f"{upstream.__package__}.as_written"
    spec = importlib.util.spec_from_file_location(name, upstream.__file__)
    written = importlib.util.module_from_spec(spec)
    sys.modules[name] = written
    spec.loader.exec_module(written)
    replaced = {
        (upstream.DeepseekV4Attention, "forward"): written.DeepseekV4Attention.forward,
        (
            upstream.DeepseekV4DecoderLayer,
            "forward",
        ): written.DeepseekV4DecoderLayer.forward,
        (
            upstream,
            "create_sliding_window_causal_mask",
        ): written.create_sliding_window_causal_mask,
    }
    before = {(owner, what): getattr(owner, what) for owner, what in replaced}
    try:
        for (owner, what), value in replaced.items():
            setattr(owner, what, value)
        yield
    finally:
        for (owner, what), value in before.items():
            setattr(owner, what, value)
        del sys.modules[name]


def test_names_go_from_transformers_to_the_official_ones_and_back(checkpoint):
    pytest.importorskip("transformers")
    import torch
    from deepseek_v4 import convert, reference
    from safetensors.torch import load_file

    stored = load_file(checkpoint / "model.safetensors")
    model = reference.load(checkpoint, torch.float32)
    made = convert.official(model.state_dict(), geometry.SMOKE)
    assert made.keys() == stored.keys()
    assert all(torch.equal(made[name], stored[name]) for name in stored)
    table = prompts.products()[:6]
    for prompt in table:
        answer = reference.answers_greedily(model, prompt.text, prompt.answer)
        assert answer.text == prompt.answer
