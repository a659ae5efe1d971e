"""Export a trained policy as one graph from states and noise to actions, which runs without this package."""

from .export import ExportedFile as ExportedFile
from .export import export_policy as export_policy
