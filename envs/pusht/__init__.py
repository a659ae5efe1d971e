"""Push-T: `geometry` (shapes, coverage), `dynamics` (physics), `drawing` (pygame), `env` (Gymnasium)."""
