// Rows of at most K keys, which need no selection: all of them in order, then -1.

// `first` and those after it, -1 from the `end`-th of the row on, of which the first is the `index`-th.
__device__ int4 neighbours(int first, int index, int end) {
  const int count = max(end, 0) - index;
  return {count > 0 ? first : -1, count > 1 ? first + 1 : -1, count > 2 ? first + 2 : -1, count > 3 ? first + 3 : -1};
}

// A row of at most K keys, four neighbours of one page at a time.
template <int SIZE>
__device__ void write_quads(const Rows& rows, int row, int length, int thread) {
  constexpr int COUNT = (K / 4 + SIZE - 1) / SIZE;
  const int* table = rows.table + row * rows.stride_table;
  const long long start = (long long)row * K;
  int pages[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int index = 4 * (i * SIZE + thread);
    pages[i] = index < length ? __ldg(table + (index >> rows.page_bits)) : 0;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int index = 4 * (i * SIZE + thread);
    *reinterpret_cast<int4*>(rows.out + start + index) =
        neighbours(located(pages[i], index, rows.page_bits), index, length);
    if (rows.raw) *reinterpret_cast<int4*>(rows.raw + start + index) = neighbours(index, index, length);
  }
}

// A row of at most K keys, by some of the threads: all of them in order, then -1.
template <int SIZE>
__device__ void write_all(const Rows& rows, int row, int length, int thread) {
  if (K >= 4 * SIZE && rows.quads) {
    write_quads<SIZE>(rows, row, length, thread);
    return;
  }
  const int* table = rows.table + row * rows.stride_table;
  const long long start = (long long)row * K;
  int pages[K / SIZE];
#pragma unroll
  for (int i = 0; i < K / SIZE; ++i) {
    const int index = i * SIZE + thread;
    pages[i] = index < length ? __ldg(table + (index >> rows.page_bits)) : 0;
  }
#pragma unroll
  for (int i = 0; i < K / SIZE; ++i) {
    const int index = i * SIZE + thread;
    rows.out[start + index] = index < length ? located(pages[i], index, rows.page_bits) : -1;
    if (rows.raw) rows.raw[start + index] = index < length ? index : -1;
  }
}
