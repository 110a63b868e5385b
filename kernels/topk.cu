// Exact top-K of the indexer's scores, with the page-table transform, in one launch. See topk.py.

#include "topk_memory.cuh"
#include "topk_sift.cuh"
#include "topk_select.cuh"
#include "topk_short.cuh"

constexpr int UNITS_AT_ONCE = 4;
constexpr int SHARE = -1;    // the next row is one of the share
constexpr int LOCATED = -1;  // row0 of a share whose first piece is known
constexpr int NONE = -1;     // the level of no selection, or of one that is done

// The maxima of groups of maxima, after those of the row.
__device__ void write_outer_maxima(const int* inner, int* outer, int count) {
  for (int group = threadIdx.x; group * GROUP < count; group += THREADS) {
    int best = LOWEST;
#pragma unroll 4
    for (int i = group * GROUP; i < min((group + 1) * GROUP, count); ++i) best = max(best, __ldcg(inner + i));
    outer[group] = best;
  }
  __syncthreads();
}

// Select from the row s.row, of more than K keys. One that does not fit a tile is selected by its maxima, which
// are all written: first the groups, then the keys in them; by maxima of maxima before that if those do not
// fit. What must last over a selection is in shared memory: the keys take the registers.
__device__ void select_row(Shared& s, const Rows& rows) {
  while (s.level != NONE) {
    const int length = s.length, groups = groups_of(length);
    int* maxima = rows.maxima + s.row * rows.stride_maxima;
    int* outer = maxima + (groups + 3) / 4 * 4;
    const bool listed = length > (s.level == 0 ? TILE : TILE * GROUP);
    Source source{maxima, groups, listed, false};
    if (s.level == 0) {
      // K maxima are not below the floor that they leave, so neither are K keys.
      const int* scores = reinterpret_cast<const int*>(rows.scores + s.row * rows.stride_scores);
      source = {scores, length, listed, s.floor <= 0};
    } else if (s.level == 2) {
      write_outer_maxima(maxima, outer, groups);
      source = {outer, groups_of(groups), false, false};
    }
    select(s, rows, source);
  }
}

// The largest keys of the groups of the N units from `base` on.
template <int N>
__device__ void write_maxima_of_units(const Shared& s, const Source& source, int* maxima, int base, int end) {
  constexpr int LANES = GROUP / 4;
  int4 keys[N];
  const int first = base + 4 * int(threadIdx.x);
  source.load<N, UNIT>(s, first, end, keys);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (base + i * UNIT >= end) break;
    int best = largest(keys[i]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) best = max(best, __shfl_xor_sync(ALL, best, step));
    const int position = first + i * UNIT;
    if (lane() % LANES == 0 && position < end) maxima[position / GROUP] = best;
  }
}

__device__ void write_maxima(const Shared& s, const Source& source, int* maxima, int unit, int stop) {
  const int end = min(stop * UNIT, source.length);
  if (unit + 1 == stop) {
    write_maxima_of_units<1>(s, source, maxima, unit * UNIT, end);
    return;
  }
  for (; unit < stop; unit += UNITS_AT_ONCE) {
    write_maxima_of_units<UNITS_AT_ONCE>(s, source, maxima, unit * UNIT, end);
  }
}

// Count `units` more of the row as done. True for the program that completes it: it sees all maxima.
__device__ bool complete(Shared& s, const Rows& rows, int row, int units, int units_of_row) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
#ifdef __CUDA_ARCH__
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(rows.arrived + row), "r"(units)
                 : "memory");
#else
    before = atomicAdd(rows.arrived + row, units);
#endif
    s.arrived = before + units;
    if (s.arrived == units_of_row) rows.arrived[row] = 0;
  }
  __syncthreads();
  return s.arrived == units_of_row;
}

__device__ int units_in(int length) { return length > TILE ? (length + UNIT - 1) / UNIT : 0; }

