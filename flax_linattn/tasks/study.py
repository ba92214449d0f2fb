"""Search for the options of a task with Optuna: each trial is a run, pruned by its validation."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flax_linattn import training
from flax_linattn.checks import OptionError, check_choice, check_integers, import_extra, quote
from flax_linattn.registry import get_task
from flax_linattn.storage import LockedError, make_folder
from flax_linattn.tasks.options import Config, flat_hints
from flax_linattn.tasks.protocols import Choosing
from flax_linattn.tasks.task import Task
from flax_linattn.tasks.train_run import train_report

if TYPE_CHECKING:
    import optuna

STUDY_FILE = "study.sqlite"
NUM_STARTUP_TRIALS = 5
"""Number of trials that must finish before a trial is pruned."""
_FAILURE = "failed"


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of numbers to search: integers if both limits are integers, otherwise floats.

    Args:
        low: Smallest number.
        high: Largest number.
        log: Whether to sample on a logarithmic scale.

    Raises:
        OptionError: If the limits are not finite or not in order, or, with ``log``, not positive.

    Example:
        >>> Range(1e-4, 1e-2, log=True).high
        0.01
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise OptionError(
                f"expected a range from a number to a larger one, got {self.low} to {self.high}.",
                "search",
            )
        if self.log and self.low <= 0:
            raise OptionError(
                f"a logarithmic range needs positive numbers, got {self.low} to {self.high}.",
                "search",
            )


Search = Mapping[str, Range | Sequence[Any]]
"""Values to search, by the name of an option: a range, or a sequence of choices."""


def tune(
    task: str | Task[Any, Any, Any],
    config: Config,
    search: Search,
    folder: str | Path,
    *,
    num_trials: int = 20,
    prune: bool = True,
    new_session: Callable[..., training.Session] = training.Session,
) -> list[dict[str, Any]]:
    """Searches for the options with the best validation metric by training trials.

    The option ``runs`` trains several seeds of each trial in one program; the value of a trial is
    the mean of the best validation values of its seeds. The search uses no test data;
    ``evaluate_run`` tests a trial. Optuna's sampler chooses the options, and its pruner stops
    trials whose validation is worse than the median of earlier trials after the same number of
    steps. After an interruption, a call with the same arguments continues the study and its
    unfinished trial. Several processes may train the trials of one study.

    Args:
        task: A task, or its name.
        config: Options that the trials share.
        search: Values to search, by the name of an option.
        folder: Folder of the study: study.sqlite of Optuna, and a run folder for each trial.
        num_trials: Number of trials of the study, including earlier calls.
        prune: Whether to stop trials that are worse than the median.
        new_session: Makes the session of a trial from its run folder, ``resume`` and ``trackers``.

    Returns:
        A row for each trial that finished, the best first: "trial", "value", "run" (its folder),
        "step" (the steps of its last validation) and "options".

    Raises:
        ValueError: If options are invalid, the study in the folder searches other values, or no
            trial finished; the error says why the last one failed.
        training.Interrupted: If the process received a signal; the trial was saved.

    Example:
        >>> from flax_linattn import tasks
        >>> task = tasks.get_task(tasks.list_tasks()[0])
        >>> tune(task, task.Config.of(epochs=3), {"seed": (0, 1)}, "runs/study")
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: seed is not a hyperparameter; set seed for all trials.
    """
    task = get_task(task) if isinstance(task, str) else task
    check_integers(1, num_trials=num_trials)
    _check_search(search, config)
    folder = Path(folder)
    with _open_study(folder, *_find_monitor(task, config), prune, config.seed) as study:
        _check_same_study(study, folder, task, config, search)
        trials = _Trials(study, folder, task, config, search, new_session)
        trials.run(num_trials)
        rows = trials.rows()
        if not rows:
            raise ValueError(f"none of {num_trials} trials finished. {trials.explain_failure()}")
        return rows


@dataclasses.dataclass(frozen=True)
class _Trials:
    """The trials of a study."""

    study: optuna.Study
    folder: Path
    task: Task[Any, Any, Any]
    config: Config
    search: Search
    new_session: Callable[..., training.Session]

    def run(self, num_trials: int) -> None:
        """Finishes interrupted trials, then starts new trials until there are ``num_trials``."""
        from optuna.trial import Trial, TrialState

        for begun in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with contextlib.suppress(LockedError):  # another process trains it
                self._train(Trial(self.study, begun._trial_id))
        while len(self.study.get_trials(deepcopy=False)) < num_trials:
            self._train(self.study.ask())

    def _train(self, trial: optuna.Trial) -> None:
        """Trains a trial, and stores its value, or the error that it failed with."""
        import optuna
        from optuna.trial import TrialState

        options = {name: _suggest(trial, name, values) for name, values in self.search.items()}
        about = ", ".join(f"{name} {format_value(value)}" for name, value in options.items())
        print(f"trial {trial.number}: {about}", file=sys.stderr)
        run_dir = self._run_dir(trial.number)
        session = self.new_session(
            run_dir,
            resume=any((run_dir / "checkpoints").glob("step_*")),
            trackers=(_Reporter(trial, trial.study.user_attrs["monitor"]),),
        )
        try:
            config = self.config.replace(**options)
            report = train_report(self.task, config, session, is_tested=False)
            best: list[float | None] = report.values["best_values"]
            numbers = [value for value in best if value is not None]
            if len(numbers) < len(best):
                raise training.NonFiniteLossError(
                    f"{len(best) - len(numbers)} of {len(best)} seeds became NaN or infinite."
                )
        except optuna.TrialPruned:
            self._end(trial, TrialState.PRUNED, "pruned")
        except (OptionError, training.NonFiniteLossError) as error:
            trial.set_user_attr(_FAILURE, str(error))
            self._end(trial, TrialState.FAIL, f"failed: {error}")
        else:
            value = sum(numbers) / len(numbers)
            self._end(trial, TrialState.COMPLETE, f"{value:.6g}", value)

    def _run_dir(self, number: int) -> Path:
        return self.folder / f"trial-{number:04}"

    def _end(self, trial: optuna.Trial, state: Any, about: str, value: float | None = None) -> None:
        self.study.tell(trial, value, state)
        print(f"trial {trial.number}: {about}", file=sys.stderr)

    def rows(self) -> list[dict[str, Any]]:
        """Makes a row for each trial that finished, the best trial first."""
        from optuna.study import StudyDirection
        from optuna.trial import TrialState

        done = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        sign = -1 if self.study.direction == StudyDirection.MAXIMIZE else 1
        return [
            {
                "trial": trial.number,
                "value": trial.value,
                "run": str(self._run_dir(trial.number)),
                "step": trial.last_step,
                "options": {name: _value(trial, name, self.search[name]) for name in self.search},
            }
            for trial in sorted(done, key=lambda trial: (sign * (trial.value or 0), trial.number))
        ]

    def explain_failure(self) -> str:
        """Returns the error of the last trial that failed, or an empty string."""
        errors = [trial.user_attrs.get(_FAILURE) for trial in self.study.trials]
        return next((error for error in reversed(errors) if error), "")


class _Reporter:
    """Tracker that reports validation values to Optuna, and ends the trial if Optuna prunes it."""

    def __init__(self, trial: optuna.Trial, monitor: str) -> None:
        self._trial, self._name = trial, f"validation_{monitor}"
        self._reported = trial.study.trials[trial.number].last_step or 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        import optuna

        value = values.get(self._name)
        # A resumed trial repeats the validations after its last checkpoint.
        if value is None or not math.isfinite(value) or step <= self._reported:
            return
        self._trial.report(value, step)
        if self._trial.should_prune():
            raise optuna.TrialPruned

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _open_study(
    folder: Path, monitor: str, mode: str, prune: bool, seed: int
) -> Iterator[optuna.Study]:
    """Opens the study of a folder, or creates it."""
    import_extra("optuna", "tuning needs optuna: pip install 'flax-linattn[tune]'.")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make_folder(folder)
    path = (folder / STUDY_FILE).absolute()
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        none = optuna.pruners.NopPruner()
        study = optuna.create_study(
            storage=storage,
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.MedianPruner(NUM_STARTUP_TRIALS) if prune else none,
            study_name="study",
            direction="maximize" if mode == "max" else "minimize",
            load_if_exists=True,
        )
        if study.get_trials(deepcopy=False):
            study.sampler.reseed_rng()  # otherwise it samples the values of the first trials
        study.set_user_attr("monitor", monitor)
        yield study
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _find_monitor(task: Task[Any, Any, Any], config: Config) -> tuple[str, str]:
    """Finds the validation metric that selects parameters, and its mode."""
    data = task.load(config)
    if isinstance(task, Choosing):
        config, _ = task.choose(data, config)
    objective = task.objective(config, task.describe(data, config), 1)
    return objective.monitor, objective.mode


def _check_search(search: Search, config: Config) -> None:
    """Checks the names and values of a search before the first trial."""
    if not search:
        raise OptionError("expected an option to search, got none; set search=....", "search")
    hints = flat_hints(type(config))
    for name, values in search.items():
        check_choice(hints, option=name)
        if name in ("seed", "runs"):
            raise OptionError(
                f"{name} is not a hyperparameter; set {name} for all trials.", "search"
            )
        if isinstance(values, Range):
            limits = (values.low, values.high)
        elif isinstance(values, str) or not values:
            raise OptionError(f"expected values of {name}, got {quote(values)}.", "search")
        else:
            limits = tuple(values)
        for value in limits:
            try:
                config.replace(**{name: value})
            except TypeError as error:
                raise OptionError(str(error), "search") from None
            except ValueError:
                pass  # the value may be valid with other searched options, or the trial fails


def _check_same_study(
    study: optuna.Study, folder: Path, task: Task[Any, Any, Any], config: Config, search: Search
) -> None:
    """Checks that a study continues with its first options and search."""
    about = {
        "task": task.name,
        "options": config.resolve().to_json(),
        "search": {
            name: dataclasses.asdict(values) if isinstance(values, Range) else list(values)
            for name, values in search.items()
        },
    }
    text = json.dumps(about, default=str)
    before = study.user_attrs.get("about")
    if before is None:
        study.set_user_attr("about", text)
    elif before != text:
        stored, now = json.loads(before), json.loads(text)
        names = [name for name in now if now[name] != stored[name]]
        options = [
            name
            for name, value in now["options"].items()
            if "options" in names and stored["options"].get(name) != value
        ]
        raise OptionError(
            f"the study in {folder} has another value of {', '.join(options or names)}; continue "
            "with the value of the study, or choose another folder.",
            "study",
        )


def _suggest(trial: optuna.Trial, name: str, values: Range | Sequence[Any]) -> Any:
    """Suggests the value of an option for a trial; choices are suggested by their index."""
    if not isinstance(values, Range):
        return values[trial.suggest_categorical(name, range(len(values)))]
    if isinstance(values.low, int) and isinstance(values.high, int):
        return trial.suggest_int(name, values.low, values.high, log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _value(trial: Any, name: str, values: Range | Sequence[Any]) -> Any:
    value = trial.params[name]
    return value if isinstance(values, Range) else values[value]


def format_value(value: Any) -> str:
    """Formats a value of an option for tables and messages."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
