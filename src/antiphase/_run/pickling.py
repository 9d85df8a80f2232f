"""What holds a run is not pickled: whole-object checkpoints would carry its noise, and copies would repeat it."""

from __future__ import annotations

from typing import NoReturn

from antiphase._errors import Refused


def refuse_pickle(held: object, protocol: object) -> NoReturn:
    """For `__reduce_ex__` of everything that holds a run, which pickle, copy and torch.save of whole objects call."""
    raise Refused(
        f"A {type(held).__name__} in private training cannot be pickled or copied: its secret, its noise or the "
        "gradients of single examples would end up in the file.",
        hint="save what state_dict() gives; make copies of a model before training is made private",
    )
