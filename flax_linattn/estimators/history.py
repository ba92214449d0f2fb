"""Histories of a forecaster: the series, and the form in which the user passed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import itemize, quote
from flax_linattn.data.series.frames import NIXTLA_ID
from flax_linattn.data.tables.dialect import PLAIN, Dialect


@dataclasses.dataclass(frozen=True)
class FrameOptions:
    """How data frames are read.

    Attributes:
        id: Name of the column that names the series of each row.
        time: Label of the column of times. Default: the column of ``dialect``, the column ``ds`` of
            a panel, the index, or the only column of times.
        categories: Strings of each static covariate that ``fit`` found; None to infer them.
        times: Treatment of duplicate or irregular times, see ``data.from_frame``.
        resample: Interval to average over, see ``data.from_frame``.
        dialect: Format of times and missing-value codes.
        targets: Names of the columns of a panel to forecast, which hold numbers.
    """

    id: str = NIXTLA_ID
    time: Any = None
    categories: Mapping[str, tuple[str, ...]] | None = None
    times: data.TimesPolicy = "report"
    resample: str = ""
    dialect: Dialect = PLAIN
    targets: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """One series or a panel of series, and the form in which the user passed them.

    Attributes:
        series: Series as a run takes them.
        ndim: 1 for an array [T] or a pandas series, else 2.
        channels: Labels of the numeric columns of a frame; None for an array.
        name: Name of a pandas series.
        ids: Labels of the series of a panel; None for a single series.
        library: Narwhals implementation of a frame of another library than pandas.
        options: Names of the id and time columns and the categories that were found; ``time`` is
            None where the index holds the times.
    """

    series: tuple[data.TimeSeries, ...]
    ndim: int
    channels: pd.Index | None = None
    name: Any = None
    ids: pd.Index | None = None
    library: Any = None
    options: FrameOptions = FrameOptions(categories={})

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns of values that were passed, in the order of ``n_features_in_``."""
        if self.channels is None:
            return [*self.series[0].channels]
        return [*self.channels, *(self.options.categories or {})]

    def select(self, series: Any) -> History:
        """The history of one series, selected by its label; None selects a single series.

        Raises:
            ValueError: If no series has that label.
        """
        if self.ids is None and series is None:
            return self
        labels = [] if self.ids is None else self.ids.tolist()
        if self.ids is None or series not in labels:
            raise ValueError(
                f"expected series as one of {itemize([*map(repr, labels)], 5)}, got "
                f"{quote(series)}; pass one of these labels."
                if labels
                else f"expected no series, since fit received a single series, got "
                f"{quote(series)}; remove series."
            )
        at = labels.index(series)
        return dataclasses.replace(self, series=(self.series[at],), ids=self.ids[[at]])

    def like(
        self,
        ahead: Mapping[int, tuple[pd.Index | None, NDArray[np.float64]]],
        targets: Sequence[str],
        outputs: int | Sequence[int] = 0,
        levels: Sequence[float] = (),
    ) -> Any:
        """Converts forecasts to the form of this history.

        Args:
            ahead: Index [H] and outputs [H, C, 1 + Q] of the forecast after each series, by the
                position of the series. None as index is replaced by row numbers.
            targets: Names of the C forecast channels.
            outputs: Index of the mean, or of the Q quantiles, in the last axis of the forecasts.
            levels: Levels of these quantiles.

        Returns:
            An array [H, C] or [H, C, Q], without C where the history is [T]. Or a frame; its
            columns for quantiles are pairs of a channel and a level, or strings such as y@0.9 where
            the times are a column.
        """
        values = [forecast[..., outputs] for _, forecast in ahead.values()]
        if self.channels is None:
            return values[0][:, 0] if self.ndim == 1 else values[0]
        first, *others = (
            pd.RangeIndex(len(forecast)) if index is None else index
            for index, forecast in ahead.values()
        )
        index = first.append(others) if others else first
        time = self.options.time
        if time is not None:
            index = index.rename(time)
        if self.ids is not None:
            ids = self.ids[np.repeat([*ahead], [len(v) for v in values])]
            levels_of_ids = [ids.get_level_values(level) for level in range(ids.nlevels)]
            names = [*ids.names, index.name]
            index = pd.MultiIndex.from_arrays([*levels_of_ids, index], names=names)
        whole = np.concatenate([v.reshape(len(v), -1) for v in values])
        if self.ndim == 1 and not levels:
            return pd.Series(whole[:, 0], index, name=self.name)
        channels = [str(label) for label in self.channels]
        labels = self.channels[[channels.index(target) for target in targets]]
        if levels and time is not None:
            labels = pd.Index([f"{label}@{level:g}" for label in labels for level in levels])
        elif levels:
            pairs = [
                (*(label if isinstance(label, tuple) else (label,)), level)
                for label in labels
                for level in levels
            ]
            labels = pd.MultiIndex.from_tuples(pairs, names=[*labels.names, "quantile"])
        frame = pd.DataFrame(whole, index, columns=labels)
        if time is not None:
            frame = frame.reset_index()
        if self.library is None:
            return frame
        table = pa.Table.from_pandas(frame, preserve_index=time is None and None)
        return nw.from_arrow(table, backend=self.library).to_native()
