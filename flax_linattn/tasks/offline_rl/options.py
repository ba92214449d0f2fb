"""Options of offline-RL runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from flax_linattn.checks import MAX_INTEGER, OptionError, check_choice, check_integers
from flax_linattn.models.layers import DECISION_LAYERS, Layers
from flax_linattn.tasks.files import make_file_name
from flax_linattn.tasks.options import (
    Config,
    FitOptions,
    ModelOptions,
    Options,
    TaskOptions,
    mechanism_name,
)
from flax_linattn.training.optimizer_options import OptimizerOptions

EMBEDDED = "pendulum"
"""Name of the embedded data set in the names of run folders."""


@dataclasses.dataclass(frozen=True)
class OfflineRLData(Options):
    """Episodes to train on, and how they are split.

    Attributes:
        file: File of episodes; several files are joined. Floating-point actions are continuous, and
            one integer per step is a discrete action. Default: the episodes of a pendulum that come
            with the package.
        file_format: Format of the files: ``d4rl`` (HDF5 with the keys of D4RL), ``minari`` (folders
            of Minari) or ``npz`` (arrays with the same keys). ``auto`` infers it from the files.
        env: Gymnasium environment to test the model in; ``none`` plays no episodes. Default: the
            environment that the files name.
        num_episodes: Number of episodes to use, from the start of the files; 0 uses all.
        keep_unfinished: Keep the steps after the last episode end as an unfinished episode.
        validation_fraction: Fraction of the episodes held out to select the best parameters.
        test_fraction: Fraction of the episodes held out to measure the error of actions, or the
            accuracy of discrete ones.
        split_seed: Seed of the split into training, validation and test episodes, the same for all
            runs.
    """

    file: tuple[Path, ...] = ()
    file_format: Literal["auto", "d4rl", "minari", "npz"] = "auto"
    env: str = ""
    num_episodes: int = 0
    keep_unfinished: bool = False
    validation_fraction: float = 0.1
    test_fraction: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(0, MAX_INTEGER, num_episodes=self.num_episodes)
        check_integers(0, MAX_INTEGER - 1, split_seed=self.split_seed)
        fractions = {
            "validation_fraction": self.validation_fraction,
            "test_fraction": self.test_fraction,
        }
        for name, fraction in fractions.items():
            if not 0 < fraction < 1:
                raise OptionError(f"{name} must be between 0 and 1, got {fraction}.", name)
        if sum(fractions.values()) >= 1:
            raise OptionError(
                "the sum of validation_fraction and test_fraction must be below 1, to leave "
                f"training episodes, got {sum(fractions.values()):g}.",
                *fractions,
            )


SMALL_LAYERS = dataclasses.replace(DECISION_LAYERS, features=64, num_layers=2, hidden_features=128)
"""Default layers, which train four times as fast as the layers of the preset ``published``."""


@dataclasses.dataclass(frozen=True)
class OfflineRLModel(ModelOptions):
    """Options of the decision transformer, see ``models.DecisionTransformer``.

    Attributes:
        layers: Transformer blocks of the backbone.
        position: Encoding of the time step: ``learned`` (a table of ``max_length`` rows),
            ``sinusoidal`` (any time step) or ``none``.
        clock: Where time steps start from 0: at the start of the ``episode`` or of the ``context``.
        max_length: Number of learned positions, and capacity of a cache, in steps.
    """

    layers: Layers = SMALL_LAYERS
    position: Literal["learned", "sinusoidal", "none"] = "learned"
    clock: Literal["episode", "context"] = "episode"
    max_length: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, 2**20, max_length=self.max_length)


ADAMW = OptimizerOptions(
    "adamw",
    schedule="linear_warmup",
    warmup=200,
    weight_decay=1e-4,
    decay_mask="all",
    clip_norm=0.25,
)
"""Weight decay shrinks all parameters, biases and norms too, as in the published code."""


@dataclasses.dataclass(frozen=True)
class OfflineRLFit(FitOptions):
    """How the model is trained: AdamW on windows of episodes.

    Attributes:
        context: Context length: number of steps in a window.
        windows: How windows are sampled: ``steps`` weights each episode by its number of steps,
            ``episodes`` weights all episodes equally.
        return_scale: Return that is scaled to 1; 0 uses the largest return of the training data.
        select_on: What selects the best parameters: ``validation`` (the loss of actions in the
            validation episodes: squared error, or cross-entropy of discrete actions) or ``return``
            (the mean return of the played test episodes).
    """

    epochs: int = 40
    patience: int = 10
    batch_size: int = 32
    optimizer: OptimizerOptions = ADAMW
    context: int = 20
    windows: Literal["steps", "episodes"] = "steps"
    return_scale: float = 0.0
    select_on: Literal["validation", "return"] = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(1, 2**16, context=self.context)
        if not 0 <= self.return_scale < float("inf"):
            raise OptionError(
                f"return_scale must be finite and at least 0, got {self.return_scale}.",
                "return_scale",
            )


@dataclasses.dataclass(frozen=True)
class OfflineRLPlay(Options):
    """How the model acts in the environment, and its baselines.

    Attributes:
        act: How the agent handles the context: ``restart`` resets a recurrent state after
            ``context`` steps and feeds it the last half of them again; ``stream`` keeps one
            recurrent state for the whole episode, beyond the training length; ``window``
            recomputes the last ``context`` steps at each step.
        target_return: Target return (return-to-go at the start of an episode). Default: that of the
            published code for HalfCheetah (6,000), Hopper (3,600) and Walker2d (5,000); 6,000 for
            Ant; else the best return of the training data.
        sample_actions: Sample discrete actions by their probabilities, in the test episodes.
            Default: take the likeliest action.
        play_episodes: Number of test episodes, at most 64 at once; 0 plays none.
        play_seed: Seed of the first test episode; each next episode adds 1. It should be far from
            the seeds of the data, so that no test episode starts like a training episode.
        behavior_cloning_steps: Number of training steps of the two behavior-cloning baselines:
            perceptrons trained on all episodes and on the best tenth. 0 trains none.
    """

    act: Literal["restart", "stream", "window"] = "restart"
    target_return: float | None = None
    sample_actions: bool = False
    play_episodes: int = 10
    play_seed: int = 10**9
    behavior_cloning_steps: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(0, 10_000, play_episodes=self.play_episodes)
        check_integers(0, MAX_INTEGER - self.play_episodes, play_seed=self.play_seed)
        check_integers(0, 10**7, behavior_cloning_steps=self.behavior_cloning_steps)
        target = self.target_return
        if target is not None and not abs(target) < float("inf"):
            raise OptionError(f"target_return must be finite, got {target}.", "target_return")


@dataclasses.dataclass(frozen=True)
class OfflineRLConfig(Config):
    """Options of an offline-RL run."""

    main_options = ("file", "env", "context", "target_return", *Config.main_options)
    data: OfflineRLData = OfflineRLData()
    model: OfflineRLModel = OfflineRLModel()
    fit: OfflineRLFit = OfflineRLFit()
    play: OfflineRLPlay = OfflineRLPlay()

    def __post_init__(self) -> None:
        if self.fit.select_on == "return" and not self.play.play_episodes:
            raise OptionError(
                "select_on='return' needs played episodes, got play_episodes=0.",
                "select_on",
                "play_episodes",
            )
        if self.play.act == "restart" and self.fit.context < 2:
            raise OptionError(
                f"act='restart' needs a context of at least 2, got {self.fit.context}; increase "
                "it, or use act='window'.",
                "context",
                "act",
            )
        counted = self.model.clock == "context" and self.model.position == "learned"
        if counted and self.fit.context > self.model.max_length:
            raise OptionError(
                f"the context has {self.fit.context:,} steps, but the model has times for "
                f"{self.model.max_length:,}; increase max_length, or choose another position.",
                "context",
                "max_length",
                "position",
            )

    @property
    def name(self) -> str:
        """A name for the run folder."""
        names = [path.name.split(".")[0] for path in self.data.file] or [EMBEDDED]
        selected = ["selected-on-return"] if self.fit.select_on == "return" else []
        return make_file_name(*names, mechanism_name(self.layers), *selected, self.seeds)


def published(config: OfflineRLConfig) -> OfflineRLConfig:
    """Training and hyperparameters of min-decision-transformer, on which the Aaren paper builds.

    Source: N. Barhate, min-decision-transformer (2022), ``scripts/train.py``: 20,000 steps of 64
    windows, one window per episode, AdamW at 1e-4 after a warm-up of 10,000 steps; after every 100
    steps 10 episodes are played with a window of 20 steps. It reports the best return of all plays,
    so that the test selects; ``load_run(..., checkpoint="last")`` has the last parameters.
    Departures: 1 % of the episodes (at least one) validates and 1 % tests; each play has the same
    ten episodes; parameters are initialized as everywhere in this package; further ones are
    documented in ``models.DecisionTransformer`` and ``WindowBatches``.
    """
    return config.replace(
        validation_fraction=0.01,
        test_fraction=0.01,
        features=128,
        num_layers=3,
        num_heads=1,
        hidden_features=None,
        norm="post",
        dropout_rate=0.1,
        position="learned",
        clock="episode",
        max_length=4096,
        steps=20_000,
        validate_every=100,
        patience=200,
        batch_size=64,
        learning_rate=1e-4,
        context=20,
        windows="episodes",
        warmup=10_000,
        weight_decay=1e-4,
        clip_norm=0.25,
        return_scale=1000.0,
        select_on="return",
        act="window",
        play_episodes=10,
    )


def paper(config: OfflineRLConfig) -> OfflineRLConfig:
    """``published`` with the size in the Aaren paper: 4 blocks of 512 features and 4 heads."""
    return published(config).replace(features=512, num_layers=4, num_heads=4)


@dataclasses.dataclass(frozen=True)
class OfflineRLStreamOptions:
    """Options of a stream of an offline-RL run.

    Each line is a step: the reward of the previous action (empty for the first step), then the
    numbers of the observation, separated by commas. A first line may name the columns. A blank line
    begins a new episode. The output is the action to take; a discrete action is the likeliest one,
    and is followed by the probability of each action.

    Attributes:
        act: How the agent handles the context: "stream" (all steps of the episode) or "restart"
            (the last steps, at most as many as in training). Default: the value of the run;
            "restart" for a run with "window".
        target_return: Target return (return-to-go at the start of the episode). Default: the target
            return of the run.
        max_length: Maximum number of steps of an episode, for mechanisms with a cache. Default: the
            longest training episode of the run.
    """

    act: Literal["stream", "restart"] | None = None
    target_return: float | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_integers(1, MAX_INTEGER, max_length=self.max_length)
        if self.act is not None:
            check_choice(("stream", "restart"), act=self.act)
        target = self.target_return
        if target is not None and not abs(target) < float("inf"):
            raise OptionError(f"target_return must be finite, got {target}.", "target_return")


class OfflineRLOptions(TaskOptions):
    """The options of offline reinforcement learning."""

    name = "offline-rl"
    Config = OfflineRLConfig
    StreamOptions = OfflineRLStreamOptions
    is_causal = True
    presets: ClassVar[Mapping[str, Any]] = {"published": published, "paper": paper}
