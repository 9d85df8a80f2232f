"""PrivateTrainer: killed and resumed training, contents of checkpoints and logs, evaluation, and what is refused."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    TrainingArguments,
)

import antiphase as ap
import antiphase.torch
from antiphase.torch import NoiseAdder
from antiphase.torch._lattice import LatticeClipping
from antiphase.torch.huggingface import PrivateTrainer, last_checkpoint
from antiphase.torch.losses import CausalLMLoss, TokenLoss
from tests.torch.training import HOOKS, PEFT, SECRET, lattice_plan_for, plan_for
from tests.torch.transformer_models import EXAMPLES, LENGTH, QUIET, WORDS, Sentences, model_of, trained

pytestmark = pytest.mark.filterwarnings(HOOKS, PEFT)


def trainer_of(directory, model=None, kind="gpt2", plan=None, trainer=PrivateTrainer, options=None, **arguments):
    arguments = {"per_device_train_batch_size": 4, **QUIET, **arguments}
    return trainer(
        model_of(kind) if model is None else model,
        TrainingArguments(str(directory / "out"), **arguments),
        plan=plan or plan_for(),
        run_directory=directory / "run",
        **{"train_dataset": Sentences(kind), "secret": SECRET, **(options or {})},
    )


@pytest.mark.parametrize("mode", ["hooks", pytest.param("ghost", marks=pytest.mark.slow)])
def test_killed_before_and_after_the_first_checkpoint(tmp_path, mode):
    """With dropout and LoRA, the parameters have the same bits as without kills."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.killed_trainer"]
    (tmp_path / "steady").mkdir()
    (tmp_path / "killed").mkdir()
    subprocess.run([*command, str(tmp_path / "steady"), mode], check=True, timeout=300)
    for step in ("1", "4", "9"):
        dead = subprocess.run([*command, str(tmp_path / "killed"), mode, step], check=False, timeout=300)
        assert dead.returncode == -signal.SIGKILL
    subprocess.run([*command, str(tmp_path / "killed"), mode], check=True, timeout=300)
    steady, killed = (torch.load(tmp_path / name / "parameters.pt") for name in ("steady", "killed"))
    assert torch.equal(steady, killed)


@pytest.mark.parametrize("logs_loss", [False, True])
def test_checkpoints_hold_no_secrets_and_the_log_no_loss(tmp_path, logs_loss):
    options = {"eval_dataset": Sentences("gpt2", seed=1), "log_training_loss": logs_loss}
    arguments = {"save_strategy": "steps", "save_steps": 5, "logging_strategy": "steps", "logging_steps": 4}
    with trainer_of(
        tmp_path, options=options, eval_strategy="steps", eval_steps=6, save_total_limit=1, **arguments
    ) as trainer:
        result = trainer.train()
        assert result.global_step == 12
        assert ("train_loss" in result.metrics) is logs_loss
        assert (result.training_loss == result.training_loss) is logs_loss
        secret = (tmp_path / "run" / "private").rglob("*")
        held = [path.read_bytes() for path in secret if path.is_file() and path.stat().st_size >= 32]
        history, epsilon = trainer.state.log_history, trainer.get_epsilon(1e-6)
    checkpoint = tmp_path / "out" / "checkpoint-12"
    assert last_checkpoint(str(tmp_path / "out")) == str(checkpoint)
    state = json.loads((checkpoint / "antiphase.json").read_text())
    assert set(state) == {"run_id", "step", "branch", "parameters"}
    for path in checkpoint.iterdir():
        assert not any(part[:32] in path.read_bytes() for part in held)
    logged = {name for entry in history for name in entry}
    assert logged >= {"epsilon", "learning_rate", "eval_loss"}
    assert "grad_norm" not in logged
    assert ({"loss", "train_loss"} <= logged) is logs_loss
    assert ("loss" in json.loads((checkpoint / "trainer_state.json").read_text())["log_history"][0]) is logs_loss
    found = [entry["epsilon"] for entry in history if "epsilon" in entry]
    assert found == sorted(found)
    assert found[-1] == epsilon
    assert [entry["step"] for entry in history if "learning_rate" in entry] == [4, 8, 12]


