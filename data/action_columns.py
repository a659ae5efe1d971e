"""What action columns command, inferred from demonstrations: absolute positions, or changes of them.

A position-controlled robot is commanded absolute positions, so before the first action its own position
replaces the command. Columns that are not commanded that way start at the median of the first recorded
actions. Changes may be sent only once per period, which a control session has to know.
"""

from collections.abc import Sequence

import numpy as np

from nsde_policy.core.spec import wrap_angle

from .types import Demonstrations

NO_COLUMN = -1
"""Marks an action column that no observation column matches."""
MATCH_ERROR = 0.3
"""Largest RMS difference of a match, in standard deviations of the action column."""
MOST_FRAMES = 20_000
"""Frames that are compared, spread evenly over the demonstrations."""
MOST_COMPARED, FEWEST_FRAMES = 10**8, 32
"""Numbers that are compared at one lag: with many columns fewer frames, but at least so many."""
ALIGNED_MATCH_ERROR = 0.75
"""The same for a column in line with matched ones: joints that lag, sag or hold an object deviate more."""
LONGER_LAGS = (2, 3, 4, 6, 8, 12, 16)
"""Frames after which an arm that lags is compared with its command."""
FEWEST_BINARY_FRAMES = 20
"""Fewest frames in which two values of an action are all that it takes."""
FEWEST_STARTS = 8
"""Fewest episodes whose first frames alone are compared."""

CHANGE_PERIODS = (1, 8)
"""Periods over which changes are compared: one is exact, several average over noise and lag."""


def match_columns(demos: Demonstrations) -> tuple[int, ...]:
    """Find the observation column that each action column commands; `NO_COLUMN` for none.

    An action column matches the observation column whose values, now or some frames later, it equals up to a
    small error compared with its own spread, or which it equals at the start of episodes. Each observation
    column is used once, best matches first. Then weaker matches count if they continue a run of matches:
    action j commands observation j + k, as at least half of the matched columns do.
    """
    errors = _measure_errors(demos)
    columns = np.full(demos.act.shape[1], NO_COLUMN)
    _assign(columns, np.where(errors <= MATCH_ERROR, errors, np.inf))
    matched = np.flatnonzero(columns != NO_COLUMN)
    if len(matched):
        offsets, counts = np.unique(columns[matched] - matched, return_counts=True)
        rows, candidates = np.indices(errors.shape)
        aligned = np.isin(candidates - rows, offsets[2 * counts >= len(matched)])
        _assign(columns, np.where(aligned & (errors <= ALIGNED_MATCH_ERROR), errors, np.inf))
    return tuple(columns.tolist())


def match_changes(demos: Demonstrations, positions: Sequence[int]) -> tuple[int, ...]:
    """Find the observation column to which each action column is added in one period; `NO_COLUMN` for none.

    The sum of an action over some periods equals the change of the observation over them, or over those one
    frame later, up to a small error compared with its own RMS. Velocities and actions from −1 to 1 differ by
    a factor and do not match. Columns that `match_columns` matched, in `positions`, are left out.
    """
    errors = np.full((demos.act.shape[1], demos.obs.shape[1]), np.inf)
    ends = np.repeat(demos.episode_ends, demos.lengths)
    for periods in CHANGE_PERIODS:
        for lag in (0, 1):
            now = np.flatnonzero(np.arange(len(ends)) + periods + lag < ends)
            if len(now):
                errors = np.minimum(errors, _measure_change_errors(demos, _spread(demos, now), periods, lag))
    errors[[column != NO_COLUMN for column in positions]] = np.inf
    columns = np.full(len(errors), NO_COLUMN)
    _assign(columns, np.where(errors <= MATCH_ERROR, errors, np.inf))
    return tuple(columns.tolist())


def _measure_change_errors(demos: Demonstrations, now: np.ndarray, periods: int, lag: int) -> np.ndarray:
    """Return the RMS difference of summed actions from changes of observations, in RMS of the former."""
    change = demos.obs[now + lag + periods].astype(np.float64) - demos.obs[now + lag]
    angles = list(demos.angles)
    change[:, angles] = wrap_angle(change[:, angles])
    act = sum((demos.act[now + k].astype(np.float64) for k in range(periods)), np.zeros(()))
    return _compare(demos, act, change, np.sqrt(np.square(act).mean(0)))


def measure_first_action(demos: Demonstrations, columns: Sequence[int]) -> tuple[float, ...]:
    """Return the median first action of each column marked `NO_COLUMN`; always a recorded value."""
    first = demos.act[demos.starts]
    unmatched = [action for action, column in enumerate(columns) if column == NO_COLUMN]
    return tuple(float(v) for v in np.quantile(first[:, unmatched], 0.5, axis=0, method="lower"))


