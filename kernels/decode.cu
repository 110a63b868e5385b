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
  wait_for_kernel_before();
  Cursor ahead{};
  Share share = find_share(s, a, ahead);
  if (share.left <= 0) return;

  Info info = ahead.info;
  Key next = key_of_thread(ahead, true);
  Share share_ahead = share;
  int stage = 0;
#pragma unroll 1
  for (int filled = 0; filled < STAGES - 1; ++filled) {
    gather(s, a, filled, ahead.info, next);
    ahead.step(a);
    --share_ahead.left;
    next = key_of_thread(ahead, share_ahead.has(ahead.info));
  }
  while (true) {
    const int row = a.groups == 1 ? info.unit : info.unit / a.groups, group = info.unit - row * a.groups;
    const int first_tile = info.tile;
    Query q;
    load_query(a, row, group, q);
    Softmax softmax{-infinity(), 0.0f};
    Values values = {};
    bool row_ends, last;
    while (true) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      // Where the tile before this one was.
      gather(s, a, stage == 0 ? STAGES - 1 : stage - 1, ahead.info, next);
      ahead.step(a);
      --share_ahead.left;
      next = key_of_thread(ahead, share_ahead.has(ahead.info));

      if (warp() / KEY_WARPS == DIM_WARPS - 1) {
        add_scores<true>(s, stage, q);
      } else {
        add_scores<false>(s, stage, q);
      }
      __syncthreads();
      weigh(s, stage, softmax);
      __syncthreads();
      if (value_chunk(warp()) == ROPE) {
        add_values<true>(s, stage, values);
      } else {
        add_values<false>(s, stage, values);
      }
      info = s.info[stage];
      stage = stage + 1 == STAGES ? 0 : stage + 1;
      row_ends = info.tile + 1 == info.tiles;
      last = --share.left <= 0 && (row_ends || info.tiles > share.whole);
      if (row_ends || last) break;
    }
    if (row_ends && first_tile == 0) {
      write_result(s, a, row, group, values);
    } else {
      share_result(s, a, row, group, info, share.size, values, last);
    }
    if (last) break;
    info = s.info[stage];
  }
  wait_for_copies<0>();
}
