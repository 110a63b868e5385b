// Sparse MLA attention over the paged fp8 caches, in one launch. See decode.py.
//
// The constants in capitals that are not declared here are given by the compiler's command line: see
// DecodeConfig.
//
// A program gathers TILE keys at a time, as the bytes that they are in the cache, and never widens them in
// shared memory: operands of the tensor cores are made of them in registers, as f16, which holds every e4m3.
// Scores: warps share the keys and the dims, and add up in shared memory; then each warp has 64 dims of all
// values. Those have one scale per key, which goes to the scores, and for the values to the weights.

#include "ptx.cuh"

#include "decode_layout.cuh"

#include "decode_cursor.cuh"

#include "decode_shared.cuh"

#include "decode_work.cuh"

#include "decode_gather.cuh"

#include "decode_products.cuh"

#include "decode_merge.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, PROGRAMS_PER_SM)
    sparse_mla_decode(const __grid_constant__ Arguments a) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  if (APART && threadIdx.x < STAGES) {
    expect_arrivals(&s.arrivals[threadIdx.x], ARRIVALS);
    order_bulk_copies();
  }
  wait_for_kernel_before();
  if constexpr (APART) {
    if (warp() >= WARPS) {
      keep_registers<GATHER_REGISTERS>();
      __syncthreads();
      gather_all(s, a);
      return;
    }
    // First of all: what comes before has as many registers as those that gather.
    take_registers<OTHER_REGISTERS>();
  }
  prefetch_first(a);
  // For all rows at once: later, each would wait for it.
  const bool has_sink = a.sink != nullptr && threadIdx.x < a.heads;
  const float sink = has_sink ? __ldg(a.sink + threadIdx.x) : -infinity();
  Cursor ahead{};
  Share share = find_share(s, a, ahead);
  if (APART) {
    if (threadIdx.x == 0) {
      s.start = ahead;
      s.share = share;
    }
    __syncthreads();
  }
  if (share.left <= 0) return;

  Info info = ahead.info;
  Key next;
  Share share_ahead = share;
  int stage = 0, parity = 0;
  if (!APART) {
    next = find_key(ahead, true);
#pragma unroll 1
    for (int filled = 0; filled < STAGES - 1; ++filled) gather_next(s, a, filled, ahead, share_ahead, next);
  }
  if (threadIdx.x < MAX_HEADS) s.sink[threadIdx.x] = sink;
  if (APART) {
    wait_for_keys(s, 0, 0);
  } else if (AHEAD) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
  }
  while (true) {
    const int unit = info.unit, first_tile = info.tile;
    Query q;
    find_query(a, unit, q);
    Softmax softmax{-infinity(), {}};
    Values values = {};
    bool row_ends, last;
    while (true) {
      // Where the tile before this one was.
      const int free = stage == 0 ? STAGES - 1 : stage - 1;
      if (!APART && !AHEAD) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        gather_next(s, a, free, ahead, share_ahead, next);
      }
      if (warp() / KEY_WARPS == DIM_WARPS - 1) {
        add_scores<true>(s, stage, q);
      } else {
        add_scores<false>(s, stage, q);
      }
      sync_others();
      if (!APART && AHEAD) gather_next(s, a, free, ahead, share_ahead, next);
      info = s.info[stage];
      row_ends = info.tile + 1 == info.tiles;
      last = --share.left <= 0 && (row_ends || info.tiles > share.whole);
      const float change = scale_values(s, stage, values);
      weigh(s, stage, softmax, row_ends || last);
      // With more than two tiles in shared memory, the next one is there by now, and needs no barrier of its own.
      if (!APART && AHEAD) wait_for_copies<STAGES - 2>();
      sync_others();
      if (value_chunk(warp()) == ROPE) {
        add_values<true>(s, stage, change, values);
      } else {
        add_values<false>(s, stage, change, values);
      }
      if (APART) arrive_at(stage_free(stage), BLOCK_THREADS);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      if (stage == 0) parity ^= 1;
      if (row_ends || last) break;
      if (APART) wait_for_keys(s, stage, parity);
    }
    const int row = row_of(a, unit), group = unit - row * a.groups;
    if (row_ends && first_tile == 0) {
      write_result(s, a, row, group, values);
    } else {
      share_result(s, a, row, group, info, share.size, values, last);
    }
    if (last) break;
    if (APART) wait_for_keys(s, stage, parity);
    info = s.info[stage];
  }
  if (!APART) wait_for_copies<0>();
}