def find_binary(demos: Demonstrations) -> tuple[tuple[int, float, float], ...]:
    """Find the action columns that take two values, such as a gripper, each with these values; no angles."""
    low, high = demos.act.min(0), demos.act.max(0)
    two_valued = (low < high) & ((demos.act == low) | (demos.act == high)).all(0)
    columns = np.flatnonzero(two_valued & (len(demos.act) >= FEWEST_BINARY_FRAMES)).tolist()
    return tuple((i, float(low[i]), float(high[i])) for i in columns if i not in demos.act_angles)


def format_matches(columns: Sequence[int]) -> str:
    """Format matches as ranges of columns: (0, 1, 2, -1) gives "action 0-2 = observation 0-2"."""
    matched = [(action, column) for action, column in enumerate(columns) if column != NO_COLUMN]
    runs: list[list[tuple[int, int]]] = []
    for action, column in matched:
        if runs and runs[-1][-1] == (action - 1, column - 1):
            runs[-1].append((action, column))
        else:
            runs.append([(action, column)])
    return ", ".join(
        " = ".join(
            f"{part} {first}" if first == last else f"{part} {first}-{last}"
            for part, first, last in zip(("action", "observation"), run[0], run[-1], strict=True)
        )
        for run in runs
    )


def describe_changes(columns: Sequence[int]) -> str:
    """Describe columns that `match_changes` found in one line; empty without any."""
    matches = format_matches(columns).replace("=", "changes")
    if not matches:
        return ""
    return (
        f"actions that are changes per period: {matches}; a control session has to run at the recorded rate"
    )


def _measure_errors(demos: Demonstrations) -> np.ndarray:
    """Return the RMS difference of actions from observations, in standard deviations of the former.

    With a longer lag, columns have to agree at the start of episodes too, where a robot rests. If episodes
    start in different places, agreement there is enough.
    """
    ends = np.repeat(demos.episode_ends, demos.lengths)
    starts = _spread(demos, demos.starts)
    first, spread = demos.act[starts].astype(np.float64), demos.act.std(0, dtype=np.float64)
    at_start = _compare(demos, first, demos.obs[starts], spread)
    errors = np.full_like(at_start, np.inf)
    if len(demos) >= FEWEST_STARTS:
        errors = _compare(demos, first, demos.obs[starts], first.std(0))
    for lag in (0, 1, *LONGER_LAGS):
        now = np.flatnonzero(np.arange(len(ends)) + max(lag, 1) < ends)
        if len(now):
            now = _spread(demos, now)
            act = demos.act[now].astype(np.float64)
            error = _compare(demos, act, demos.obs[now + lag], act.std(0))
            errors = np.minimum(errors, error if lag <= 1 else np.maximum(error, at_start))
    return errors


def _spread(demos: Demonstrations, frames: np.ndarray) -> np.ndarray:
    """Return as many of the frames as are compared, spread evenly."""
    most = max(FEWEST_FRAMES, MOST_COMPARED // (demos.act.shape[1] * demos.obs.shape[1]))
    return frames[:: -(-len(frames) // min(MOST_FRAMES, most))]


def _compare(demos: Demonstrations, act: np.ndarray, obs: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the RMS difference of every action column from every observation column, in units of `scale`.

    (act_dim, obs_dim); infinite for constant columns, which match by coincidence. Angles differ by less than
    half a turn.
    """
    errors = np.full((act.shape[1], obs.shape[1]), np.inf)
    moving = np.flatnonzero(np.ptp(demos.obs, axis=0) > 0)
    obs = obs[:, moving]
    for column in np.flatnonzero((np.ptp(demos.act, axis=0) > 0) & (scale > 0)):
        difference = act[:, column, None] - obs
        if column in demos.act_angles:
            difference = wrap_angle(difference)
        errors[column, moving] = np.sqrt(np.square(difference).mean(0)) / scale[column]
    return errors


def _assign(columns: np.ndarray, errors: np.ndarray) -> None:
    """Fill `columns` with the smallest finite errors first; no observation column is used twice."""
    errors[columns != NO_COLUMN] = np.inf
    errors[:, columns[columns != NO_COLUMN]] = np.inf
    finite = np.flatnonzero(np.isfinite(errors))
    used = set[int]()
    for place in finite[np.argsort(errors.flat[finite], kind="stable")]:
        action, column = divmod(int(place), errors.shape[1])
        if columns[action] == NO_COLUMN and column not in used:
            columns[action] = column
            used.add(column)
