"""Small official data sets that come with the package; see ``sets/*/README.md`` for licenses."""

import dataclasses
from importlib import resources

from flax_linattn.data.episodes import Episodes, read_d4rl
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.series.load import load_series
from flax_linattn.data.series.series import TimeSeries
from flax_linattn.data.series.ts import load_ts


def japanese_vowels() -> tuple[TimeSeriesDataset, TimeSeriesDataset]:
    """Loads JapaneseVowels: classify which of nine speakers said the vowels /ae/.

    270 training and 370 test utterances, 12 LPC cepstrum coefficients each, 7 to 29 time steps, 9
    classes. The official files of the UEA archive, with its unequal lengths.

    Source: M. Kudo, J. Toyama and M. Shimbo, "Multidimensional curve classification using
    passing-through regions", Pattern Recognition Letters 20 (1999). UCI Machine Learning
    Repository, CC BY 4.0.

    Returns:
        The training set and the test set, over the same classes.

    Example:
        >>> train, test = japanese_vowels()
        >>> train.num_examples, test.num_examples, train.num_channels, len(train.classes)
        (270, 370, 12, 9)
    """
    folder = resources.files("flax_linattn.data") / "sets" / "JapaneseVowels"
    with (
        resources.as_file(folder / "JapaneseVowels_TRAIN.ts.gz") as train,
        resources.as_file(folder / "JapaneseVowels_TEST.ts.gz") as test,
    ):
        train_set = load_ts(train)
        return train_set, load_ts(test).with_classes(train_set.classes)


def etth1() -> TimeSeries:
    """Loads ETTh1: hourly loads and oil temperature (OT) of an electricity transformer.

    17,420 rows of 7 channels, July 2016 to June 2018, the official file. The customary split of its
    rows is 8640/2880/2880, without the rest.

    Source: H. Zhou et al., "Informer: Beyond efficient transformer for long sequence time-series
    forecasting", AAAI 2021. CC BY-ND 4.0.

    Example:
        >>> series = etth1()
        >>> series.num_steps, series.channels[-1], series.index[0]
        (17420, 'OT', Timestamp('2016-07-01 00:00:00'))
    """
    folder = resources.files("flax_linattn.data") / "sets" / "ETTh1"
    with resources.as_file(folder / "ETTh1.csv.gz") as path:
        return load_series(path)


def pendulum() -> Episodes:
    """Loads episodes of Pendulum-v1: swing a pendulum up, and hold it, by torques from -2 to 2.

    100 episodes of 200 steps, all truncated: 20 with random actions, then 20 each with a controller
    and decreasing noise on its actions. Observations are cosine and sine of the angle, and the
    speed; the maximum reward is 0. Generated for this package; environment: gymnasium, MIT license.

    Example:
        >>> episodes = pendulum()
        >>> episodes.num_episodes, episodes.num_steps, episodes.env_id
        (100, 20000, 'Pendulum-v1')
        >>> int(episodes.returns[:20].mean()), int(episodes.returns[80:].mean())
        (-1214, -158)
    """
    with resources.as_file(resources.files("flax_linattn.data") / "sets" / "pendulum.npz") as path:
        return dataclasses.replace(read_d4rl(path), name="pendulum")
