"""Tiny transformer models, synthetic data, and the sum of clipped gradients, computed by a loop over the examples."""

import copy
import logging

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

import antiphase.torch
from antiphase.torch.losses import CausalLMLoss
from tests.torch.training import SECRET

EXAMPLES, LENGTH, WORDS = 40, 6, 19
QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
logging.getLogger("transformers").setLevel(logging.ERROR)


class Sentences(Dataset):
    """Sentences of different lengths, padded on the right. Labels are the next tokens, or for BERT, a class."""

    def __init__(self, kind, examples=EXAMPLES, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, WORDS, (examples, LENGTH), generator=generator)
        lengths = torch.randint(2, LENGTH + 1, (examples,), generator=generator)
        self.mask = (torch.arange(LENGTH) < lengths[:, None]).long()
        self.labels = self.tokens.sum(1) % 3 if kind == "bert" else self.tokens.masked_fill(self.mask == 0, -100)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {
            "input_ids": self.tokens[index],
            "attention_mask": self.mask[index],
            "labels": self.labels[index],
        }


def model_of(kind, *, lora=False, tied=True, dropout=0.0):
    """Return a tiny GPT-2 with a language-model head, or a tiny BERT that classifies."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2)
            config.update({"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": tied})
            config.update(dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), dropout))
            model = GPT2LMHeadModel(config)
        else:
            config = BertConfig(vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
            config.update({"intermediate_size": 12, "max_position_embeddings": LENGTH, "num_labels": 3})
            config.update({"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout})
            model = BertForSequenceClassification(config)
        if not lora:
            return model
        targets = ["c_attn"] if kind == "gpt2" else ["query", "value"]
        options = {"fan_in_fan_out": True} if kind == "gpt2" else {"modules_to_save": ["classifier"]}
        model = get_peft_model(model, LoraConfig(r=2, target_modules=targets, lora_dropout=dropout, **options))
        for name, p in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.3)  # zero by default, which makes half of the gradients zero
        return model


def criterion_of(kind):
    return CausalLMLoss() if kind == "gpt2" else nn.CrossEntropyLoss()


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def loss_by_hand(model, example):
    """Return the loss of one example alone: the mean over its own tokens, or the loss of its class."""
    inputs = {name: example[name][None] for name in ("input_ids", "attention_mask")}
    logits = model(**inputs).logits[0].log_softmax(-1)
    if logits.dim() == 1:
        return -logits[example["labels"]]
    targets = example["labels"][1:]
    kept = targets != -100
    return -logits[:-1][kept].gather(1, targets[kept][:, None]).mean()


def gradient_by_hand(model, losses):
    total = sum(losses)
    found = torch.autograd.grad(total, trained(model))
    return torch.cat([g.reshape(-1) for g in found])


def clipped_sum_by_hand(model, groups, clip_norm):
    """Return the sum of clipped gradients in float64. A group holds the examples of a user, or a single example."""
    model = copy.deepcopy(model).double()
    gradients = torch.stack([gradient_by_hand(model, [loss_by_hand(model, e) for e in group]) for group in groups])
    norms = gradients.norm(dim=1)
    factors = (clip_norm / norms).clamp(max=1.0)
    assert (factors < 1).any(), "nothing is clipped"
    return (factors[:, None] * gradients).sum(0)


def noise_of_first_step(directory, model, plan, names, examples=EXAMPLES):
    """Return the noise of step 0 and the examples of its batch.

    All runs in the tests have the same run id, so a new run has the same noise and batches. `names` lists the
    parameters in the order of the optimizer. The result is in the order of the model.
    """
    parameters = [model.get_parameter(name).detach().clone() for name in names]
    with antiphase.torch.NoiseAdder(parameters, plan, directory, examples=examples, secret=SECRET) as noise:
        indices, mask = noise.batch()
        noise.add()
    found = dict(zip(names, [p.grad for p in parameters], strict=True))
    return in_order(found, model), indices[mask].tolist()


def in_order(found, model):
    """Return the tensors in the dictionary `found` as one vector, in the order of the model's trained parameters."""
    return torch.cat([found[name].reshape(-1) for name, p in model.named_parameters() if p.requires_grad]).double()


class Recorder:
    """Stores the gradient of each step of the inner optimizer."""

    def __init__(self, optimizer, model):
        names = {id(p): name for name, p in model.named_parameters()}
        self.names = [names[id(p)] for p in optimizer.params]
        self.steps, self._params, self._model = [], optimizer.params, model
        self._step = optimizer.original_optimizer.step
        optimizer.original_optimizer.step = self._record

    def _record(self, *args, **options):
        gradients = dict(zip(self.names, [p.grad.detach() for p in self._params], strict=True))
        self.steps.append(in_order(gradients, self._model))
        return self._step(*args, **options)
