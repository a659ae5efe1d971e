"""Environments, registered with Gymnasium under `nsde_policy/`.

Importing this module registers them (Gymnasium 1 reads no entry points); so does naming it in the id,
`gymnasium.make("nsde_policy.envs:nsde_policy/PushT-v0")`. Nothing heavy is imported until one is made.
"""

PUSHT_ID = "nsde_policy/PushT-v0"
"""Push a T-shaped block onto its outline: see `nsde_policy.envs.pusht.env.PushTEnv`."""
AVOIDING_ID = "nsde_policy/Avoiding-v0"
"""Move a rod between obstacles, 24 ways: see `nsde_policy.envs.avoiding.env.AvoidingEnv`."""
AVOIDING_PERIODS = 250
"""Control periods after which an episode of obstacle avoidance ends."""
_ENVS = {
    PUSHT_ID: ("nsde_policy.envs.pusht.env:PushTEnv", 300),
    AVOIDING_ID: ("nsde_policy.envs.avoiding.env:AvoidingEnv", AVOIDING_PERIODS),
}
"""Class and longest episode of each environment."""


def register_envs() -> None:
    """Tell Gymnasium about every environment of the package; calling it again does nothing."""
    from gymnasium.envs.registration import register, registry

    for env_id, (entry_point, steps) in _ENVS.items():
        if env_id not in registry:
            register(
                id=env_id,
                entry_point=entry_point,
                max_episode_steps=steps,
                disable_env_checker=True,  # they check their own inputs, faster and with clearer words
            )


register_envs()
