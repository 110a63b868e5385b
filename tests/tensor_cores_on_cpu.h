// What kernels/ptx.cuh names, on the CPU: part of cuda_on_cpu.h.
//
// A warp's threads show each other their registers, and each computes its own part of the result.
// Copies in the background arrive only when the thread waits for them, so that one who doesn't reads what was
// there before.

#include <cmath>
#include <cstring>
#include <deque>

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

inline float __shfl_xor_sync(unsigned, float mine, int mask) {
  const int lane = threadIdx.x % 32;
  return __int_as_float(int(on_cpu::exchange_value(__float_as_int(mine))[lane ^ mask]));
}

namespace on_cpu {

inline float f16(unsigned pair, int half) {
  const uint16_t bits = pair >> (16 * half);
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return float(value);
}
inline float bf16(unsigned pair, int half) { return __int_as_float(int((pair >> (16 * half) & 0xffff) << 16)); }

inline unsigned to_f16(float value) {
  const _Float16 half = _Float16(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline unsigned to_bf16(float value) {
  const unsigned bits = unsigned(__float_as_int(value));
  if (std::isnan(value)) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Each lane converts its own registers, once for all that read them.
template <class Convert>
void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Convert value) {
  const unsigned pairs[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& factors = exchange([&](Exchange& all, int lane) {
                          for (int i = 0; i < 12; ++i) all.factors[lane][i] = value(pairs[i / 2], i % 2);
                        }).factors;
  const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const float* of_a = factors[row * 4 + k % 8 / 2];
      const float* of_b = factors[(column + i % 2) * 4 + k % 8 / 2];
      sum += double(of_a[(k / 8 * 2 + i / 2) * 2 + k % 2]) * of_b[8 + k / 8 * 2 + k % 2];
    }
    c[i] = float(sum);
  }
}

// The rows of all lanes. Each reads its own before it meets the others: what they write at that time is not there.
inline const unsigned (&rows_of(const void* mine))[32][4] {
  return exchange([=](Exchange& all, int lane) { std::memcpy(all.words[lane], mine, 16); }).words;
}

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool some;
  void run() const {
    if (some) {
      check_read(from, bytes);
      std::memcpy(to, from, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
};
// Groups of a thread's copies, the last not ended yet.
inline std::vector<std::deque<std::vector<Copy>>> copies;

inline std::deque<std::vector<Copy>>& my_copies() {
  const unsigned threads = block_size.x;
  if (copies.size() != threads) copies.assign(threads, {});
  auto& mine = copies[current->thread.x];
  if (mine.empty()) mine.emplace_back();
  return mine;
}

}  // namespace on_cpu

inline void copy16_async(void* to, const void* from, bool some) {
  on_cpu::my_copies().back().push_back({to, from, 16, some});
}
inline void copy8_async(void* to, const void* from, bool some) {
  on_cpu::my_copies().back().push_back({to, from, 8, some});
}
inline void end_copy_group() { on_cpu::my_copies().emplace_back(); }

template <int LEFT>
void wait_for_copies() {
  auto& mine = on_cpu::my_copies();
  while (mine.size() > LEFT + 1) {
    for (const auto& copy : mine.front()) copy.run();
    mine.pop_front();
  }
}

inline void prefetch(const void*) {}

inline void load_matrices(unsigned (&to)[4], const void* row) {
  const auto& rows = on_cpu::rows_of(row);
  const int lane = threadIdx.x % 32;
  for (int matrix = 0; matrix < 4; ++matrix) to[matrix] = rows[8 * matrix + lane / 4][lane % 4];
}
inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  const auto& rows = on_cpu::rows_of(row);
  const int lane = threadIdx.x % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned pair[2];
    for (int i = 0; i < 2; ++i) {
      const unsigned two = rows[8 * matrix + lane % 4 * 2 + i][lane / 8];
      pair[i] = two >> 16 * (lane / 4 % 2) & 0xffff;
    }
    to[matrix] = pair[0] | pair[1] << 16;
  }
}

inline void multiply_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  on_cpu::multiply(c, a, b0, b1, on_cpu::f16);
}
inline void multiply_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  on_cpu::multiply(c, a, b0, b1, on_cpu::bf16);
}

inline unsigned f16_of_e4m3(unsigned byte) {
  const unsigned exponent = byte >> 3 & 15, mantissa = byte & 7;
  float value = exponent ? std::ldexp(8.0f + mantissa, int(exponent) - 10) : std::ldexp(float(mantissa), -9);
  if ((byte & 0x7f) == 0x7f) value = std::nanf("");
  return on_cpu::to_f16(byte & 0x80 ? -value : value);
}
inline void f16_of_e4m3(unsigned bytes, unsigned& low, unsigned& high) {
  low = f16_of_e4m3(bytes & 255) | f16_of_e4m3(bytes >> 8 & 255) << 16;
  high = f16_of_e4m3(bytes >> 16 & 255) | f16_of_e4m3(bytes >> 24) << 16;
}
inline unsigned f16_pair(float first, float second) { return on_cpu::to_f16(first) | on_cpu::to_f16(second) << 16; }
inline unsigned bf16_pair(float first, float second) {
  return on_cpu::to_bf16(first) | on_cpu::to_bf16(second) << 16;
}
inline unsigned bf16_of_f16(unsigned pair) { return bf16_pair(on_cpu::f16(pair, 0), on_cpu::f16(pair, 1)); }
inline unsigned product_f16(unsigned a, unsigned b) {
  return f16_pair(on_cpu::f16(a, 0) * on_cpu::f16(b, 0), on_cpu::f16(a, 1) * on_cpu::f16(b, 1));
}
inline unsigned chosen(unsigned which, unsigned a, unsigned b) { return (a & which) | (b & ~which); }
inline unsigned larger_bf16(unsigned a, unsigned b) {
  const float first = std::fmax(on_cpu::bf16(a, 0), on_cpu::bf16(b, 0));
  return bf16_pair(first, std::fmax(on_cpu::bf16(a, 1), on_cpu::bf16(b, 1)));
}
template <unsigned WHICH>
unsigned chosen_bytes(unsigned a, unsigned b) {
  const uint64_t bytes = a | uint64_t(b) << 32;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= unsigned(bytes >> (WHICH >> (4 * i) & 7) * 8 & 255) << (8 * i);
  return chosen;
}

