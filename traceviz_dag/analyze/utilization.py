"""How much of its GPUs a training step uses: the operations that its model needs, against what the GPUs could do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traceviz_dag.analyze.model_flops import OFF, USED, VARYING, WHOLE, model_flops
from traceviz_dag.analyze.peaks import BUILT_IN, Peaks, peak_of

_FORMATS = ("bf16", "fp16", "fp8", "fp4")
"""Arguments of Megatron-LM that say in which number format products are computed."""

LARGEST = 2**63 - 1
NS_PER_SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Stated:
    """What the traces of an iteration state of its job.

    Attributes:
        settings: of the ranks that keep any, each different set once.
        devices: names of GPUs, each once.
        gpus: ranks of the whole job, traced or not; None where nothing shows it.
        step_ns: the longest training step over the ranks; None where none is marked on some rank.
        in_part: whether some rank's training step is there only in part.
    """

    settings: Sequence[Mapping[str, str]]
    devices: Sequence[str]
    gpus: int | None
    step_ns: int | None
    in_part: bool = False


@dataclass(frozen=True, slots=True)
class Utilization:
    """Model FLOP utilisation (MFU) of a training step; the attributes are columns of table ``iterations``.

    Attributes:
        model_flops_per_gpu: operations that the model needs in this step, divided by the GPUs of the job.
        peak_format: the number format that the settings state; peak_flops_per_s: dense peak of one GPU in it.
        mfu: operations per GPU / (step time × peak).
        mfu_refusal: why ``mfu`` is None.
    """

    model_flops_per_gpu: int | None = None
    peak_format: str | None = None
    peak_flops_per_s: int | None = None
    mfu: float | None = None
    mfu_refusal: str | None = None


def utilization(stated: Stated, peaks: Peaks = BUILT_IN) -> Utilization:
    """Model FLOP utilisation of an iteration, and as much of its parts as is known.

    MFU is the share of its GPUs' peak that a step would use if it computed what its model needs and nothing else;
    recompute does not count. The measure is that of A. Chowdhery et al., "PaLM" (2022), appendix B.
    """
    settings, differing = _merged(stated.settings)
    settings = {} if differing else settings
    number_format, no_format = _format_of(settings)
    device = stated.devices[0] if len(stated.devices) == 1 else None
    peak = None if number_format is None else peak_of(device, number_format, peaks)
    counted = model_flops(settings)
    total, gpus = counted.flops, stated.gpus
    each = None if total is None or not gpus else (total + gpus // 2) // gpus
    if each is not None and each > LARGEST:
        each = None
    share = None
    if total is not None and gpus and peak and stated.step_ns:
        share = total * NS_PER_SECOND / (gpus * peak * stated.step_ns)
    refusals = (
        (not stated.settings, "no trace keeps the settings of the job: only captures of traceviz's plugin do"),
        (bool(differing), f"the ranks state different values of {', '.join(differing)}"),
        (counted.refusal is not None, counted.refusal),
        (not gpus, "nothing shows how many GPUs the job has"),
        (not stated.devices, "no trace names a GPU"),
        (len(stated.devices) > 1, f"the ranks have different GPUs: {', '.join(stated.devices)}"),
        (no_format is not None, no_format),
        (peak is None, f"no {number_format} peak of {device} is known"),
        (not stated.step_ns, "not every rank has a training step marked"),
        (stated.in_part, "the training step of some rank is recorded or read only in part"),
        (
            share is not None and (share > 1 or each is None),
            "the operations that the settings state take longer than the step even at the peak: one of them is not of "
            "this step",
        ),
    )
    refusal = next((words for applies, words in refusals if applies), None)
    return Utilization(
        model_flops_per_gpu=each,
        peak_format=number_format,
        peak_flops_per_s=peak,
        mfu=share if refusal is None else None,
        mfu_refusal=refusal,
    )


def step_tokens(all_settings: Sequence[Mapping[str, str]]) -> int | None:
    """Tokens of a training step of the whole job; None where the settings do not show how many there are."""
    settings, differing = _merged(all_settings)
    named = ("global_batch_size", "seq_length")
    # What is packed or cut to lengths of its own has fewer tokens than its places.
    if set(differing) & {*named, *VARYING} or any(settings.get(name, "False") not in OFF for name in VARYING):
        return None
    sizes = [settings.get(name, "") for name in named]
    return int(sizes[0]) * int(sizes[1]) if all(WHOLE.fullmatch(size) for size in sizes) else None


def used_of_peak(model_flops_per_gpu: int, step_ns: int, peak_flops_per_s: int) -> str:
    """The operations a second that a model needs of a GPU beside its peak, as people read them."""
    return f"{model_flops_per_gpu / step_ns / 1e3:,.1f} of {peak_flops_per_s / 1e12:,.0f} TFLOP/s per GPU"


def _merged(all_settings: Iterable[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """What ranks state together, and on which of the settings that count here they disagree."""
    merged: dict[str, str] = {}
    differing = set()
    for settings in all_settings:
        for name in settings.keys() & {*USED, *_FORMATS}:
            if merged.setdefault(name, settings[name]) != settings[name]:
                differing.add(name)
    return merged, sorted(differing)


def _format_of(settings: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The number format of the model's products, or why it is not known: the narrowest that is switched on."""
    on = [name for name in _FORMATS if settings.get(name, "False") not in ("False", "None")]
    if on:
        return on[-1], None
    stated = [f"{name} {settings[name]}" for name in _FORMATS if name in settings]
    if stated:
        return None, f"the settings state no number format whose peak is known ({', '.join(stated)})"
    return None, "the settings of the job lack its number format (bf16, fp16 or fp8)"
