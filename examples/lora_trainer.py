"""Fine-tune a small GPT-2 with LoRA and differential privacy, with Hugging Face's Trainer.

    python examples/lora_trainer.py --directory /tmp/lora

Needs `pip install antiphase[huggingface]`. The model comes from a config and the text is generated, so nothing is
downloaded. If interrupted or killed, run it again: it resumes from the last checkpoint.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import antiphase as ap
from antiphase.torch.huggingface import PrivateTrainer

LENGTH, LETTERS = 12, 26


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return generated texts. Each letter is one, two or three places after the previous letter in the alphabet."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randint(1, 4, (count, LENGTH), generator=generator)
    tokens = moves.cumsum(1) % LETTERS
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=LETTERS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    config.update({"bos_token_id": 0, "eos_token_id": 0})
    lora = LoraConfig(r=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    return get_peft_model(GPT2LMHeadModel(config), lora)


def main(directory: Path, examples: int, steps: int, batch_size: int, epsilon: float) -> float:
    # 1. State the problem and the privacy budget, and make a plan. The noise may use the memory of 4 adapter copies.
    problem = ap.Problem(
        steps=steps,
        budget=ap.Budget(epsilon=epsilon, delta=1e-5),
        examples=examples,
        batch_size=batch_size,
        memory_copies=4,
    )
    plan = ap.plan(problem, families=["blt"])

    # 2. Use PrivateTrainer like Trainer. The plan determines the batches. They are processed 16 examples at a time.
    args = TrainingArguments(
        str(directory / "out"),
        per_device_train_batch_size=16,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        logging_steps=max(1, steps // 5),
        save_steps=max(1, steps // 5),
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
    )
    with PrivateTrainer(
        network(),
        args,
        plan=plan,
        run_directory=directory / "run",
        train_dataset=sentences(examples, seed=1),
        eval_dataset=sentences(200, seed=2),
    ) as trainer:
        # 3. Train, or continue where an earlier process stopped.
        trainer.train(resume_from_checkpoint=True)

        # 4. The report states the guarantee of the steps that ran.
        print(trainer.report())
        loss = float(trainer.evaluate()["eval_loss"])
    print(f"loss per letter on held-out text: {loss:.2f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("lora-run"))
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=8.0)
    main(**vars(parser.parse_args()))