inline float reciprocal(float x) { return 1 / x; }
inline float power_of_2(float x) { return std::exp2(x); }
inline float log_2(float x) { return std::log2(x); }

inline int add_and_order(int* counter, int value) { return atomicAdd(counter, value); }
inline int load_and_order(const int* counter) { return *counter; }

template <int NUMBER>
void meet(int threads) {
  on_cpu::wait(on_cpu::numbered_barriers[NUMBER], threads);
}
inline void meet_at(int number, int threads) { on_cpu::wait(on_cpu::numbered_barriers[number], threads); }
inline void arrive_at(int number, int threads) { on_cpu::arrive(on_cpu::numbered_barriers[number], threads); }
template <int NUMBER>
bool any_at(int threads, bool mine) {
  return on_cpu::count_at(on_cpu::numbered_barriers[NUMBER], threads, mine) > 0;
}
template <int NUMBER>
int count_at(int threads, bool mine) {
  return on_cpu::count_at(on_cpu::numbered_barriers[NUMBER], threads, mine);
}
template <int COUNT>
void keep_registers() {}
template <int COUNT>
void take_registers() {}
inline void publish(int* at, int value) {
  *at = value;
  ++on_cpu::published.passed;
}
inline int wait_for_more(const int* at, int than) {
  while (*at <= than) {
    on_cpu::current->waits_for = &on_cpu::published;
    on_cpu::current->waits_since = on_cpu::published.passed;
    on_cpu::yield();
  }
  return *at;
}

struct alignas(8) Arrivals {
  int16_t missing, members;
  int32_t bytes;  // the lowest bit of `members` is the parity of the phase, `bytes` those expected and not there yet
};

namespace on_cpu {
struct Late {
  Arrivals* at;
  std::vector<Copy> copies;
  bool arrives;
};
inline std::vector<Late> late;

inline void check_phase(Arrivals* at) {
  if (at->missing > 0 || at->bytes != 0) return;
  at->missing = at->members >> 1;
  at->members ^= 1;
  ++published.passed;
}
inline void run_late(const Late& one) {
  for (const auto& copy : one.copies) copy.run();
  if (one.arrives) {
    --one.at->missing;
  } else {
    for (const auto& copy : one.copies) one.at->bytes -= copy.bytes;
  }
  check_phase(one.at);
}
// At once, or when someone waits for it.
inline void run_sometime(Late one) {
  if (dice() % 2) {
    run_late(one);
  } else {
    late.push_back(std::move(one));
    ++published.passed;
  }
}
}  // namespace on_cpu

inline void expect_arrivals(Arrivals* at, int count) {
  on_cpu::late.clear();
  *at = {int16_t(count), int16_t(count << 1), 0};
}
inline void order_bulk_copies() {}
inline bool elected() { return threadIdx.x % 32 == 0; }
inline void copy_bulk(void* to, const void* from, unsigned bytes, Arrivals* at) {
  on_cpu::run_sometime({at, {{to, from, int(bytes), true}}, false});
}
inline void arrive_with_bytes(Arrivals* at, unsigned bytes) {
  at->bytes += bytes;
  --at->missing;
  on_cpu::check_phase(at);
}
inline void arrive_after_copies(Arrivals* at) {
  std::vector<on_cpu::Copy> mine;
  for (auto& group : on_cpu::my_copies()) {
    mine.insert(mine.end(), group.begin(), group.end());
    group.clear();
  }
  on_cpu::run_sometime({at, std::move(mine), true});
}
inline void wait_for_phase(Arrivals* at, int parity) {
  while (true) {
    if ((at->members & 1) != parity) return;
    auto rest = std::move(on_cpu::late);
    on_cpu::late.clear();
    for (auto& one : rest) {
      if (one.at == at) {
        on_cpu::run_late(one);
      } else {
        on_cpu::late.push_back(std::move(one));
      }
    }
    if ((at->members & 1) != parity) return;
    on_cpu::current->waits_for = &on_cpu::published;
    on_cpu::current->waits_since = on_cpu::published.passed;
    on_cpu::yield();
  }
}

inline void wait_for_kernel_before() {}
inline void __syncwarp() { on_cpu::wait(on_cpu::warps[threadIdx.x / 32].barrier, 32); }
