"""Paths through K residual units: how many, and what each adds to the output (11.2) and to the gradient (11.4).

A path is the tuple of the units that it passes through, 1..K; the empty one is the shortcuts alone.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

Path = tuple[int, ...]
Branch = Callable[[Tensor], Tensor]


def num_paths(num_units: int, *, length: int | None = None) -> int:
    """Paths through K units, 2^K; of those that pass through `length` units, C(K, length).

    Source:  the chapter, section 2

    >>> num_paths(3), num_paths(4), num_paths(4, length=2)
    (8, 16, 6)
    """
    return 2**num_units if length is None else math.comb(num_units, length)


def paths_by_length(num_units: int) -> list[int]:
    """Number of paths of each length 0..K.

    Source:  the chapter, section 2

    >>> paths_by_length(3)
    [1, 3, 3, 1]
    """
    return [num_paths(num_units, length=length) for length in range(num_units + 1)]


def path_length_distribution(num_units: int, *, branch_gain: float = 1.0) -> list[float]:
    """Share of each path length 0..K in the gradient, where every branch multiplies it by c.

    share_k = C(K, k) c^k / (1 + c)^K

    At c = 1 it is the share in the number of paths, with mean K/2; the mean is K c / (1 + c), so that small branches
    leave short paths.

    Args:    branch_gain: c, at least 0
    Returns: shares that sum to 1
    Source:  Veit et al. 2016, section 5, with one gain for all units

    >>> path_length_distribution(2)
    [0.25, 0.5, 0.25]
    >>> path_length_distribution(2, branch_gain=0.0)
    [1.0, 0.0, 0.0]
    """
    passed = branch_gain / (1 + branch_gain)  # each unit's branch is passed with this probability
    return [math.comb(num_units, k) * passed**k * (1 - passed) ** (num_units - k) for k in range(num_units + 1)]


def all_paths(num_units: int) -> list[Path]:
    """The 2^K paths, short ones first.

    >>> all_paths(2)
    [(), (1,), (2,), (1, 2)]
    """
    units = range(1, num_units + 1)
    return [path for length in range(num_units + 1) for path in combinations(units, length)]


def unravelled_terms(branches: Sequence[Branch], x: Tensor) -> list[Tensor]:
    """The terms of the unravelled sum: x, F_1(x), F_2(x + F_1(x)), ...; their sum is the network's output.

    y = x + F_1(x) + F_2(x + F_1(x)) + F_3(x + F_1(x) + F_2(x + F_1(x))) + ...    (11.2)

    Args:    branches: F_1..F_K, each from (...) to the same shape
    Returns: K + 1 tensors of x's shape
    Source:  the chapter, Eq. 11.2

    >>> terms = unravelled_terms([lambda h: 2 * h, torch.square], torch.tensor(1.0))
    >>> [term.item() for term in terms]
    [1.0, 2.0, 9.0]
    """
    terms = [x]
    for branch in branches:
        terms.append(branch(torch.stack(terms).sum(0)))
    return terms


def path_terms(branches: Sequence[Branch], x: Tensor) -> dict[Path, Tensor]:
    """What each of the 2^K paths adds to the output; together they are the output.

    With y_T the output of the network that keeps the units T and skips the others,

    term_S = sum over T in S of (-1)^(|S| - |T|) y_T,    y = sum over all S of term_S

    For linear branches F_k = A_k the term of j < k is A_k A_j x, as in (11.4). For others it is what units add
    together and no fewer of them do.

    Args:    branches: F_1..F_K; 2^K networks are computed
    Returns: from path to a tensor of x's shape
    Source:  the chapter, Eq. 11.2, each path of it made a term by Moebius inversion (ours)

    >>> terms = path_terms([lambda h: 2 * h, lambda h: 3 * h], torch.tensor(1.0))
    >>> {path: term.item() for path, term in terms.items()}
    {(): 1.0, (1,): 2.0, (2,): 3.0, (1, 2): 6.0}
    """
    terms: dict[Path, Tensor] = {}
    for path in all_paths(len(branches)):
        y = x
        for unit in path:
            y = y + branches[unit - 1](y)
        # y_S holds the terms of all paths within S
        terms[path] = y - sum(terms[part] for part in terms if set(part) < set(path))
    return terms


def jacobian_product(jacobians: Tensor) -> Tensor:
    """The Jacobian of K residual units, (I + J_K) ... (I + J_1): the left side of (11.4).

    Args:    jacobians: J_1..J_K of the branches
    Shape:   (K, d, d) -> (d, d)
    Source:  the chapter, Eq. 11.3 and 11.4

    >>> jacobian_product(torch.tensor([[[1.0]], [[2.0]]]))
    tensor([[6.]])
    """
    identity = torch.eye(jacobians.shape[-1], dtype=jacobians.dtype, device=jacobians.device)
    product = identity
    for jacobian in jacobians:
        product = (identity + jacobian) @ product
    return product


def path_jacobians(jacobians: Tensor) -> dict[Path, Tensor]:
    """The 2^K terms of (11.4): for the path j < k the product J_k J_j, for the empty path I.

    Args:    jacobians: J_1..J_K of the branches, K of 16 or less in practice
    Shape:   (K, d, d) -> one (d, d) for each path
    Source:  the chapter, Eq. 11.4

    >>> terms = path_jacobians(torch.tensor([[[2.0]], [[3.0]]]))
    >>> {path: term.item() for path, term in terms.items()}
    {(): 1.0, (1,): 2.0, (2,): 3.0, (1, 2): 6.0}
    """
    terms: dict[Path, Tensor] = {(): torch.eye(jacobians.shape[-1], dtype=jacobians.dtype, device=jacobians.device)}
    for path in all_paths(len(jacobians))[1:]:
        terms[path] = jacobians[path[-1] - 1] @ terms[path[:-1]]
    return terms


def jacobian_by_length(jacobians: Tensor) -> Tensor:
    """The terms of (11.4) summed over the paths of each length; their sum is `jacobian_product`.

    E_k(n) = E_k(n-1) + J_n E_{k-1}(n-1): paths of length k through n units pass by unit n or through it. So any K
    is cheap.

    Args:    jacobians: J_1..J_K of the branches
    Shape:   (K, d, d) -> (K + 1, d, d), by length 0..K
    Source:  the chapter, Eq. 11.4

    >>> jacobian_by_length(torch.tensor([[[2.0]], [[3.0]]])).flatten()
    tensor([1., 5., 6.])
    """
    size = jacobians.shape[-1]
    sums = jacobians.new_zeros((len(jacobians) + 1, size, size))
    sums[0] = torch.eye(size, dtype=jacobians.dtype, device=jacobians.device)
    for jacobian in jacobians:
        sums = torch.cat([sums[:1], sums[1:] + jacobian @ sums[:-1]])
    return sums
