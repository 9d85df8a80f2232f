"""Noise generated on the device: the same mechanism with another generator, which the report names."""

import math

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase._noise import Leaf
from antiphase._run import leaves_of
from antiphase._run.tail import DEVICE_ENDS
from antiphase.torch import NoiseAdder
from antiphase.torch import _device as device
from tests.signals import at_line
from tests.torch.training import SECRET, plan_for

N = 12
LIKE = torch.empty(0)
STRATEGIES = {
    "identity": ap.strategies.Identity(N),
    "blt": ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], N),
    "toeplitz": ap.strategies.Toeplitz([1.0, 0.6, 0.3], N),
    "normalized": ap.strategies.Toeplitz([1.0, 0.6, 0.3], N, column_normalized=True),
    "banded": ap.strategies.Banded(ap.strategies.Toeplitz([2.0, 0.5, 0.25], N).columns()),
    "banded-inverse": ap.strategies.BandedInverse([1.0, -0.5, -0.125], N),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_is_noising_times_white(name):
    plan, leaves = plan_for(STRATEGIES[name]), {"0": Leaf((7,)), "1": Leaf((3,))}
    tape = device.DeviceReplay(plan, SECRET, "run", leaves, LIKE)
    made = np.stack([torch.cat(tape.read(t)).numpy() for t in range(N)])
    white = device.SeededNormals(SECRET, ("run", plan.fingerprint), LIKE)
    z = np.stack([torch.cat([white.draw(t, *leaf) for leaf in leaves.items()]).numpy() for t in range(N)])
    assert made == pytest.approx(3.0 * STRATEGIES[name].noising() @ z, rel=1e-5, abs=1e-5)
    assert np.array_equal(torch.cat(tape.read(3)).numpy(), made[3])  # wound back


@pytest.mark.parametrize("asked", [1, 2, 0], ids=["the same step", "the next", "the last"])
def test_a_signal_handler_that_reads_noise_does_not_change_the_step_it_interrupts(asked):
    plan, leaves = plan_for(STRATEGIES["toeplitz"]), {"0": Leaf((3,))}

    def tape():
        return device.DeviceReplay(plan, SECRET, "run", leaves, LIKE)

    steady = tape()
    reference = [steady.read(t)[0].clone() for t in range(3)]
    moment, is_called, refusals = 0, True, 0
    while is_called:
        interrupted, seen = tape(), []
        interrupted.read(0)

        def handle(interrupted=interrupted, seen=seen):
            try:
                seen.append(interrupted.read(asked)[0].clone())
            except ap.Refused:
                seen.append(None)

        (noise,), is_called = at_line(moment, ("torch/_device.py",), handle, lambda tape=interrupted: tape.read(1))
        assert torch.equal(noise, reference[1]), moment
        assert torch.equal(interrupted.read(2)[0], reference[2]), moment
        for other in seen:
            refusals += other is None
            assert other is None or torch.equal(other, reference[asked]), moment
        moment += 1
    assert 5 < refusals < moment


def test_white_is_standard_normal_and_new_for_every_row_leaf_and_secret():
    white, leaf = device.SeededNormals(SECRET, ("run",), LIKE), Leaf((200_000,))
    draws = [
        white.draw(0, "0", leaf),
        white.draw(1, "0", leaf),
        white.draw(0, "1", leaf),
        device.SeededNormals(ap.Secret.insecure(6), ("run",), LIKE).draw(0, "0", leaf),
        device.SeededNormals(SECRET, ("other",), LIKE).draw(0, "0", leaf),
    ]
    z = torch.stack(draws).double().numpy()
    assert np.abs(z @ z.T / z.shape[1] - np.eye(5)).max() < 5 * np.sqrt(2 / z.shape[1])