// The sum of `value` over the threads before this one, and over all.
__device__ int sum_before(Shared& s, int value, int& total) {
  const int up_to_lane = sum_to_lane(value);
  const int before = sum_of_warps_before(s, up_to_lane) + up_to_lane - value;
  total = sum_of_warps(s);
  return before;
}

// The units of the rows that have the thread's number, or THREADS more, and so on. `length`: of the first of them.
__device__ int units_of_thread(const Rows& rows, int length) {
  int units = units_in(length);
#pragma unroll 1
  for (int row = threadIdx.x + THREADS; row < rows.batch; row += THREADS) units += units_in(rows.length(row));
  return units;
}

// Whether any row is long, for all threads. `length`: of the row that has the thread's number.
__device__ bool any_long(const Rows& rows, int length) {
  bool some = length > TILE;
#pragma unroll 1
  for (int row = threadIdx.x + THREADS; row < rows.batch; row += THREADS) some |= rows.length(row) > TILE;
  return __syncthreads_or(some);
}

// Find this program's share of the long rows, which is a run of units over all of them. False if there is none.
__device__ bool find_share(Shared& s, const Rows& rows) {
  // Read again: there are no registers to keep it in.
  const int length = int(threadIdx.x) < rows.batch ? rows.length(threadIdx.x) : 0;
  const int units = units_of_thread(rows, length);
  int total;
  const int start = sum_before(s, units, total);
  const int share = (total + gridDim.x - 1) / gridDim.x;
  const int work = blockIdx.x * share;
  const int last = min(work + share, total);
  // With a thread for each row, one of them knows where the share starts.
  const bool located = rows.batch <= THREADS;
  if (located && start <= work && work < start + units) s.piece = {int(threadIdx.x), start, rows.length(threadIdx.x)};
  if (threadIdx.x == 0) {
    s.share = {work, last, located ? LOCATED : 0, 0};
    if (work < last) {
      s.level = NONE;
      s.next = SHARE;
    }
  }
  __syncthreads();
  return work < last;
}

// Find the row that the next piece of the share is of.
__device__ void locate_piece(Shared& s, const Rows& rows, Share& share) {
  if (share.row0 == LOCATED) {
    share.row0 = 0;
    return;
  }
  while (true) {
    __syncthreads();
    const int row = share.row0 + threadIdx.x;
    const int length = row < rows.batch ? rows.length(row) : 0;
    const int units = units_in(length);
    int here;
    const int start = share.before + sum_before(s, units, here);
    if (start <= share.work && share.work < start + units) s.piece = {row, start, length};
    if (share.work < share.before + here) break;
    share.before += here;
    share.row0 += THREADS;
  }
  __syncthreads();
}

// Do the next piece of the share, the part that is of one row. True if that completes the row, s.piece.row.
__device__ bool do_piece(Shared& s, const Rows& rows) {
  Share share = s.share;
  locate_piece(s, rows, share);
  const Piece piece = s.piece;
  const int units = units_in(piece.length);
  const int stop = min(share.last - piece.start, units);
  const Source source{
      reinterpret_cast<const int*>(rows.scores + piece.row * rows.stride_scores), piece.length, false, true};
  write_maxima(s, source, rows.maxima + piece.row * rows.stride_maxima, share.work - piece.start, stop);
  const int done = piece.start + stop - share.work;
  share.work += done;
  const bool completed = complete(s, rows, s.piece.row, done, units);
  // Not before its barriers: a located piece has none since the other threads read the share.
  if (threadIdx.x == 0) s.share = share;
  return completed;
}

// The rows of a program: from the last program on, for with few long rows the last ones have no share of those.
__device__ int own_row(int number) { return gridDim.x - 1 - blockIdx.x + number * gridDim.x; }

// The rows that need no selection, one for each warp at a time: where there are more rows than programs.
__device__ void do_short_rows(const Rows& rows) {
  for (int row = own_row(warp()); row < rows.batch; row += WARPS * gridDim.x) {
    const int length = rows.length(row);
    if (length <= K) write_all(rows, row, length);
  }
}

