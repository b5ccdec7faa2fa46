"""The parallel sizes of a Megatron job, checked as Megatron checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceviz_dag.errors import UsageError
from traceviz_dag.read.limits import MOST_RANKS

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
ORDER_TOKENS = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSizes:
    """The sizes that fix both grids; checked when made.

    Attributes:
        etp: expert tensor parallel size; None means tp, as in Megatron.
        vpp: virtual pipeline stages per rank; it changes no group, but needs pp > 1.
        order: the tokens tp, cp, ep, dp, pp, fastest first; a token whose size is 1 may be left out.

    Raises:
        UsageError: Megatron would refuse these sizes.
    """

    world: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int | None = None
    order: str = DEFAULT_ORDER
    distributed_optimizer_instances: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(
        cls,
        *,
        world: int | None = None,
        dp: int | None = None,
        tp: int = 1,
        cp: int = 1,
        pp: int = 1,
        ep: int = 1,
        etp: int | None = None,
        vpp: int | None = None,
        order: str = DEFAULT_ORDER,
        distributed_optimizer_instances: int = 1,
    ) -> ParallelSizes:
        """Sizes from the world size, from the data-parallel size, or from both.

        Raises:
            UsageError: neither is given, or they contradict each other.
        """
        implied = None if dp is None else tp * cp * pp * dp
        stated = implied if world is None else world
        if stated is None:
            raise UsageError("the rank grids need the world size or the data-parallel size")
        if implied not in (None, stated):
            raise UsageError(f"world size {stated} is not tp {tp} x cp {cp} x pp {pp} x dp {dp} = {implied}")
        return cls(
            world=stated,
            tp=tp,
            cp=cp,
            pp=pp,
            ep=ep,
            etp=etp,
            vpp=vpp,
            order=order,
            distributed_optimizer_instances=distributed_optimizer_instances,
        )

    @property
    def expert_tensor(self) -> int:
        """The expert tensor parallel size, resolved."""
        return self.tp if self.etp is None else self.etp

    @property
    def dp(self) -> int:
        """The dense data-parallel size, without context parallelism."""
        return self.world // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int:
        """The expert data-parallel size."""
        return self.world // (self.expert_tensor * self.ep * self.pp)

    def dense(self) -> dict[str, int]:
        """Token → size in the dense grid."""
        return {"tp": self.tp, "cp": self.cp, "ep": 1, "dp": self.dp, "pp": self.pp}

    def expert(self) -> dict[str, int]:
        """Token → size in the expert grid."""
        return {"tp": self.expert_tensor, "cp": 1, "ep": self.ep, "dp": self.edp, "pp": self.pp}

    def tokens(self) -> list[str]:
        """The order's tokens, those left out at the end (their size is 1)."""
        given = self.order.lower().split("-")
        return given + [token for token in ORDER_TOKENS if token not in given]


def strides(tokens: list[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Token → distance in ranks between neighbours along it, for tokens from fastest to slowest."""
    result, stride = {}, 1
    for token in tokens:
        result[token] = stride
        stride *= sizes[token]
    return result


def _check(sizes: ParallelSizes) -> None:
    """Refuse what Megatron refuses, with one line that says why."""
    counts = {
        "world size": sizes.world,
        "tp": sizes.tp,
        "cp": sizes.cp,
        "pp": sizes.pp,
        "ep": sizes.ep,
        "etp": sizes.expert_tensor,
        "vpp": 1 if sizes.vpp is None else sizes.vpp,
        "number of distributed-optimizer instances": sizes.distributed_optimizer_instances,
    }
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"{name} {value} is not a positive number")
        if value > MOST_RANKS:
            raise UsageError(f"{name} {value} is more than any job has: {MOST_RANKS} at the most")
    if sizes.world % (sizes.tp * sizes.cp * sizes.pp):
        raise UsageError(
            f"world size {sizes.world} is not divisible by tp {sizes.tp} x cp {sizes.cp} x pp {sizes.pp} = "
            f"{sizes.tp * sizes.cp * sizes.pp}"
        )
    if sizes.world % (sizes.expert_tensor * sizes.ep * sizes.pp):
        raise UsageError(
            f"world size {sizes.world} is not divisible by etp {sizes.expert_tensor} x ep {sizes.ep} x pp {sizes.pp} = "
            f"{sizes.expert_tensor * sizes.ep * sizes.pp}"
        )
    if sizes.vpp is not None and sizes.pp == 1:
        raise UsageError(f"vpp {sizes.vpp} needs pp > 1: the interleaved schedule works on a pipeline")
    instances = sizes.distributed_optimizer_instances
    for name, value in (("dp x cp", sizes.dp * sizes.cp), ("edp", sizes.edp)):
        if value % instances:
            raise UsageError(f"{name} = {value} is not divisible by {instances} distributed-optimizer instances")
    _check_order(sizes)


def _check_order(sizes: ParallelSizes) -> None:
    given = sizes.order.lower().split("-")
    unknown = [token for token in given if token not in ORDER_TOKENS]
    if unknown:
        raise UsageError(f"order {sizes.order!r} has the unknown token {unknown[0]!r}: use {', '.join(ORDER_TOKENS)}")
    twice = [token for token in ORDER_TOKENS if given.count(token) > 1]
    if twice:
        raise UsageError(f"order {sizes.order!r} has the token {twice[0]!r} more than once")
    dense, expert = sizes.dense(), sizes.expert()
    for token in ORDER_TOKENS:
        largest = max(dense[token], expert[token])
        if token not in given and largest > 1:
            raise UsageError(f"order {sizes.order!r} leaves out {token!r}, whose size is {largest}")
    if given[-1] != "pp" and sizes.pp > 1 and sizes.edp != sizes.dp:
        raise UsageError(
            f"order {sizes.order!r} does not end in pp, so dp and edp must be equal, but dp is {sizes.dp} and edp is "
            f"{sizes.edp}"
        )
    tokens = sizes.tokens()
    if sizes.pp > 1 and strides(tokens, dense)["pp"] != strides(tokens, expert)["pp"]:
        raise UsageError(f"order {sizes.order!r} gives the dense and the expert grid different pipeline groups")
