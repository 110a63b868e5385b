// Where a program is in the list of all tiles: part of decode.cu.

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