// By one thread, with a barrier before `select_row`.
__device__ void start_selection(Shared& s, int row, int length) {
  s.row = row;
  s.length = length;
  s.level = length <= TILE ? 0 : groups_of(length) <= TILE ? 1 : 2;
  s.floor = LOWEST;
}

__device__ bool is_middle(int length) { return length > K && length <= TILE; }

// Find a row for this program to select from: first the long rows that it completes, then its own rows of
// middle length, of which s.next is the next one. False if there is none.
__device__ bool next_row(Shared& s, const Rows& rows) {
  while (s.next == SHARE) {
    const bool completed = do_piece(s, rows);
    if (threadIdx.x == 0) {
      if (s.share.work == s.share.last) s.next = 0;
      start_selection(s, s.piece.row, s.piece.length);
    }
    __syncthreads();
    if (completed) return true;
  }
  for (int next = s.next, row = s.own + next * s.programs; row < rows.batch; ++next, row += s.programs) {
    const bool known = rows.batch > s.programs && next < THREADS;
    const int length = known ? s.lengths[next] : rows.length(row);
    if (!is_middle(length)) continue;
    __syncthreads();
    if (threadIdx.x == 0) {
      start_selection(s, row, length);
      s.next = next + 1;
    }
    __syncthreads();
    return true;
  }
  return false;
}

// Two programs of an SM have 64 registers for each thread, which is a word too few before sm_90.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#undef PROGRAMS_PER_SM
#define PROGRAMS_PER_SM 1
#endif

// The program's only row, if it is so few keys that it is done without what long rows need.
__device__ bool do_few(Shared& s, const Rows& rows, int row, int length) {
  if (K < UNIT / 2 && length <= UNIT / 2) {
    if (threadIdx.x < THREADS / 2) select_few<THREADS / 2>(s, rows, row, length);
    return true;
  }
  if (length <= UNIT) select_few<THREADS>(s, rows, row, length);
  return length <= UNIT;
}

extern "C" __global__ void __launch_bounds__(THREADS, PROGRAMS_PER_SM)
    topk_page_indices(const __grid_constant__ Rows rows) {
  Shared& s = *reinterpret_cast<Shared*>(shared_memory);
  s.histogram[threadIdx.x] = {};
  const bool one_each = rows.batch <= gridDim.x, may_share = rows.width > TILE;
  const int own = own_row(0);
  OnlyRow only(rows, own);
  const int* length_of_thread = rows.lengths + threadIdx.x * rows.stride_length;
  computed_here(length_of_thread);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // Launched while the kernel before may still run: nothing of it is read or overwritten before this.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  int length = 0;
  if (may_share && int(threadIdx.x) < rows.batch) length = __ldg(length_of_thread);
  bool long_rows = false;
  int own_length;
  if (__builtin_expect(one_each, true)) {
    only.read();
    // Between the read of the pages and their use, which it would otherwise wait for.
    if (may_share) long_rows = any_long(rows, min(length, rows.width));
    only.write(rows);
    own_length = only.length;
    if (__builtin_expect(!long_rows && own_length <= K, true)) return;
    if (!long_rows && do_few(s, rows, own, own_length)) return;
  } else {
    own_length = rows.length(own);
    do_short_rows(rows);
    if (may_share) long_rows = any_long(rows, min(length, rows.width));
  }
  // A program that has no share does its first row at once.
  const bool middle = is_middle(own_length);
  if (threadIdx.x == 0) {
    start_selection(s, own, own_length);
    if (!middle) s.level = NONE;
    s.next = 1;
    s.own = own;
    s.programs = gridDim.x;
  }
  if (rows.batch > gridDim.x) {
    const int row = own_row(threadIdx.x);
    s.lengths[threadIdx.x] = row < rows.batch ? rows.length(row) : 0;
  }
  const bool sharing = long_rows && find_share(s, rows);
  if (!sharing && !middle && rows.batch <= gridDim.x) return;
  if (!long_rows) __syncthreads();
#pragma unroll 1
  while (s.level != NONE || next_row(s, rows)) select_row(s, rows);
}
