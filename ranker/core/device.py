"""Where models run: processor or GPU, how much memory is free there, and which share of the work this process has."""

from __future__ import annotations

import os
from pathlib import Path

from ranker.core.errors import PrerequisiteError

DEVICES = ("auto", "cpu", "cuda")


def use_device(wanted: str) -> str:
    """Fix where torch models run, before the first one is loaded.

    Parameters
    ----------
    wanted : {"auto", "cpu", "cuda"}
        "auto" takes the first GPU where there is one. Of several processes (see `share`), each takes its own GPU.

    Returns
    -------
    str
        "cpu" or "cuda".

    Raises
    ------
    PrerequisiteError
        If "cuda" is asked for and torch sees no GPU.
    """
    rank = os.environ.get("LOCAL_RANK")
    if wanted == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif rank is not None:  # whatever names the first GPU, in any library, then means this process's own
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(rank) % len(visible)] if visible else rank
    import torch

    if not torch.cuda.is_available():
        if wanted == "cuda":
            raise PrerequisiteError(
                "--device cuda: torch sees no GPU; install a CUDA build of torch (see pytorch.org), or use --device cpu"
            )
        return "cpu"
    return "cuda"


def share() -> tuple[int, int]:
    """Return this process's number and how many there are, as `accelerate launch` and torchrun state them."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def side_by_side() -> int:
    """Return how many of these processes run on this machine, and so share its main memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def free_memory() -> int | None:
    """Return the bytes of main memory that can be had, a container's limit included; None where it is not known."""
    found = [_meminfo(), _limit("memory.max", "memory.current"), _limit_v1()]
    known = [value for value in found if value is not None]
    return min(known) if known else _physical()


def free_gpu_memory() -> int | None:
    """Return the free bytes of the GPU that is used; None without one."""
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else None


def _meminfo() -> int | None:
    file = Path("/proc/meminfo")
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _limit(limit: str, used: str, folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what a control group leaves free; its limit is "max" or above 2**60 where there is none."""
    try:
        top, now = ((folder / name).read_text(encoding="ascii").strip() for name in (limit, used))
        return int(top) - int(now) if int(top) < 2**60 else None
    except (OSError, ValueError):
        return None


def _limit_v1() -> int | None:
    return _limit("memory.limit_in_bytes", "memory.usage_in_bytes", Path("/sys/fs/cgroup/memory"))


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
