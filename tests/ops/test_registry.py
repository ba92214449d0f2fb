"""The registry: names, hyperparameters, and what is said when they are wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models, ops, registry
from flax_linattn.ops.contract.averages import average_by_head


def test_names_make_mechanisms() -> None:
    names = ops.list_mechanisms()
    assert len(set(names)) == len(names)
    assert names[:7] == (
        "softmax",
        "aaren",
        "elementwise",
        "elementwise_series",
        "taylorshift",
        "expressive",
        "expressive_quadratic",
    )
    for name in names:
        mechanism = ops.get_mechanism(name)
        assert mechanism.name == name
        assert mechanism == ops.get_mechanism(name)
        assert hash(mechanism) == hash(ops.get_mechanism(name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            mechanism.name = "other"


def test_registries_of_names_and_of_classes_agree() -> None:
    for name in ops.list_mechanisms():
        mechanism, able = ops.get_mechanism(name), ops.get_mechanism(name).capabilities
        assert registry.MECHANISMS[name] == (able.causal, able.noncausal)
        assert getattr(ops, type(mechanism).__name__) is type(mechanism)
        assert type(mechanism).__name__ in ops.__all__
        assert mechanism.about and not mechanism.about.endswith(".")
    assert tuple(registry.MECHANISMS) == ops.list_mechanisms()


def test_hyperparameters_make_other_mechanisms() -> None:
    assert ops.get_mechanism("aaren", chunk_size=7).chunk_size == 7
    assert ops.get_mechanism("aaren", chunk_size=7) != ops.get_mechanism("aaren")


def test_hyperparameters_after_a_colon() -> None:
    for spec, mechanism in {
        "elementwise_series:order=2,chunk_size=4": ops.ElementwiseSeries(order=2, chunk_size=4),
        "taylorshift:switch=memory,normalize=False": ops.TaylorShift(
            switch="memory", normalize=False
        ),
        "taylorshift:coefficients=(1, 1, 1)": ops.TaylorShift(coefficients=(1, 1, 1)),
        "softmax:implementation=None": ops.get_mechanism("softmax"),
    }.items():
        assert ops.get_mechanism(spec) == mechanism
    assert ops.get_mechanism("aaren:chunk_size=4", chunk_size=8).chunk_size == 8
    with pytest.raises(TypeError, match="'aaren' has no hyperparameter 'order'; it has: chunk"):
        ops.get_mechanism("aaren:order=2")
    for spec, message in {
        "elementwise_series:order=two": "'elementwise_series' expects order as int, got 'two'",
        "elementwise_series:terms=1.5": "expects terms as int or None, got 1.5",
        "aaren:chunk_size=True": "expects chunk_size as int, got True",
        "aaren:scale=large": "expects scale as float or None, got 'large'",
        "taylorshift:coefficients=1": "expects coefficients as tuple, got 1",
        "softmax:cache_dtype=3": "expects cache_dtype as str or None, got 3",
    }.items():
        with pytest.raises(TypeError, match=message):
            ops.get_mechanism(spec)
    assert ops.get_mechanism("aaren:scale=1").scale == 1
    for text in ("3", "chunk_size", "chunk_size=", "chunk_size=4)", "chunk_size=f(2)"):
        with pytest.raises(ValueError, match="of 'aaren' as name=value,name=value after the colon"):
            ops.get_mechanism(f"aaren:{text}")


def test_unknown_name() -> None:
    with pytest.raises(
        ValueError, match="unknown mechanism 'arena'; choose one of: softmax, aaren"
    ):
        ops.get_mechanism("arena")


def test_an_unknown_name_is_near_to_one() -> None:
    last = ops.list_mechanisms()[-1]
    with pytest.raises(ValueError, match=rf"{last}\. Did you mean 'elementwise_series'\?"):
        ops.get_mechanism("elementwise_serie:order=2")
    with pytest.raises(ValueError, match=rf"{last}\. One of your own has"):
        ops.get_mechanism("x")


def test_unknown_hyperparameter() -> None:
    with pytest.raises(TypeError, match="'aaren' has no hyperparameter 'chunk'; it has: chunk"):
        ops.get_mechanism("aaren", chunk=3)


@pytest.mark.parametrize(
    "name", [n for n in ops.list_mechanisms() if hasattr(ops.get_mechanism(n), "chunk_size")]
)
def test_chunk_size_is_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        ops.get_mechanism(name, chunk_size=0)


@dataclasses.dataclass(frozen=True)
class Recent(ops.CacheMechanism):
    """Written by hand: the mean of the last ``width`` values that a query sees."""

    name = "recent_2"
    about = "the mean of the last values"
    capabilities = ops.Capabilities(constant_memory=False, cross=False)

    width: int = 2

    def attend_block(self, pairs, visible):
        if visible is None:  # causal
            visible = jnp.tri(pairs.q.shape[1], dtype=bool)[None]
        weight = _recent(visible, self.width).astype(pairs.v.dtype)
        return average_by_head(weight, pairs.v)

    def _reference(self, q, k, v, visible, parameters):
        return average_by_head(_recent(visible, self.width).astype(v.dtype), v)


def _recent(visible, width):
    """bool [B, 1, T, S], the last visible ones of each row."""
    later = jnp.cumsum(visible[..., ::-1], axis=-1, dtype=jnp.int32)[..., ::-1]
    return (visible & (later <= width))[:, None]


@pytest.mark.usefixtures("own_mechanisms")
def test_a_mechanism_of_ones_own(tmp_path):
    with pytest.raises(ValueError, match="unknown mechanism 'recent_2'"):
        ops.get_mechanism("recent_2")
    ops.register_mechanism("recent_2", Recent)
    ops.register_mechanism("recent_2", Recent)
    assert ops.list_mechanisms()[-1] == "recent_2"
    assert ops.get_mechanism("recent_2:width=3") == Recent(width=3)
    with pytest.raises(TypeError, match="'recent_2' expects width as int, got 'two'"):
        ops.get_mechanism("recent_2:width=two")
    # Layers, models, streams and saved models know it by name.
    model = models.LanguageModel(
        7, features=8, num_layers=1, num_heads=2, mechanism="recent_2", rngs=nnx.Rngs(0)
    )
    x = jnp.array([[1, 2, 3, 4]])
    stepped = inference.unroll(model, x, max_length=4)
    np.testing.assert_allclose(stepped, jax.jit(model)(x), rtol=1e-5, atol=1e-5)
    models.save_model(tmp_path, model)
    loaded = models.load_model(tmp_path)
    assert loaded.backbone.layers.mechanism == "recent_2"
    assert loaded.backbone.mechanisms == (Recent(),)


def renamed(new: str) -> type[ops.Mechanism]:
    """Another class, of that name."""

    @dataclasses.dataclass(frozen=True)
    class Other(Recent):
        name = new

    return Other


@pytest.mark.usefixtures("own_mechanisms")
def test_what_is_no_mechanism_to_register() -> None:
    ops.register_mechanism("recent_2", Recent)
    names = ops.list_mechanisms()
    for name in ("recent_2", "aaren"):
        with pytest.raises(ValueError, match=f"there is a mechanism '{name}' already, "):
            ops.register_mechanism(name, renamed(name))
    with pytest.raises(ValueError, match="Recent has the name 'recent_2', expected 'recent'"):
        ops.register_mechanism("recent", Recent)
    for name in ("Recent", "2nd", "a-b", "a:b", "a b", "", "größe"):
        with pytest.raises(ValueError, match=f"lower-case letters.* got {name!r}"):
            ops.register_mechanism(name, renamed(name))

    class Undecorated(Recent):
        name = "undecorated"
        other: int = 3

    for kind in (Undecorated, Recent(), int, "aaren"):
        with pytest.raises(TypeError, match=r"expected a subclass of ops.Mechanism with @dataclas"):
            ops.register_mechanism("undecorated", kind)
    assert ops.list_mechanisms() == names


@pytest.mark.usefixtures("own_mechanisms")
def test_a_class_that_is_made_anew_takes_its_place() -> None:
    """As when a cell of a notebook is run again."""
    first, second = renamed("mine"), renamed("mine")
    ops.register_mechanism("mine", first)
    ops.register_mechanism("mine", second)
    assert type(ops.get_mechanism("mine")) is second