def test_an_incomplete_checkpoint_is_not_used(tmp_path):
    for step, names in ((3, ("trainer_state.json", "antiphase.json")), (12, ("antiphase.json",))):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in names:
            (tmp_path / f"checkpoint-{step}" / name).write_text("{}")
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-7" / "trainer_state.json").write_text('{"epoch": ')
    (tmp_path / "checkpoint-7" / "antiphase.json").write_text("{}")
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-3")
    assert last_checkpoint(str(tmp_path / "none")) is None


@pytest.mark.usefixtures("same_run_id")
def test_a_plan_with_a_lattice_has_one_example_in_a_pass(tmp_path):
    """Whatever the size of physical batches; each step of the trainer is a step of the plan."""
    ends = []
    for size in (100, 3):
        model, seen = model_of("gpt2"), set()
        plan = lattice_plan_for(parameters=sum(p.numel() for p in model.parameters()))
        with trainer_of(tmp_path / str(size), model, plan=plan, per_device_train_batch_size=size) as trainer:
            trainer._check_independence = lambda model: None  # it has passes of its own, of several examples
            trainer._make_private()
            trainer._private_model.register_forward_pre_hook(
                lambda module, _, given, seen=seen: seen.add(len(given["input_ids"])), with_kwargs=True
            )
            assert trainer.train().global_step == plan.steps == trainer.report().steps_run
        assert seen == {1}
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.usefixtures("same_run_id")
def test_dropout_of_an_example_depends_on_no_other(tmp_path, monkeypatch):
    """On a lattice, though the seed of the trainer is public. A longer example takes more random numbers."""
    made, victim, take = [], 0, LatticeClipping.take

    def taken(self):
        found = take(self)
        made[-1].append([array.tolist() for array in found.sums])
        return found

    monkeypatch.setattr(LatticeClipping, "take", taken)
    victim = None
    for name in ("long", "short"):
        made.append([])
        model, sentences = model_of("gpt2", dropout=0.3), list(Sentences("gpt2"))
        plan = lattice_plan_for(parameters=sum(p.numel() for p in model.parameters()))
        if victim is not None:
            sentences[victim] = {key: value[: LENGTH // 2] for key, value in sentences[victim].items()}
        options = {"train_dataset": sentences}
        with trainer_of(tmp_path / name, model, plan=plan, options=options, max_steps=2, learning_rate=0.0) as trainer:
            trainer._check_independence = lambda model: None
            trainer.train()
            found = [trainer.engine.noise.batch(t) for t in range(2)]
        order = [int(i) for indices, mask in found for i in indices[mask]]
        victim = order[0]
    differs = [i for i, a, b in zip(order, *made, strict=True) if a != b]
    assert len(order) > 10
    assert differs == [i for i in order if i == victim]


@pytest.mark.usefixtures("same_run_id")
def test_physical_batches_and_workers_do_not_matter(tmp_path):
    """Neither do evaluations in between."""
    ends = []
    for i, (size, evaluates) in enumerate(((100, False), (3, True))):
        model, directory = model_of("bert"), tmp_path / str(i)
        extra = {"eval_strategy": "steps", "eval_steps": 5} if evaluates else {"dataloader_num_workers": 1}
        options = {"eval_dataset": Sentences("bert", seed=1)}
        with trainer_of(directory, model, "bert", options=options, per_device_train_batch_size=size, **extra) as found:
            found.train()
            assert found.engine.step == 12
        ends.append(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_evaluation_is_that_of_the_plain_trainer(tmp_path):
    options = {"eval_dataset": Sentences("bert", seed=1)}
    with trainer_of(tmp_path, kind="bert", options=options, learning_rate=0.1) as trainer:
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after, predicted = trainer.evaluate()["eval_loss"], trainer.predict(Sentences("bert", seed=1))
        model = trainer.model.eval()
        batch = {name: torch.stack([e[name] for e in Sentences("bert", seed=1)]) for name in ("input_ids", "labels")}
        mask = Sentences("bert", seed=1).mask
        with torch.no_grad():
            found = model(attention_mask=mask, **batch)
    assert after == pytest.approx(float(found.loss), abs=1e-5)
    assert after != before
    torch.testing.assert_close(torch.as_tensor(predicted.predictions), found.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("same_run_id")
def test_random_states_in_checkpoints_do_not_depend_on_batch_sizes(tmp_path):
    """Dropout draws as many numbers as there are examples."""
    states = []
    for name in ("first", "second"):
        plan = plan_for(ap.strategies.Identity(12), ap.Poisson(0.2), batch_size=8)
        model = model_of("gpt2", dropout=0.3)
        directory, arguments = tmp_path / name, {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
        options = {"secret": ap.Secret.insecure(len(states))}
        with trainer_of(directory, model, plan=plan, options=options, **arguments) as trainer:
            trainer.train()
            states.append([int(trainer.engine.noise.batch(t)[1].sum()) for t in range(3)])
        found = torch.load(directory / "out" / "checkpoint-3" / "rng_state.pth", weights_only=False)
        states.append((found["python"], found["numpy"][1].tolist(), found["numpy"][2], found["cpu"].tolist()))
    assert sum(states[0]) != sum(states[2])
    assert states[1] == states[3]


@pytest.mark.usefixtures("same_run_id")
def test_dropout_depends_on_the_secret_and_not_on_the_seed(tmp_path):
    """The seed is in training_args.bin. If it determined the masks, one example would change those of all others."""
    masks = []
    for i, (seed, secret) in enumerate(((42, 1), (7, 1), (42, 2))):
        model, found = model_of("gpt2", dropout=0.3), []
        model.transformer.drop.register_forward_hook(lambda layer, given, output, seen=found: seen.append(output != 0))
        options = {"secret": ap.Secret.insecure(secret)}
        with trainer_of(tmp_path / str(i), model, seed=seed, max_steps=3, options=options) as trainer:
            trainer.train()
        masks.append(torch.cat([mask.flatten() for mask in found[-4:]]))
    assert torch.equal(masks[0], masks[1])
    assert 0.3 < (masks[0] != masks[2]).float().mean() < 0.5  # 0.42 for independent masks


def test_a_collator_with_a_seed_is_refused(tmp_path):
    class Seeded:
        seed = 42

        def __call__(self, examples):
            raise AssertionError

    with pytest.raises(ap.InvalidArgument, match=r"Seeded\(seed=42\) draws random numbers from a known seed"):
        trainer_of(tmp_path, options={"data_collator": Seeded()})


def test_fewer_steps_than_the_plan_even_if_the_next_ones_are_empty(tmp_path):
    plan = plan_for(ap.strategies.Identity(12), ap.Poisson(0.001), batch_size=1)
    with trainer_of(tmp_path, plan=plan, max_steps=5) as trainer:
        assert trainer.train().global_step == 5
        assert trainer.report().steps_run == 5


def test_empty_batches_are_steps_of_the_trainer(tmp_path):
    """With Poisson sampling, the trainer's steps and learning rates are those of the plan."""
    plan = plan_for(ap.strategies.Identity(12), ap.Poisson(0.02), batch_size=1)
    sizes = [1]
    for attempt in range(30):  # until a first step is empty, which happens in 45 of 100 runs
        if sizes[0] == 0:
            break
        directory = tmp_path / str(attempt)
        arguments = {"logging_strategy": "steps", "logging_steps": 1, "save_strategy": "steps", "save_steps": 4}
        with trainer_of(directory, plan=plan, dataloader_num_workers=attempt % 2, **arguments) as trainer:
            assert trainer.train().global_step == 12
            sizes = [int(trainer.engine.noise.batch(t)[1].sum()) for t in range(12)]
            assert 0 in sizes[1:]
            assert trainer.report().steps_run == 12
            assert trainer.lr_scheduler.last_epoch == 12
            # Neither the log nor the checkpoints depend on which batches are empty.
            logged = [(entry["step"], entry["epoch"]) for entry in trainer.state.log_history if "epsilon" in entry]
            assert logged[:12] == [(step, pytest.approx(step / 40)) for step in range(1, 13)]
        assert sorted(path.name for path in (directory / "out").iterdir()) == [f"checkpoint-{k}" for k in (12, 4, 8)]
    assert sizes[0] == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_bf16_is_autocast(tmp_path, mode):
    seen = set()
    model = model_of("bert")
    model.classifier.register_forward_hook(lambda layer, inputs, output: seen.add(output.dtype))
    options = {"grad_sample_mode": mode}
    with trainer_of(tmp_path, model, "bert", bf16=True, max_steps=2, options=options) as trainer:
        trainer.train()
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_one_of_many_equal_examples_in_lower_precision(tmp_path, mode, monkeypatch):
    """Rounding errors must not depend on the number of examples: with a mean, the sums differed by 1.3 norms."""
    sums, right = [], NoiseAdder._add_for_engine

    def add(self):
        sums.append(torch.cat([p.grad.detach().flatten().double() for p in self.parameters]))
        right(self)

    monkeypatch.setattr(NoiseAdder, "_add_for_engine", add)
    for n in (400, 401):
        plan = plan_for(ap.strategies.Identity(1), ap.EveryStep(), clip_norm=0.05, examples=n, batch_size=n)
        options = {"grad_sample_mode": mode, "train_dataset": [Sentences("bert")[0]] * n}
        model = model_of("bert", lora=True)
        with trainer_of(
            tmp_path / str(n), model, "bert", plan, bf16=True, options=options, per_device_train_batch_size=n
        ) as trainer:
            trainer.train()
    assert (sums[1] - sums[0]).norm() == pytest.approx(0.05, rel=1e-3)


REENTRANT = {"hooks": (False, True), "ghost": (False,)}


@pytest.mark.usefixtures("same_run_id")
@pytest.mark.parametrize("mode", REENTRANT)
@pytest.mark.parametrize(("kind", "lora"), [("gpt2", False), ("bert", True)])
def test_activation_checkpointing_gives_the_same_model(tmp_path, kind, lora, mode):
    """Also where embeddings are frozen, so that the input of the first checkpoint needs no gradient of its own."""
    ends = []
    for i, reentrant in enumerate((None, *REENTRANT[mode])):
        model, checked = model_of(kind, lora=lora, tied=False), []
        checkpointing = {} if reentrant is None else {"activation_checkpointing": True}
        checkpointing |= {"activation_checkpointing_kwargs": {"use_reentrant": True}} if reentrant else {}
        options = {"grad_sample_mode": mode}
        with trainer_of(tmp_path / str(i), model, kind, max_steps=2, options=options, **checkpointing) as trainer:
            layer = next(layer for layer in model.modules() if hasattr(layer, "gradient_checkpointing"))
            layer.register_forward_hook(lambda layer, *_, seen=checked: seen.append(layer.gradient_checkpointing))
            trainer.train()
        assert set(checked) == {reentrant is not None}
        ends.append(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], rtol=1e-4, atol=1e-6)


def test_activation_checkpointing_that_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="'hooks' or 'ghost'"):
        trainer_of(tmp_path, options={"grad_sample_mode": "functorch"}, activation_checkpointing=True)
    reentrant = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(ap.InvalidArgument, match="use_reentrant"):
        trainer_of(tmp_path, options={"grad_sample_mode": "ghost"}, **reentrant)


REFUSED = {
    "gradient_accumulation_steps": (2, "per_device_train_batch_size"),
    "max_grad_norm": (0.3, "clip_norm"),
    "max_steps": (13, "12 steps of the plan"),
    "neftune_noise_alpha": (5.0, "longest example"),
    "auto_find_batch_size": (True, "per_device_train_batch_size"),
    "torch_compile": (True, "hooks"),
    "train_sampling_strategy": ("group_by_length", "sampler draws"),
    "include_num_input_tokens_seen": ("all", "no noise"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_would_change_the_mechanism(tmp_path, name):
    value, words = REFUSED[name]
    with pytest.raises(ap.InvalidArgument, match=words) as raised:
        trainer_of(tmp_path, **{name: value})
    assert name in str(raised.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compute_loss_func": lambda *_: 0}, "one value per example"),
        ({"plan": None}, "epsilon, delta and batch_size"),
        ({"epsilon": 3.0}, "either a plan"),
    ],
)
def test_options_that_are_refused(tmp_path, options, words):
    plan = {} if "plan" in options else {"plan": plan_for()}
    args = TrainingArguments(str(tmp_path / "out"), **QUIET)
    named = {**plan, "train_dataset": Sentences("gpt2"), **options}
    with pytest.raises(ap.InvalidArgument, match=words):
        PrivateTrainer(model_of("gpt2"), args, run_directory=tmp_path / "run", **named)


def test_a_subclass_with_a_loss_of_its_own_is_refused(tmp_path):
    class Weighted(PrivateTrainer):
        def compute_loss(self, model, inputs, **options):
            return model(**inputs).loss

    with pytest.raises(ap.InvalidArgument, match="overrides compute_loss"):
        trainer_of(tmp_path, trainer=Weighted)


def test_the_run_directory_is_not_published_with_the_model(tmp_path):
    args = TrainingArguments(str(tmp_path), **QUIET)
    with pytest.raises(ap.InvalidArgument, match="overlaps with the output directory"):
        PrivateTrainer(model_of("gpt2"), args, plan=plan_for(), run_directory=tmp_path / "run")


def test_training_again_without_resuming_is_refused(tmp_path):
    with trainer_of(tmp_path, max_steps=2) as trainer:
        trainer.train()
        with pytest.raises(ap.Refused, match="resume_from_checkpoint=True"):
            trainer.train()
    with trainer_of(tmp_path, max_steps=2) as trainer, pytest.raises(ap.Refused, match="resume_from_checkpoint=True"):
        trainer.train()
    changed = model_of("gpt2")
    with torch.no_grad():
        changed.transformer.wpe.weight += 0.1
    with trainer_of(tmp_path, changed, max_steps=2) as trainer, pytest.raises(ap.Refused, match="different parameters"):
        trainer.train(resume_from_checkpoint=True)


class TokenMean(nn.Module):
    """A loss that is the mean over all tokens of the batch, like the model's own loss."""

    reduction = "mean"

    def forward(self, output, labels):
        logits, after = output.logits[:, :-1], labels[:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), after.flatten(), ignore_index=-100)


def test_a_mean_over_all_tokens_is_found_before_the_first_step(tmp_path):
    with trainer_of(tmp_path, options={"loss": TokenMean()}) as trainer:
        with pytest.raises(ap.Refused, match="The loss of an example depends on the other examples"):
            trainer.train()
        assert trainer.engine.step == 0


def test_tracebacks_do_not_hold_the_batch(tmp_path):
    """Which examples are in the first batch is secret with amplification."""
    with trainer_of(tmp_path, options={"loss": TokenMean()}) as trainer:
        with pytest.raises(ap.Refused) as raised:
            trainer.train()
        frames = [entry.frame for entry in raised.traceback if "antiphase" in str(entry.path)]
        names = {name for frame in frames for name in frame.f_locals}
    assert len(frames) > 3
    assert not names & {"indices", "examples", "rows", "whole"}


def masked_model(*, is_frozen=True):
    """Return a BERT for masked tokens, whose head shares its bias with the layer inside it."""
    config = BertConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    config.update({"intermediate_size": 12, "max_position_embeddings": LENGTH})
    model = BertForMaskedLM(config)
    model.cls.predictions.bias.requires_grad_(not is_frozen)
    return model


def test_a_shared_bias_inside_a_layer_is_refused_by_name(tmp_path):
    with (
        trainer_of(tmp_path, masked_model(is_frozen=False)) as trainer,
        pytest.raises(ap.InvalidArgument, match=r"'cls.predictions.bias' is also .* 'decoder'"),
    ):
        trainer.train()


def pad(examples, *, left, masked):
    """Collate examples, padded to the longest one of the batch.

    `left` pads on the left instead of the right. Without `masked`, the batch has no attention mask.
    """
    lengths = [int(e["attention_mask"].sum()) for e in examples]
    found = {"input_ids": [], "attention_mask": [], "labels": []}
    for example, length in zip(examples, lengths, strict=True):
        space = torch.zeros(max(lengths) - length, dtype=torch.long)
        for name, values in found.items():
            fill = space - 100 if name == "labels" else space
            values.append(torch.cat([fill, example[name][:length]][:: 1 if left else -1]))
    if not masked:
        found.pop("attention_mask")
    return {name: torch.stack(values) for name, values in found.items()}


@pytest.mark.parametrize(("left", "masked"), [(False, True), (True, True), (False, False)])
def test_padding_that_changes_an_example_is_found(tmp_path, left, masked):
    """Examples are collated again for the check: positions after left padding, and padding that is attended to."""
    kind = "gpt2" if left else "masked"
    model = model_of("gpt2") if kind == "gpt2" else masked_model()
    collator = {"data_collator": lambda examples: pad(examples, left=left, masked=masked)}
    with trainer_of(tmp_path, model, options=collator, max_steps=1) as trainer:
        if not left and masked:
            trainer.train()
            return
        with pytest.raises(ap.Refused, match=r"mixes the examples|depends on the other examples|not computed per"):
            trainer.train()


def test_random_masks_of_a_masked_language_model_pass(tmp_path):
    def mask(examples):
        found = {name: torch.stack([e[name] for e in examples]) for name in examples[0]}
        chosen = torch.rand(found["input_ids"].shape) < 0.4
        found["labels"] = found["labels"].masked_fill(~chosen, -100)
        found["input_ids"] = found["input_ids"].masked_fill(chosen, 1)
        return found

    with trainer_of(tmp_path, masked_model(), options={"data_collator": mask}, max_steps=2) as trainer:
        assert isinstance(trainer._criterion, TokenLoss)
        trainer.train()


@pytest.mark.parametrize("masked", [True, False])
def test_padding_is_checked_also_if_the_collator_is_random(tmp_path, masked):
    def mask(examples):
        found = pad(examples, left=False, masked=masked)
        chosen = (torch.rand(found["input_ids"].shape) < 0.4) & (found["labels"] != -100)
        chosen[:, 0] = True
        found["labels"] = found["labels"].masked_fill(~chosen, -100)
        found["input_ids"] = found["input_ids"].masked_fill(chosen, 1)
        return found

    with trainer_of(tmp_path, masked_model(), options={"data_collator": mask}, max_steps=1) as trainer:
        if masked:
            trainer.train()
            assert trainer._is_checked
            return
        with pytest.raises(ap.Refused, match=r"mixes the examples|depends on the other examples|not computed per"):
            trainer.train()


def test_losses_by_the_class_of_the_model(tmp_path):
    config = BertConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    for model, kind in ((model_of("gpt2"), CausalLMLoss), (BertForTokenClassification(config), TokenLoss)):
        assert isinstance(trainer_of(tmp_path, model)._criterion, kind)
    with pytest.raises(ap.InvalidArgument, match=r"no per-example loss for Linear.*"):
        trainer_of(tmp_path, nn.Linear(2, 2))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize(
    ("method", "words"), [("prompt", "one prompt for all"), ("ia3", "is in a ParameterDict"), ("lora-all", None)]
)
def test_other_peft_methods(tmp_path, method, words, mode):
    config = {
        "prompt": PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2, token_dim=8, num_layers=1),
        "ia3": IA3Config(task_type="SEQ_CLS", target_modules=["query"], feedforward_modules=[]),
        "lora-all": LoraConfig(task_type="SEQ_CLS", r=2, target_modules="all-linear"),
    }[method]
    base = model_of("bert")
    model = get_peft_model(base, config)
    options = {"grad_sample_mode": mode}
    with trainer_of(tmp_path, model, "bert", options=options, max_steps=2) as trainer:
        if words is not None:
            with pytest.raises((ap.Refused, ap.InvalidArgument), match=words):
                trainer.train()
            return
        trainer.train()
        assert trainer.engine.step == 2


def test_distilbert_without_position_ids(tmp_path):
    # Wide enough that the ReLU of the classifier is never zero in all units of an example.
    config = DistilBertConfig(vocab_size=WORDS, dim=64, n_layers=1, n_heads=2, hidden_dim=12, num_labels=3)
    with trainer_of(tmp_path, DistilBertForSequenceClassification(config), "bert", max_steps=2) as trainer:
        trainer.train()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_relative_positions_of_t5_are_refused_by_name_or_frozen(tmp_path, is_frozen):
    config = T5Config(vocab_size=WORDS, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    for name, p in model.named_parameters():
        p.requires_grad_(not is_frozen or "relative" not in name)
    with trainer_of(tmp_path, model, max_steps=1) as trainer:
        if is_frozen:
            trainer.train()
            return
        with pytest.raises(ap.InvalidArgument, match=r"relative_attention_bias.*looked up for pairs"):
            trainer.train()


def test_epsilon_instead_of_a_plan(tmp_path, monkeypatch):
    made = []

    def plan(problem):
        made.append(problem)
        return ap.plan(problem, families=["blt"])  # for speed

    monkeypatch.setattr("antiphase.torch._huggingface_plan.make_plan", plan)
    args = TrainingArguments(str(tmp_path / "out"), num_train_epochs=2, per_device_train_batch_size=4, **QUIET)
    named = {"epsilon": 20.0, "delta": 1e-5, "batch_size": 8, "train_dataset": Sentences("gpt2"), "secret": SECRET}
    for _ in range(2):
        with PrivateTrainer(model_of("gpt2"), args, run_directory=tmp_path / "run", **named) as trainer:
            trainer.train(resume_from_checkpoint=True)
            assert trainer.plan.problem.examples == EXAMPLES
            assert trainer.report().steps_run == 10
    assert len(made) == 1
    with pytest.raises(ap.InvalidArgument, match="different settings"):
        PrivateTrainer(model_of("gpt2"), args, run_directory=tmp_path / "run", **{**named, "epsilon": 10.0})


class OwnStep(PrivateTrainer):
    """Backpropagates the mean of the losses, as a training step of Hugging Face does."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        [batch] = inputs
        loss = self.compute_loss(model, batch)
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.usefixtures("same_run_id")
def test_a_training_step_of_ones_own_does_the_same(tmp_path):
    """If its mean were taken for a sum, the gradient of every example would depend on the number of examples."""
    ends = []
    for trainer in (PrivateTrainer, OwnStep):
        model = model_of("gpt2")
        directory = tmp_path / trainer.__name__
        with trainer_of(directory, model, trainer=trainer, per_device_train_batch_size=64, learning_rate=0.01) as found:
            clipped = record_sums(found)
            found.train()
        ends.append(torch.stack(clipped))
    torch.testing.assert_close(*ends)


def record_sums(trainer):
    """Return a list that will receive the clipped sum of the first step before noise is added."""
    trainer._make_private()
    optimizer, sums = trainer._private_optimizer, []
    add_noise = optimizer.add_noise

    def recorded():
        if not sums:
            sums.append(torch.cat([part.reshape(-1) for part in optimizer._total]))
        add_noise()

    optimizer.add_noise = recorded
    return sums
