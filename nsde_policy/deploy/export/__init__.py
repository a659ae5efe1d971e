"""A trained policy as one file that runs without this package: one graph from states and noise to actions."""

from nsde_policy.deploy.export.export import Exported as Exported
from nsde_policy.deploy.export.export import export_policy as export_policy
