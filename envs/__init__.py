"""Environments, registered with Gymnasium under `nsde_policy/`.

Importing this module registers them (Gymnasium 1 reads no entry points); so does naming it in the id,
`gymnasium.make("nsde_policy.envs:nsde_policy/PushT-v0")`. Nothing heavy is imported until one is made.
"""

PUSHT_ID = "nsde_policy/PushT-v0"
"""Push a T-shaped block onto its outline: see `nsde_policy.envs.pusht.env.PushTEnv`."""


def register_envs() -> None:
    """Tell Gymnasium about every environment of the package; calling it again does nothing."""
    from gymnasium.envs.registration import register, registry

    if PUSHT_ID not in registry:
        register(
            id=PUSHT_ID,
            entry_point="nsde_policy.envs.pusht.env:PushTEnv",
            max_episode_steps=300,
            disable_env_checker=True,  # it checks its own inputs, faster and with clearer words
        )


register_envs()
