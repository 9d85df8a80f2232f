"""Why Flower's SecAgg+ is not supported: what docs/flower.md says about it, shown on the installed Flower.

The protocol is Flower's own, with its workflow on the server and its mod on the clients, in memory.
"""

import copy

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.server import ServerConfig, SimpleClientManager
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.task_identity import TaskIdentity

from antiphase.flower import DPFTRL, participation_mod
from antiphase.flower._wire import TAG, Task, to_record

CLIENTS, ENTRIES, CLIP = 4, 3, 1.0
RANGE, LEVELS, MODULUS = 8.0, 2**22, 2**32  # Flower's defaults
QUANTUM = 2 * RANGE / LEVELS
MAX_WEIGHT = 1000.0


class Device:
    """A client with Flower's mod. `tamper` changes what it sends in the stage of masked vectors."""

    def __init__(self, node, update, examples=1000, tamper=None, dies_in=None):
        self.update, self.examples, self.tamper, self.dies_in = update, examples, tamper, dies_in
        self._context = Context(1, node, {}, RecordDict(), {})

    def answer(self, message):
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if stage == self.dies_in:
            return Message(Error(code=8, reason="killed"), reply_to=message)
        reply = secaggplus_mod(message, self._context, self._fit)
        if self.tamper is not None and stage == Stage.COLLECT_MASKED_VECTORS:
            self.tamper(reply.content.config_records[RECORD_KEY_CONFIGS])
        return reply

    def _fit(self, message, context):
        parameters = ndarrays_to_parameters([np.asarray(self.update, np.float64)])
        result = FitRes(Status(Code.OK, ""), parameters, self.examples, {})
        return Message(compat.fitres_to_recorddict(result, True), reply_to=message)


class MemoryGrid:
    def __init__(self, devices):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.devices = devices

    def send_and_receive(self, messages, timeout=None):
        copies = [copy.deepcopy(message) for message in messages]  # as on the network: the mod changes what it gets
        return [self.devices[message.metadata.dst_node_id].answer(message) for message in copies]


class Proxy:
    def __init__(self, node_id):
        self.node_id = node_id


class Averaging:
    """What the workflow asks of a strategy; keeps the aggregate."""

    aggregate = None

    def configure_fit(self, server_round, parameters, client_manager):
        return [(Proxy(100 + i), FitIns(parameters, {})) for i in range(CLIENTS)]

    def aggregate_fit(self, server_round, results, failures):
        self.aggregate = parameters_to_ndarrays(results[0][1].parameters)[0]
        return results[0][1].parameters, {}


def mean(devices, threshold=2):
    """The weighted mean that Flower's server gets, or None if the protocol was halted."""
    strategy = Averaging()
    state = RecordDict()
    context = LegacyContext(
        Context(1, 1, {}, state, {}),
        ServerConfig(num_rounds=1),
        strategy=strategy,
        client_manager=SimpleClientManager(),
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(ENTRIES)])
    grid = MemoryGrid({100 + i: device for i, device in enumerate(devices)})
    SecAggPlusWorkflow(CLIENTS, threshold, max_weight=MAX_WEIGHT)(grid, context)
    return strategy.aggregate


def on_grid(*values):
    """Values that quantization keeps as they are, so that its random rounding decides nothing."""
    return np.round(np.array(values) / QUANTUM) * QUANTUM


def devices(**changes):
    updates = [on_grid(0.5, -0.25, 0.125), on_grid(0.25, 0.5, 0.0), on_grid(-0.5, 0.25, 0.25), on_grid(0.0, 0.0, 0.5)]
    return [Device(100 + i, update, **changes.get(f"c{i}", {})) for i, update in enumerate(updates)]


def test_the_protocol_in_memory_gives_the_mean_of_honest_clients():
    given = devices()
    expected = np.mean([device.update for device in given], axis=0)
    np.testing.assert_allclose(mean(given), expected, atol=QUANTUM)


def test_the_workflow_is_for_strategies_of_the_older_interface():
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(CLIENTS, 2)(MemoryGrid({}), Context(1, 1, {}, RecordDict(), {}))
    assert not hasattr(DPFTRL, "configure_fit")
    assert not hasattr(DPFTRL, "aggregate_fit")


