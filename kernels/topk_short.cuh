// Rows of at most K keys, which need no selection: all of them in order, then -1.

// `first` and those after it, -1 from the `end`-th of the row on, of which the first is the `index`-th.
__device__ int4 neighbours(int first, int index, int end) {
  const int count = max(end, 0) - index;
  return {count > 0 ? first : -1, count > 1 ? first + 1 : -1, count > 2 ? first + 2 : -1, count > 3 ? first + 3 : -1};
}

// A row of at most K keys, four neighbours of one page at a time.
__device__ void write_quads(const Rows& rows, int row, int length) {
  constexpr int COUNT = K / 4 / 32;
  const int* table = rows.table + row * rows.stride_table;
  const long long start = (long long)row * K;
  int pages[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int index = 4 * (i * 32 + lane());
    pages[i] = index < length ? __ldg(table + (index >> rows.page_bits)) : 0;
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int index = 4 * (i * 32 + lane());
    *reinterpret_cast<int4*>(rows.out + start + index) =
        neighbours(located(pages[i], index, rows.page_bits), index, length);
    if (rows.raw) *reinterpret_cast<int4*>(rows.raw + start + index) = neighbours(index, index, length);
  }
}

// A row of at most K keys, by a warp: all of them in order, then -1.
__device__ void write_all(const Rows& rows, int row, int length) {
  if (rows.quads) {
    write_quads(rows, row, length);
    return;
  }
  const int* table = rows.table + row * rows.stride_table;
  const long long start = (long long)row * K;
  int pages[K / 32];
#pragma unroll
  for (int i = 0; i < K / 32; ++i) {
    const int index = i * 32 + lane();
    pages[i] = index < length ? __ldg(table + (index >> rows.page_bits)) : 0;
  }
#pragma unroll
  for (int i = 0; i < K / 32; ++i) {
    const int index = i * 32 + lane();
    rows.out[start + index] = index < length ? located(pages[i], index, rows.page_bits) : -1;
    if (rows.raw) rows.raw[start + index] = index < length ? index : -1;
  }
}

// The value is computed before this, and not anew after it.
__device__ void computed_here(int& value) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(value));
#endif
}
__device__ void computed_here(const int*& address) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(address));
#endif
}

// The only row of a program, where there are programs enough, and what of it this thread writes if it is short.
struct OnlyRow {
  int number, length;
  bool some;  // not all programs have one

  // Made before the wait for the kernel before, which hides it: the first read of an argument takes hundreds of
  // cycles, and an address tens.
  __device__ OnlyRow(const Rows& rows, int number)
      : number(number), some(number < rows.batch), width(rows.width), page_bits(rows.page_bits) {
    const int row = some ? number : 0;
    length_at = rows.lengths + row * rows.stride_length;
    computed_here(length_at);
    const int* table = rows.table + row * rows.stride_table;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      page_at[i] = table + (index(i) >> page_bits);
      computed_here(page_at[i]);
    }
    computed_here(width);
    computed_here(page_bits);
  }

  __device__ void read() {
    length = some ? min(__ldg(length_at), width) : 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) pages[i] = length <= K && index(i) < length ? __ldg(page_at[i]) : 0;
  }

  // All keys of the row in order, then -1; nothing if it is not short.
  __device__ void write(const Rows& rows) const {
    if (!some || length > K) return;
    const long long start = (long long)number * K;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      rows.out[start + index(i)] = index(i) < length ? located(pages[i], index(i), page_bits) : -1;
      if (rows.raw) rows.raw[start + index(i)] = index(i) < length ? index(i) : -1;
    }
  }

 private:
  int width, page_bits, pages[PARTS];
  const int* length_at;
  const int* page_at[PARTS];

  __device__ static int index(int part) { return part * THREADS + int(threadIdx.x); }
};
