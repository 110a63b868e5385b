// Which tiles are a program's: part of decode.cu.

__device__ int tiles_of(const Arguments& a, int row) {
  return max(1, up(a.near.length(row) + a.far.length(row), TILE));
}

// The sum of `value` over all threads.
__device__ int sum_of_all(Shared& s, int value) {
  const int part = __reduce_add_sync(ALL, value);
  if (lane() == 0) s.partial[warp()] = part;
  sync_others();
  return __reduce_add_sync(ALL, lane() < WARPS ? s.partial[lane()] : 0);
}

// The sum of `value` over the threads before this one, and over all.
__device__ int sum_before(Shared& s, int value, int& total) {
  int inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(ALL, inclusive, step);
    if (lane() >= step) inclusive += other;
  }
  sync_others();
  if (lane() == 31) s.partial[warp()] = inclusive;
  sync_others();
  const int part = lane() < WARPS ? s.partial[lane()] : 0;
  total = __reduce_add_sync(ALL, part);
  return __reduce_add_sync(ALL, lane() < warp() ? part : 0) + inclusive - value;
}

__device__ int share_size(int tiles) {
  // Few tiles: rather two to a program than two programs to an SM, each with a part to merge.
  return up(tiles, tiles <= gridDim.x ? up(gridDim.x, PROGRAMS_PER_SM) : gridDim.x);
}

// Sizes of a share with which it is worth while that each row and group begins one of its own.
struct Sizes {
  int least, most;
};

// At most a tile more than equal shares have: no program has parts of two rows then, and those that are not cut,
// of which each has one program, leave more of them to the others. With less than `least` those don't fit.
__device__ Sizes own_sizes(Shared& s, const Arguments& a, int mine) {
  const int uncut = count_of_others(mine > 0 && mine <= a.whole) * a.groups;
  const int tiles = sum_of_all(s, mine) * a.groups;
  const int most = share_size(tiles) + 1;
  if (uncut == a.rows * a.groups) return {1, most};
  return {max(1, up(tiles - uncut * a.whole, int(gridDim.x) - uncut)), most};
}

// The share of a program where all rows have as many tiles, if each row and group may begin one of its own: nothing
// has to be added up.
__device__ bool find_equal_share(const Arguments& a, int units, int tiles, Share& share, Cursor& start) {
  const bool uncut = tiles <= a.whole;
  const int size = uncut ? tiles : up(tiles, int(gridDim.x) / units);
  if (!uncut && size > share_size(tiles * units) + 1) return false;
  share.resize(a, size);
  const int programs = share.programs(tiles), unit = blockIdx.x / programs;
  start.info.begin = unit * programs * size;
  if (unit >= units) return true;
  start.seek(a, unit);
  start.info.tile = (blockIdx.x - unit * programs) * size;
  share.left = min(size, tiles - start.info.tile);
  return true;
}

__device__ Share find_share(Shared& s, const Arguments& a, Cursor& start) {
  int row = a.rows == 1 ? 0 : threadIdx.x;
  const int tiles = row < a.rows ? tiles_of(a, row) : 0;
  Share share{0, 0, a.whole};
  const int units = a.rows * a.groups;
  bool own = units > 1 && units <= gridDim.x && a.rows <= THREADS;
  Sizes sizes{0, 0};
  if (own) {
    const int first_tiles = tiles_of(a, 0);
    if (a.rows == 1 || !any_of_others(row < a.rows && tiles != first_tiles)) {
      if (find_equal_share(a, units, first_tiles, share, start)) return share;
      own = false;
    } else {
      sizes = own_sizes(s, a, tiles);
    }
  }
  // Of the list of tiles, which has gaps where each row and group begins a share of its own.
  int mine, before, total;
#pragma unroll 1
  while (true) {
    own = own && sizes.least <= sizes.most;
    if (own) share.resize(a, sizes.least++);
    mine = own ? share.programs(tiles) * share.size : tiles;
    before = 0;
    total = mine;
    if (a.rows > 1) before = sum_before(s, mine, total);
    if (!own || total * a.groups <= share.size * gridDim.x) break;
  }
  int end = total;
  if (a.rows > THREADS) {
    int later = 0, rest;
#pragma unroll 1
    for (int r = row + THREADS; r < a.rows; r += THREADS) later += tiles_of(a, r);
    sum_before(s, later, rest);
    total += rest;
  }
  total *= a.groups;
  if (!own) share.resize(a, share_size(total));
  const int first = blockIdx.x * share.size;
  share.left = min(share.size, total - first);
  if (share.left <= 0) return share;
#pragma unroll 1
  while (end * a.groups <= first) {
    row += THREADS;
    mine = row < a.rows ? tiles_of(a, row) : 0;
    int here;
    before = end + sum_before(s, mine, here);
    end += here;
  }
  int begin = before * a.groups;
  if (a.rows > 1) {
    if (begin <= first && first < begin + mine * a.groups) {
      s.row = row;
      s.begin = begin;
      s.tiles = mine;
    }
    sync_others();
    row = s.row;
    begin = s.begin;
    mine = s.tiles;
  }
  const int group = a.groups == 1 ? 0 : (first - begin) / mine;
  start.info.begin = begin + group * mine;
  start.seek(a, row * a.groups + group);
  start.info.tile = first - start.info.begin;
  if (own) {
    share.left = min(share.size, start.info.tiles - start.info.tile);
  } else if (start.info.tile > 0 && start.info.tiles <= share.whole) {
    share.left -= start.info.tiles - start.info.tile;
    start.info.tile = start.info.tiles - 1;
    if (share.left > 0) start.step(a);
  }
  return share;
}

// Bring to the L2 cache what this program is to read first if all rows are as long as the index tables are wide.
// If they are not, it is another program's.
__device__ void prefetch_first(const Arguments& a) {
  const int width = a.near.width + a.far.width, tiles = max(1, up(width, TILE)) * a.groups;
  const int first = up(min(a.rows, 1 << 12) * tiles, gridDim.x) * blockIdx.x;
  const int row = first / tiles, after = first - row * tiles, tiles_of_group = tiles / a.groups;
  if (a.rows > 1 << 12 || row >= a.rows) return;
  const int group = after / tiles_of_group;
  const int position = (after - group * tiles_of_group) * TILE + threadIdx.x * 8;
  if (threadIdx.x * 8 < TILE && position < width) {
    prefetch(position < a.near.width ? a.near.indices + row * a.near.stride_indices + position
                                     : a.far.indices + row * a.far.stride_indices + (position - a.near.width));
  }
  for (int i = threadIdx.x; i < HEADS * 8; i += THREADS) {
    const int head = group * HEADS + i / 8;
    if (head < a.heads) prefetch(a.q + row * a.stride_q_row + head * a.stride_q_head + i % 8 * 64);
  }
}
