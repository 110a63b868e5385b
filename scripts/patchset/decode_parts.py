"""What the attention's programs leave for each other where they share rows, on an RTX PRO 6000: for its predicted time."""

from __future__ import annotations

from itertools import accumulate

from decode_cases import DecodeCase
from kernels import decode

SMS = 188  # of an RTX PRO 6000


def config_on_the_card(case: DecodeCase) -> decode.DecodeConfig:
    """What ``decode.config_for`` chooses where there are so many multiprocessors, of sm_120."""
    programs_of_16 = len(case.near) * -(-case.heads // 16)
    few = case.heads <= 16 or programs_of_16 <= SMS
    return decode.FEW_HEADS if few else decode.COPIED


def exchanged_bytes(case: DecodeCase) -> int:
    """Bytes of partial results that a call writes and reads again, once each.

    Most of them stay in the L2 cache, of 128 MB on that card.
    """
    config = config_on_the_card(case)
    programs = config.programs_per_sm * SMS
    return 2 * 4 * config.partial_values * parts(case, config, programs)


def parts(case: DecodeCase, config: decode.DecodeConfig, programs: int) -> int:
    """Partial results of a call: rows are cut as ``find_share`` of decode_work.cuh cuts them."""
    far = case.far or (0,) * len(case.near)
    groups = -(-case.heads // config.heads)
    tiles = [
        max(1, -(-sum(keys) // config.tile))
        for keys in zip(case.near, far)
        for _ in range(groups)
    ]
    whole = decode.SMALL_ROW // config.tile
    equal = -(-sum(tiles) // programs)
    if 1 < len(tiles) <= programs:
        # Each row and group may begin with a program of its own, if a share then is hardly longer.
        uncut = sum(t <= whole for t in tiles)
        rest = max(1, programs - uncut)
        least = max(1, -(-(sum(tiles) - uncut * whole) // rest))
        for size in range(least, equal + 2):
            cut = [-(-t // size) if t > max(whole, size) else 1 for t in tiles]
            if sum(cut) <= programs:
                return sum(each for each in cut if each > 1)
    ends = list(accumulate(tiles))
    cut = [
        (end - 1) // equal - (end - t) // equal + 1
        for t, end in zip(tiles, ends)
        if t > max(whole, equal)
    ]
    return sum(each for each in cut if each > 1)