def test_regions_are_cut_from_the_whole(monkeypatch):
    monkeypatch.setattr(device, "BLOCK", 16)
    white = device.SeededNormals(SECRET, ("run",), LIKE)
    whole = white.draw(2, "0", Leaf((50,)))
    for start, stop in [(0, 0), (0, 50), (3, 7), (15, 33), (16, 32), (49, 50), (50, 50)]:
        assert torch.equal(white.draw(2, "0", Leaf((50,), ((start, stop),))), whole[start:stop])


def test_report_names_the_source_and_a_change_of_it_is_refused(tmp_path):
    def adder(source):
        return NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, examples=40, secret=SECRET, source=source)

    with adder("device") as noise:
        noise.batch()
        noise.add()
        noise.commit()
        assert any("not cryptographic" in remark for remark in noise.report().remarks)
    with pytest.raises(ap.Refused, match="a different source"):
        adder("host")
    adder("device").close()


def test_a_run_begun_on_the_host_stays_there(tmp_path):
    with NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, secret=SECRET) as noise:
        noise.add()
        noise.commit()
    with pytest.raises(ap.Refused, match="a different source"):
        NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, secret=SECRET, source="device")


def test_other_strategies_are_refused(tmp_path):
    with pytest.raises(ap.Refused, match="Fourier"):
        NoiseAdder([torch.zeros(4)], plan_for(ap.strategies.Fourier(N)), tmp_path, source="device")


def test_an_interrupt_does_not_move_the_noise_of_later_steps(monkeypatch):
    """The correlator has taken the row in, but the step is not counted yet: later noise would come a row late."""
    plan, leaves = plan_for(ap.strategies.Toeplitz([1.0, 0.5, 0.25], 6)), {"w": Leaf((5,))}
    expected = [device.DeviceReplay(plan, SECRET, "run", leaves, LIKE).read(step)[0] for step in range(6)]
    tape = device.DeviceReplay(plan, SECRET, "run", leaves, LIKE)
    tape.read(1)
    inner = tape._correlate

    def interrupted(step, draw):
        inner(step, draw)
        raise KeyboardInterrupt

    monkeypatch.setattr(tape, "_correlate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tape.read(2)
    for step in range(2, 6):
        assert torch.equal(tape.read(step)[0], expected[step])


def test_draws_end_where_the_report_says(tmp_path):
    """PyTorch's radius is sqrt(-2 ln u) with u at least 2^-24: 2^24 draws come near and stay below."""
    generator = torch.Generator().manual_seed(0)
    largest = max(float(torch.randn(1 << 22, generator=generator).abs().max()) for _ in range(4))
    end = math.sqrt(2 * 24 * math.log(2))
    assert 5.1 < largest <= end
    source = device.SeededNormals(SECRET, ("run",), LIKE).source
    said = DEVICE_ENDS[next(name for name in DEVICE_ENDS if source.startswith(name))]
    assert said["float32"] == pytest.approx(math.sqrt(2) * end, abs=0.01)
    with NoiseAdder([torch.zeros(4)], plan_for(), tmp_path, examples=40, secret=SECRET, source="device") as noise:
        assert any("assumes that the draws" in text and "about 8.2" in text for text in noise.report().remarks)


@pytest.mark.parametrize("clip_norm", [1.0, 2.0])
def test_a_run_with_noise_from_the_device_has_no_gradient_noise(tmp_path, clip_norm):
    """Its noise is flat tensors for clipping norm 1, which are views of what the next read returns."""
    parameters, plan = [torch.zeros(2, 2)], plan_for(clip_norm=clip_norm)
    with NoiseAdder(parameters, plan, tmp_path / "device", secret=SECRET, source="device") as noise:
        with pytest.raises(ap.Refused, match="does not come from the host"):
            noise._run.gradient_noise(0)
        noise.add()
        noise.commit()
    with NoiseAdder(parameters, plan, tmp_path / "host", secret=SECRET) as noise:
        run = noise._run
        found, stream = run.gradient_noise(0), ap.NoiseStream(plan, leaves_of(run), SECRET, run.run_id)
        np.testing.assert_allclose(found[0].reshape(-1), clip_norm * stream.next()[0].reshape(-1), rtol=1e-6)
