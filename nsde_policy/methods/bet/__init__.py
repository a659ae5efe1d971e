"""Behaviour Transformer (Shafiullah et al. 2022)."""

from nsde_policy.methods.bet.model import BehaviourTransformer as BehaviourTransformer
