"""Export a trained policy as one graph from states and noise to actions, which runs without this package."""

from nsde_policy.deploy.export.export import ExportedFile as ExportedFile
from nsde_policy.deploy.export.export import export_policy as export_policy
