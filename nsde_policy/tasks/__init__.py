"""Tasks: environment and outcome, and what reports, pictures and training need; one file per task.

A robot of your own needs no task (`--task none`).
"""

from nsde_policy.tasks.base import Outcome as Outcome
from nsde_policy.tasks.base import Reporting as Reporting
from nsde_policy.tasks.base import Task as Task
from nsde_policy.tasks.base import read_episode_mode as read_episode_mode
from nsde_policy.tasks.base import with_env_kwargs as with_env_kwargs
from nsde_policy.tasks.base import with_observations as with_observations
from nsde_policy.tasks.detection import NO_TASK as NO_TASK
from nsde_policy.tasks.detection import OWN_ROBOT as OWN_ROBOT
from nsde_policy.tasks.detection import check_recorded_task as check_recorded_task
from nsde_policy.tasks.detection import find_task as find_task
from nsde_policy.tasks.drawing import Drawing as Drawing
from nsde_policy.tasks.drawing import Forecast as Forecast
from nsde_policy.tasks.drawing import Scene as Scene
from nsde_policy.tasks.gym import GymTask as GymTask
from nsde_policy.tasks.gym import find_rate as find_rate
from nsde_policy.tasks.registry import TASKS as TASKS
from nsde_policy.tasks.registry import get_task as get_task
from nsde_policy.tasks.registry import get_task_of_run as get_task_of_run
from nsde_policy.tasks.registry import register_task as register_task
from nsde_policy.tasks.training_defaults import TrainingDefaults as TrainingDefaults
