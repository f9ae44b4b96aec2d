"""Optimisers: transforms of gradients that can be combined, schedules, and the familiar classes on top."""

from .optimizers import LBFGS, SGD, Adagrad, Adam, Adamax, AdamW, Chain, Lion, Muon, NAdam, Optimizer, RAdam, RMSprop
from .pieces import (
    accumulate,
    average_weights,
    clip_by_norm,
    clip_by_value,
    decay_weights,
    global_norm,
    momentum,
    reduce_on_plateau,
    scale_by_learning_rate,
)
from .quasi_newton import lbfgs
from .rules import adagrad, adam, adamax, adamw, lion, muon, nadam, radam, rmsprop, sgd
from .scaling import scale_loss
from .schedules import cosine_decay, exponential_decay, join, linear, one_cycle, step_decay, warmup
from .transform import Transform, apply_updates, chain, groups, per_parameter
