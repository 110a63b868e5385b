// Which tiles are a program's, and the gathering of their keys: part of decode.cu.

// A point in the list of all tiles: rows one after another, the head groups of a row next to each other.
struct Cursor {
  Info info;
  int near, keys;                         // of the row: in the first cache, in both
  const int *near_indices, *far_indices;  // by position among both

  __device__ void seek(const Arguments& a, int unit) {
    const int row = row_of(a, unit);
    info = {unit, 0, 1, info.begin};
    near = keys = 0;
    if (row >= a.rows) return;
    near = a.near.length(row);
    keys = near + a.far.length(row);
    // A row without keys has one tile too: its outputs have to be written.
    info.tiles = max(1, up(keys, TILE));
    near_indices = a.near.indices + row * a.near.stride_indices;
    far_indices = a.far.indices + row * a.far.stride_indices - near;
  }

  __device__ void step(const Arguments& a) {
    if (++info.tile < info.tiles) return;
    info.begin += info.tiles;
    seek(a, info.unit + 1);
  }
};

__device__ int tiles_of(const Arguments& a, int row) {
  return max(1, up(a.near.length(row) + a.far.length(row), TILE));
}

// The sum of `value` over all threads.
__device__ int sum_of_all(Shared& s, int value) {
  const int part = __reduce_add_sync(ALL, value);
  if (lane() == 0) s.partial[warp()] = part;
  __syncthreads();
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
  __syncthreads();
  if (lane() == 31) s.partial[warp()] = inclusive;
  __syncthreads();
  const int part = lane() < WARPS ? s.partial[lane()] : 0;
  total = __reduce_add_sync(ALL, part);
  return __reduce_add_sync(ALL, lane() < warp() ? part : 0) + inclusive - value;
}

// A program's share of the list of all tiles: equal parts of it, so that a long row is many programs' work. A
// row and group of at most `whole` tiles is not cut: it belongs to the share in which it begins.
struct Share {
  int size, left, whole;

  __device__ void resize(const Arguments& a, int tiles) {
    size = tiles;
    whole = max(a.whole, tiles);
  }

  // Programs of a row and group whose first tile is the first of a share.
  __device__ int programs(int tiles) const { return tiles > whole ? up(tiles, size) : min(tiles, 1); }

  // Whether a tile, the first ones of the share done, is this program's.
  __device__ bool has(Info info) const { return left > 0 || (info.tile > 0 && info.tiles <= whole); }
};

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
  const int uncut = __syncthreads_count(mine > 0 && mine <= a.whole) * a.groups;
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
    if (a.rows == 1 || !__syncthreads_or(row < a.rows && tiles != first_tiles)) {
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
    __syncthreads();
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

// A key to gather: its index in a cache, or -1.
struct Key {
  int index;
  bool far;
};

// Which of its warp's keys of a tile is this lane's; some lanes have the same.
__device__ int key_of_lane() { return lane() % KEYS_PER_WARP; }

__device__ Key find_key(const Cursor& at, bool some) {
  const int position = at.info.tile * TILE + warp() * KEYS_PER_WARP + key_of_lane();
  Key key{-1, position >= at.near};
  if (some && position < at.keys) key.index = __ldg((key.far ? at.far_indices : at.near_indices) + position);
  return key;
}

// Where a key is gathered from is kept in the unit that separates it from the next.
__device__ const unsigned char** pointer_beside(Words* tile, int key) {
  return reinterpret_cast<const unsigned char**>(tile + key * STRIDE + UNITS);
}

// Begin to gather this warp's keys of a tile: of each, its lanes copy 512 bytes next to each other at once, and
// then the rest of all. What isn't a key is zeros, so that a weight of 0 is enough.
__device__ void gather(Shared& s, const Arguments& a, int stage, Info info, Key mine) {
  const int first = warp() * KEYS_PER_WARP, key = first + key_of_lane();
  const bool some = mine.index >= 0;
  const unsigned index = some ? mine.index : 0;
  const int bits = mine.far ? a.far.page_bits : a.near.page_bits;
  const unsigned page_bytes = mine.far ? a.far.page_bytes : a.near.page_bytes;
  const unsigned char* pages = mine.far ? a.far.pages : a.near.pages;
  const unsigned char* page = pages + (unsigned long long)(index >> bits) * page_bytes;
  const unsigned slot = index & ((1u << bits) - 1);
  const unsigned char* bytes = page + slot * KEY_BYTES;
  const unsigned keys = __ballot_sync(ALL, some);
  if (lane() < KEYS_PER_WARP) {
    *pointer_beside(s.tile[stage], key) = bytes;
    copy8_async(s.exponents[stage][key], page + (unsigned(KEY_BYTES) << bits) + slot * SCALES, some);
    s.valid[stage][column_of(key)] = some;
  }
  __syncwarp();
  Words* to = &s.tile[stage][first * STRIDE];
#pragma unroll
  for (int n = 0; n < KEYS_PER_WARP; ++n) {
    const unsigned char* from = *pointer_beside(s.tile[stage], first + n);
    copy16_async(to + n * STRIDE + lane(), from + lane() * 16, keys >> n & 1);
  }
  const int unit = 32 + lane() / KEYS_PER_WARP;
  if (unit < UNITS) copy16_async(to + key_of_lane() * STRIDE + unit, bytes + unit * 16, some);
  if (threadIdx.x == 0) s.info[stage] = info;
}
