"""Files of time series that are refused: at which line, and with which words."""

import pytest

from flax_linattn.data import DataFormatError


def cases(table):
    """Parameters by the names of their cases."""
    return [pytest.param(*row, id=name) for name, row in table.items()]


def refuse(load, path, text, line, *parts):
    """Checks that ``text`` is refused at ``line`` with each of ``parts``, and advice, told."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataFormatError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: expected ")
    for part in parts:
        assert part in message
    assert "; " in message.split(", got ", 1)[1]  # the advice