@pytest.mark.parametrize("phase", ["check-in", "train"])
def test_its_mod_does_not_let_our_messages_pass(phase, tmp_path):
    """It takes every training message for a stage of its protocol, so our mod behind it is never called."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    task = Task("run", 0, 1, CLIP, False, "0" * 48, phase)
    message = Message(RecordDict({TAG: to_record(task)}), 100, "train")
    ours, context = participation_mod(tmp_path / "c"), Context(1, 100, {}, RecordDict(), {})
    with pytest.raises(KeyError, match="secaggplus_configs"):
        secaggplus_mod(message, context, lambda m, c: ours(m, c, lambda m, c: m))
    assert not (tmp_path / "c").exists()


def test_our_mod_does_not_let_its_stages_pass(tmp_path):
    """Only one of four stages has the model and trains; the others would need a participation of their own."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    setup = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: Stage.SETUP})})
    message, context = Message(setup, 100, "train"), Context(1, 100, {}, RecordDict(), {})
    reply = participation_mod(tmp_path / "c")(message, context, lambda m, c: secaggplus_mod(m, c, None))
    assert reply.has_error()
    assert "not a task" in reply.error.reason


def test_the_divisor_is_what_clients_claim():
    """One client claims all the examples: the mean is its own update, so its share is not clip / goal."""
    given = devices(c0={"examples": 1000}, c1={"examples": 0}, c2={"examples": 0}, c3={"examples": 0})
    np.testing.assert_allclose(mean(given), given[0].update, atol=2 * CLIENTS * QUANTUM)


def test_clipping_is_by_entry_and_the_server_cannot_see_that_a_client_does_not_clip():
    given = devices()
    honest = mean(given)
    given[3].update = np.full(ENTRIES, 7.5)
    moved = CLIENTS * np.linalg.norm(mean(given) - honest)
    assert moved > 10 * CLIP
    assert moved == pytest.approx(np.linalg.norm(given[3].update - on_grid(0.0, 0.0, 0.5)), abs=0.01)


def test_rounding_to_the_grid_can_exceed_the_clipping_norm():
    rng = np.random.default_rng(0)
    update = rng.standard_normal(1000)
    update *= CLIP / np.linalg.norm(update)
    norms = [np.linalg.norm(dequantize(quantize([update], RANGE, LEVELS), RANGE, LEVELS)[0]) for _ in range(20)]
    assert max(norms) > CLIP * (1 + 1e-9)


def shifted(config, by):
    """Add `by` to the quantized entries behind the mask, which is what any number of lies amounts to."""
    from flwr.common import bytes_to_ndarray, ndarray_to_bytes

    factor, vector = (bytes_to_ndarray(part) for part in config[Key.MASKED_PARAMETERS])
    config[Key.MASKED_PARAMETERS] = [ndarray_to_bytes(factor), ndarray_to_bytes((vector + by) % MODULUS)]


def test_a_dishonest_client_can_make_the_sum_of_the_others_wrap_around():
    """Two runs in which an honest client's update differs by one quantum: the server's sums differ by 16,384.

    The sum is taken modulo 2^32, and noise is added after it was decoded. A client that moves the sum to just below the
    modulus makes the smallest difference of another client larger than any noise.
    """
    honest = devices()
    # The sum of the first entries, in quanta above the bottom of the range; with weights 1000 of 1000 these are exact.
    total = sum(round((device.update[0] + RANGE) / QUANTUM) for device in honest)
    by = np.array([MODULUS - 1 - total, 0, 0])
    sums = []
    for difference in (0, 1):
        given = devices(c3={"tamper": lambda config: shifted(config, by)})
        given[0].update = given[0].update + np.array([difference * QUANTUM, 0.0, 0.0])
        sums.append(CLIENTS * mean(given))
    assert np.linalg.norm(given[0].update - honest[0].update) <= CLIP
    assert abs(sums[1][0] - sums[0][0]) == pytest.approx(MODULUS * QUANTUM, rel=1e-6)
    assert MODULUS * QUANTUM == 16384.0
    np.testing.assert_allclose(sums[1][1:], sums[0][1:], atol=CLIENTS * QUANTUM)


def test_a_client_that_does_not_mask_destroys_the_release():
    """With DPFTRL, a malformed update counts as zero; here nobody can tell, and the sum is a random number."""
    given = devices(
        c3={"tamper": lambda config: shifted(config, np.random.default_rng(1).integers(0, MODULUS, ENTRIES))}
    )
    expected = np.mean([device.update for device in given], axis=0)
    assert np.abs(mean(given) - expected).max() > 100 * CLIP


@pytest.mark.parametrize("stage", [Stage.SHARE_KEYS, Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK])
def test_a_client_that_drops_out_can_take_the_updates_of_all_others_with_it(stage):
    """Below the threshold the protocol is halted. So what others add to the sum depends on whether one client fails."""
    assert mean(devices(), threshold=3) is not None
    assert mean(devices(c0={"dies_in": stage}, c1={"dies_in": stage}), threshold=3) is None
