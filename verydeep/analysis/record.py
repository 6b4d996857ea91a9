"""`record`: one forward pass of any module as a `Graph`, without names, hooks of the model's own or a tracer.

Operations are seen by a `TorchFunctionMode`; inside scripted and vmapped code by a `TorchDispatchMode`. Tensors are
known by weak references, so nothing is kept alive. What an observer computes is not seen.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from verydeep.analysis.graph import Graph, Node
from verydeep.analysis.operation import ADD, LINEAR, QUOTIENT, RANDOM, is_linear, kind_of


class Observer:
    """What is told of each operation, before and after it; the base class looks at nothing."""

    def before(self, name: str, operands: Sequence[Any]) -> None:
        """An addition is about to be made, perhaps in place."""

    def after(self, node: Node, operands: Sequence[Any], options: dict[str, Any], results: Sequence[Tensor]) -> None:
        """An operation was made."""


@dataclass(frozen=True)
class Derived:
    """What a tensor that does not depend on the input was made of: parameters by name, random numbers."""

    parameters: tuple[str, ...] = ()
    matrix: bool = False
    random: bool = False


@dataclass
class Recorder:
    """Grows a graph from the operations that it is told of.

    Args:    model: parameters and modules are named as in it
             observer: told of each operation when it has just been computed
    """

    model: nn.Module
    observer: Observer
    graph: Graph = field(default_factory=Graph)
    stack: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    paused: bool = False

    def __post_init__(self) -> None:
        self.signals: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.derived: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for name, parameter in self.model.named_parameters():
            self.derived[parameter] = Derived((name,), matrix=parameter.dim() >= 2)
        self.storages: dict[int, int] | None = None  # under dispatch, where views lose their identity

    def input(self, tensor: Tensor, name: str) -> None:
        """Name a tensor as an input. The first carries the signal, and images do, if they are of floating point."""
        floating = tensor.is_floating_point()
        facts = {"floating": floating, "carries": floating and (len(self.graph.nodes) == 1 or tensor.dim() > 3)}
        index = self.graph.add(name, "input", inputs=(), shape=tuple(tensor.shape), **facts)
        self._place(tensor, index)
        self.paused = True
        self.observer.after(self.graph.nodes[index], [], {}, [tensor])
        self.paused = False

    def node_of(self, tensor: Tensor) -> int | None:
        """The node of a signal; None if the tensor does not depend on the input, as far as is known."""
        index = self.signals.get(tensor)
        if index is None and self.storages is not None:
            index = self.storages.get(_storage(tensor))
        return index

    def saw(self, name: str, operands: Sequence[Any], options: dict[str, Any], result: Any) -> None:
        """An operation with its operands, keyword options and result."""
        if self.paused:
            return
        if name == "__setitem__":
            result = operands[0]
        results = list(_tensors(result))
        if not results:
            return
        tensors = [*_tensors(operands), *_tensors(list(options.values()))]
        if name.startswith("new_") or name.endswith("_like"):
            tensors = []  # of the shape of a signal, not of its values
        nodes = [node for tensor in tensors if (node := self.node_of(tensor)) is not None]
        if nodes and any(self._is_stranger(tensor) for tensor in tensors):
            self.graph.strangers.append(self.stack[-1] if self.stack else "")
        made_of = [known for tensor in tensors if (known := self.derived.get(tensor)) is not None]
        if not nodes:
            self._derive(name, made_of, results)
        elif not (len(tensors) == 1 and results[0] is tensors[0] and name in ("contiguous", "to", "requires_grad_")):
            self._operation(name, operands, options, nodes, made_of, results)

    def _is_stranger(self, tensor: Tensor) -> bool:
        """Whether a tensor is to be learned, and the model does not know it: a layer kept in a plain list, say."""
        known = self.node_of(tensor) is not None or tensor in self.derived
        return tensor.requires_grad and tensor.is_leaf and not known

    def _derive(self, name: str, made_of: list[Derived], results: list[Tensor]) -> None:
        if self.storages is not None:
            for tensor in results:
                self.storages.pop(_storage(tensor), None)
        random = name in RANDOM or any(known.random for known in made_of)
        names = tuple(dict.fromkeys(name for known in made_of for name in known.parameters))
        if random or names:
            matrix = any(known.matrix for known in made_of)
            for tensor in results:
                self.derived[tensor] = Derived(names, matrix=matrix, random=random)

    def _operation(
        self,
        name: str,
        operands: Sequence[Any],
        options: dict[str, Any],
        nodes: list[int],
        made_of: list[Derived],
        results: list[Tensor],
    ) -> None:
        has_matrix = any(known.matrix for known in made_of)
        kind = kind_of(
            name,
            has_matrix=has_matrix,
            num_signals=len(set(nodes)) if name in ADD else len(nodes),
            has_vector=bool(made_of) and not has_matrix,
            is_random=any(known.random for known in made_of),
            active=_drops(name, operands, options),
        )
        index = self.graph.add(
            name,
            kind,
            inputs=nodes,
            num_weights=(2 if name == "multi_head_attention_forward" else 1) if kind == "weight" else 0,
            site=self._site(name, kind),
            parameters=tuple(dict.fromkeys(name for known in made_of for name in known.parameters)),
            number=_number(name, operands),
            shape=tuple(results[0].shape),
            floating=results[0].is_floating_point(),
            carries=results[0].is_floating_point() and (kind == "weight" or self._carried(nodes)),
            module=self.stack[-1] if self.stack else "",
        )
        for tensor in results:
            self._place(tensor, index)
            if tensor._is_view() and tensor._base is not None and any(tensor is operand for operand in operands):
                self._written(tensor._base, index)
        self.observer.after(self.graph.nodes[index], operands, options, results)

    def _carried(self, nodes: Iterable[int]) -> bool:
        return any(self.graph.nodes[i].carries for i in nodes)

    def _place(self, tensor: Tensor, index: int) -> None:
        self.signals[tensor] = index
        if self.storages is not None and _storage(tensor):
            self.storages[_storage(tensor)] = index

    def _written(self, base: Tensor, index: int) -> None:
        """A view of `base` was written to, so `base` is another signal now."""
        before = [] if (known := self.node_of(base)) is None else [known]
        inputs, site = [*before, index], self.graph.nodes[index].site
        carries = self._carried(inputs)
        joined = self.graph.add("copy_", "shape", inputs=inputs, site=site, shape=tuple(base.shape), carries=carries)
        self._place(base, joined)

    def _site(self, name: str, kind: str) -> str:
        """The module alone for its first operation if it has no children, else the module and the operation."""
        module = self.stack[-1] if self.stack else ""
        own = f"{module}:{name.strip('_')}" if module else name.strip("_")
        if module and kind != "shape" and module in self._leaves and self.counts[f"{module}\n"] == 0:
            own = module
        if kind != "shape":
            self.counts[f"{module}\n"] += 1
        self.counts[own] += 1
        return own if self.counts[own] == 1 else f"{own}#{self.counts[own]}"

    @functools.cached_property
    def _leaves(self) -> set[str]:
        return {name for name, module in self.model.named_modules() if next(module.children(), None) is None}

    def enter(self, name: str) -> None:
        """A module begins to run."""
        self.stack.append(name)
        self.counts[f"{name}\n"] = 0

    def leave(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """A module has run; where nothing was seen inside it, it is one operation itself."""
        self.paused = True
        self._bridge(name, module, inputs, output)
        self.paused = False
        while self.stack and self.stack.pop() != name:
            pass

    def _bridge(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        outputs = [tensor for tensor in _tensors(output) if self.node_of(tensor) is None]
        sources = list(_tensors(inputs))
        nodes = [node for tensor in sources if (node := self.node_of(tensor)) is not None]
        if outputs and nodes:
            names = {id(parameter): key for key, parameter in self.model.named_parameters()}
            own = [(names[id(p)], p) for p in module.parameters() if id(p) in names]
            index = self.graph.add(
                type(module).__name__,
                "weight" if any(p.dim() >= 2 for _, p in own) else "other",
                inputs=nodes,
                num_weights=sum(p.dim() >= 2 for _, p in own),
                site=name or type(module).__name__,
                parameters=tuple(key for key, _ in own),
                shape=tuple(outputs[0].shape),
                floating=outputs[0].is_floating_point(),
                carries=outputs[0].is_floating_point() and (bool(own) or self._carried(nodes)),
                module=name,
            )
            for tensor in outputs:
                self._place(tensor, index)
            self.observer.after(self.graph.nodes[index], sources, {}, outputs)


_ADDITIONS = {torch.add, torch.addcmul, Tensor.addcmul, *(getattr(Tensor, name) for name in ADD)}


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ADDITIONS and not self.recorder.paused:
            self.recorder.observer.before(func.__name__, args)
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (Tensor, tuple, list)) or func is Tensor.__setitem__:
            name = getattr(func, "__name__", "")
            name = "__get__" if name in ("__get__", "data") else name
            self.recorder.saw(name, args, kwargs or {}, result)
        return result


class _Operators(TorchDispatchMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        recorder.storages = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in ADD and not self.recorder.paused:
            self.recorder.observer.before(name, args)
        result = func(*args, **(kwargs or {}))
        if name != "detach":  # autograd's own: what it keeps for the backward pass
            self.recorder.saw(name, args, kwargs or {}, result)
        return result


@contextmanager
def recording(
    model: nn.Module, observer: Observer, *, graph: Graph | None = None, operators: bool = False
) -> Iterator[Recorder]:
    """Within it, forward passes of the model are recorded; compiled models run as they were written.

    Hooks are put on the model's modules and taken off again.

    Args:    graph: an empty one, to be grown
             operators: see aten's operators in place of torch's functions
    """
    recorder = Recorder(model, observer, graph or Graph())
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        scripted = torch.jit.ScriptModule  # takes no hooks
        for name, module in ((n, m) for n, m in model.named_modules() if not isinstance(m, scripted)):
            for handle in _watch(recorder, name, module):
                stack.callback(handle.remove)
        stack.enter_context(_Operators(recorder) if operators else _Functions(recorder))
        yield recorder


def _watch(recorder: Recorder, name: str, module: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
    def enter(module: nn.Module, args: Any) -> None:
        recorder.enter(name)

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        recorder.leave(name, module, [*args, *kwargs.values()], output)

    return [
        module.register_forward_pre_hook(enter, prepend=True),
        module.register_forward_hook(leave, with_kwargs=True),
    ]


def _storage(tensor: Tensor) -> int:
    """Where a tensor's numbers lie; 0 if it has no storage of its own."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.layout is not torch.strided:
        return 0
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _drops(name: str, operands: Sequence[Any], options: dict[str, Any]) -> bool:
    """Whether a dropout drops anything: F.dropout(x, p, training, inplace)."""
    if "dropout" not in name:
        return False
    p = options.get("p", operands[1] if len(operands) > 1 else 0.5)
    training = options.get("training", options.get("train", operands[2] if len(operands) > 2 else True))
    return bool(training) and float(p or 0) > 0


def _number(name: str, operands: Iterable[Any]) -> float | None:
    """The constant factor of a product or quotient with a number."""
    numbers = [float(item) for item in operands if isinstance(item, (int, float)) and not isinstance(item, bool)]
    if len(numbers) != 1 or name in LINEAR or is_linear(name):
        return None
    return (1 / numbers[0] if numbers[0] else None) if name in QUOTIENT else numbers[0]
