from flax_linattn.tasks.text.data import TextSpec
from flax_linattn.tasks.text.generate import (
    PromptState,
    TextGenerator,
    generate_batch,
    load_prompt,
    save_prompt,
)
from flax_linattn.tasks.text.harness import harness_model
from flax_linattn.tasks.text.options import (
    TextConfig,
    TextData,
    TextFit,
    TextModel,
    TextStreamOptions,
)
from flax_linattn.tasks.text.stream import TextStream

__all__ = [
    "PromptState",
    "TextConfig",
    "TextData",
    "TextFit",
    "TextGenerator",
    "TextModel",
    "TextSpec",
    "TextStream",
    "TextStreamOptions",
    "generate_batch",
    "harness_model",
    "load_prompt",
    "save_prompt",
]
