"""The client, which trains on its own digits. The mod clips the update and limits how often the client takes part."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from antiphase.flower import participation_mod
from digits.task import of_user, trained


def directory(context: Context) -> Path:
    """Return the directory of a virtual client of the simulation. A real device would use a fixed directory."""
    return (
        Path(str(context.run_config["directory"])).expanduser() / "clients" / str(context.node_config["partition-id"])
    )


app = ClientApp(mods=[participation_mod(directory)])


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content.array_records["arrays"]
    images, labels = of_user(int(context.node_config["partition-id"]), int(context.run_config["users"]))
    after = trained(arrays.to_numpy_ndarrays(), images, labels)
    return Message(RecordDict({"arrays": ArrayRecord(after)}), reply_to=message)
