"""Output of commands: no control characters of files, no encoding errors, an end by Ctrl-C."""

import io
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from flax_linattn import cli
from flax_linattn.checks import OptionError, itemize, quote
from flax_linattn.terminal import EscapedStream, escape_controls, escaped_output
from tests.tasks.commands import fail

TITLE = "a\x1b]0;owned\x07\x9b2J\x7f\u202eb"
"""Text that sets a terminal's title, clears its screen and reverses the text after it."""
ESCAPED = r"a\x1b]0;owned\x07\x9b2J\x7f\u202eb"


def test_control_characters_are_escaped():
    assert escape_controls(TITLE) == ESCAPED
    assert escape_controls("größe\tMW\n日本\xa0語") == "größe\tMW\n日本\xa0語"
    assert escape_controls("\x1b[1mb\x1b[2Jc", keep_colors=True) == "\x1b[1mb\\x1b[2Jc"
    assert escape_controls("10%\r99%") == r"10%\r99%"


def test_messages_of_errors_escape_control_characters():
    texts = quote(ValueError(TITLE)), quote([TITLE]), itemize([TITLE]), str(OptionError(TITLE))
    assert all(text.isprintable() for text in texts)
    assert ESCAPED in texts[0]


def test_commands_escape_what_they_print(tmp_path, capsys):
    assert ESCAPED in fail(capsys, "evaluate", str(tmp_path / TITLE))
    (tmp_path / "config.json").write_text('{"format": 2, "task": "\\u001b[2J"}')
    assert r"unknown task '\x1b[2J'" in fail(capsys, "evaluate", str(tmp_path))


def test_standard_streams_are_restored_after_a_command(capsys):
    before = sys.stdout, sys.stderr
    with escaped_output():
        assert isinstance(sys.stdout, EscapedStream)
        print(TITLE)
        with escaped_output(keep_colors=True):
            print("\x1b[1mbold")
    assert before == (sys.stdout, sys.stderr)
    assert capsys.readouterr().out == f"{ESCAPED}\n\x1b[1mbold\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_the_encoding_lacks_are_escaped(encoding, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main(["evaluate", "日本/größe\udce9"]) == 2
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    assert r"\u65e5\u672c/gr" in text
    assert r"\udce9" in text


def test_progress_bars_reach_the_terminal():
    """A console of rich finds the stream behind, since its bars are control characters."""
    stream = io.StringIO()
    Console(file=EscapedStream(stream), force_terminal=True).print("loss", style="bold")
    assert stream.getvalue() == "\x1b[1mloss\x1b[0m\n"


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("module", ["flax_linattn.registry", "numpy", "jax._src.core", "tyro"])
def test_interrupting_imports(module):
    """Ctrl-C right after the import of a module ends the command with status 130."""
    command = [sys.executable, "-X", "importtime", "-m", "flax_linattn", "evaluate", "nothing"]
    # A process inherits that its parent ignores SIGINT, as jobs in the background of a script do.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        for line in process.stderr:  # a line for each module, after its import
            if line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert rest.endswith("interrupted.\n")


@pytest.mark.slow
def test_help_without_docstrings():
    """``python -OO`` removes docstrings, from which help texts are made."""
    texts = [
        subprocess.run(
            [sys.executable, *flags, "-m", "flax_linattn", "stream", "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for flags in ((), ("-OO",))
    ]
    assert texts[0] == texts[1]
    assert "File to resume from if it exists" in " ".join(texts[1].split())
