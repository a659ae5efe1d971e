"""One file per method, behind one small interface (`interface.py`)."""

from nsde_policy.models.interface import AbstractModel as AbstractModel
from nsde_policy.models.interface import AbstractPolicyModel as AbstractPolicyModel
from nsde_policy.models.interface import Draws as Draws
from nsde_policy.models.interface import LossParts as LossParts
from nsde_policy.models.interface import Stage as Stage
from nsde_policy.models.learned_sde import LearnedSDE as LearnedSDE
from nsde_policy.models.neural_sde import NeuralSDE as NeuralSDE
from nsde_policy.models.neural_sde import spread as spread
