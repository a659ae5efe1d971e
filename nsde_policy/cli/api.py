"""The command `train` as a Python function, `nsde_policy.train`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.cli.main import show_log
from nsde_policy.cli.shared.options import check_command
from nsde_policy.cli.train import Train
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    from nsde_policy.inference.policy import Policy


def train(
    demos: Path | str | None = None,
    out: Path | str | None = None,
    *,
    images: Sequence[str] = (),
    preset: str | None = None,
    validation: float = 0.0,
    seed: int = 0,
    resume: bool = False,
    **settings: object,
) -> "Policy":
    """Train a policy on demonstrations as `nsde-policy train` does, and return it.

        policy = nsde_policy.train("my_robot", "runs/arm", images=["top", "wrist"], validation=0.1)
        print(policy.evaluate("my_robot"))
        with policy.session() as session:
            robot.send(session.step(robot.observe()))

    Args:
        demos: Demonstrations of any format; None for those of Push-T in this package.
        out: Run directory to write; by default below runs/.
        images: Names of the cameras.
        preset: Settings to start from; None chooses by the demonstrations.
        validation: Fraction of the episodes to hold out, such as 0.1.
        seed: Seed of weights, batches and noise.
        resume: Continue the run in `out` from its last checkpoint, as after an interrupt.
        **settings: Other flags of the command: `steps=5000`, `policy="diffusion"`, `rate=20`, `device="cpu"`,
            `obs_keys=["qpos"]`, `calibration=0.1`; with a group as `**{"model.noise": 0.5}`.

    Raises:
        NsdePolicyError: If demonstrations or settings are not valid; the message says what to change.
    """
    from nsde_policy.inference.policy import Policy

    known: dict[str, object] = {"demos": demos, "out": out, "images": images, "preset": preset}
    known |= {"validation": validation, "seed": seed, "resume": resume}
    show_log()
    try:
        command = Train.parse(_list_flags({**known, **settings}), "nsde_policy.train")
    except SystemExit:  # what is wrong has been printed
        names = ", ".join(settings) or "these arguments"
        raise ConfigError(f"train cannot use {names}: `nsde-policy train --help-all` lists all") from None
    return Policy.from_pretrained(check_command(command).train().path)


def _list_flags(settings: dict[str, object]) -> list[str]:
    """Return keyword arguments as flags of a command; None, and no values, leave one out."""
    flags: list[str] = []
    for name, value in settings.items():
        group, _, last = name.replace("_", "-").rpartition(".")
        prefix = f"--{group}." if group else "--"
        if isinstance(value, bool):
            flags += [f"{prefix}{last}" if value else f"{prefix}no-{last}"]
        elif isinstance(value, list | tuple):
            flags += [f"{prefix}{last}", *map(str, value)] if value else []
        elif value is not None:
            flags += [f"{prefix}{last}", str(value)]
    return flags
