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

#include "decode_work.cuh"

#include "decode_products.cuh"

#include "decode_merge.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
    sparse_mla_decode(const __grid_constant__ Arguments a) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  if (threadIdx.x < STAGES) begin_arrivals(&s.arrivals[threadIdx.x], 2 * GATHERERS);
  wait_for_kernel_before();
#if PREFETCH
  prefetch_first(a);
#endif
  Cursor ahead{};
  Share share = find_share(s, a, ahead);
  if (share.left <= 0) return;

  Info info = ahead.info;
  Key next = key_of_thread(ahead, true);
  RawQuery raw;
  load_query(a, info.unit, raw);
  Share share_ahead = share;
  bool more = true;
  int stage = 0;
  unsigned phase = 0;
  __syncthreads();
#pragma unroll 1
  for (int filled = 0; filled < STAGES - 1; ++filled) {
    if (more) gather(s, a, filled, ahead.info, next);
    ahead.step(a);
    --share_ahead.left;
    more = share_ahead.has(ahead.info);
    next = key_of_thread(ahead, more);
  }
  while (true) {
    const int unit = info.unit, first_tile = info.tile;
    Query q;
    scale_query(a, raw, q);
    Softmax softmax{-infinity(), {}};
    Values values = {};
    bool row_ends, last;
    while (true) {
      const int free = stage == 0 ? STAGES - 1 : stage - 1;
      if (!LOOSE) {
        // Where the tile before this one was.
        __syncthreads();
        if (more) gather(s, a, free, ahead.info, next);
        ahead.step(a);
        --share_ahead.left;
        more = share_ahead.has(ahead.info);
        next = key_of_thread(ahead, more);
      }
      wait_for_arrivals(&s.arrivals[stage], phase);
      if (warp() / KEY_WARPS == DIM_WARPS - 1) {
        add_scores<true>(s, stage, q);
      } else {
        add_scores<false>(s, stage, q);
      }
      __syncthreads();
      if (LOOSE) {
        if (more) gather(s, a, free, ahead.info, next);
        ahead.step(a);
        --share_ahead.left;
        more = share_ahead.has(ahead.info);
        next = key_of_thread(ahead, more);
      }
      info = s.info[stage];
      row_ends = info.tile + 1 == info.tiles;
      last = --share.left <= 0 && (row_ends || info.tiles > share.whole);
      const float change = scale_values(s, stage, values);
      weigh(s, stage, softmax, row_ends || last);
      __syncthreads();
      if (value_chunk(warp()) == ROPE) {
        add_values<true>(s, stage, change, values);
      } else {
        add_values<false>(s, stage, change, values);
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      if (stage == 0) phase ^= 1;
      if (row_ends || last) break;
    }
    const Info done = info;
    if (!last) info = s.info[stage];
    load_query(a, info.unit, raw);
    const int row = row_of(a, unit), group = unit - row * a.groups;
    if (row_ends && first_tile == 0) {
      write_result(s, a, row, group, values);
    } else {
      share_result(s, a, row, group, done, share.size, values, last);
    }
    if (last) break;
  }
  end_copy_group();
  wait_for_copies<0>();
}
