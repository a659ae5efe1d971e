"""Tasks: environment and outcome, and what reports, pictures and training need; one file per task.

A robot of your own needs no task (`--task none`).
"""

from .base import Outcome as Outcome
from .base import Reporting as Reporting
from .base import Task as Task
from .base import find_rate as find_rate
from .base import read_episode_mode as read_episode_mode
from .base import with_env_kwargs as with_env_kwargs
from .base import with_observations as with_observations
from .detection import NO_TASK as NO_TASK
from .detection import check_recorded_task as check_recorded_task
from .detection import find_task as find_task
from .drawing import Drawing as Drawing
from .drawing import Forecast as Forecast
from .registry import TASKS as TASKS
from .registry import GymTask as GymTask
from .registry import get_task as get_task
from .registry import get_task_of_run as get_task_of_run
from .registry import register_task as register_task
from .training_defaults import TrainingDefaults as TrainingDefaults
