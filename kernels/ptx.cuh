// Instructions that CUDA C++ has no name for without its headers, as functions. The CPU tests bring their
// own functions of the same names (tests/tensor_cores_on_cpu.h).
//
// A "pair" is two 16-bit floats in a word, the first in the low half.

#ifdef __CUDACC__

__device__ unsigned shared_address(const void* at) { return unsigned(__cvta_generic_to_shared(at)); }

// Copy to shared memory in the background; without `some`, write zeros and read nothing.
__device__ void copy16_async(void* to, const void* from, bool some) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(some ? 16 : 0)
               : "memory");
}
__device__ void copy8_async(void* to, const void* from, bool some) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(some ? 8 : 0)
               : "memory");
}
__device__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
__device__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all but the last `LEFT` groups of this thread's copies are there.
template <int LEFT>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements. Lane i gives the address of row i % 8 of matrix i / 8; it gets of
// each matrix elements 2 * (i % 4) and the next of row i / 4, or of column i / 4 if transposed.
__device__ void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}
__device__ void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row)));
}

// c[16, 8] += a[16, 16] b[16, 8]
__device__ void multiply_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%10, %11, %12, %13};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ void multiply_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%10, %11, %12, %13};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// The four e4m3 numbers in a word as two pairs of f16.
__device__ void f16_of_e4m3(unsigned bytes, unsigned& low, unsigned& high) {
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
}
__device__ unsigned f16_pair(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__device__ unsigned bf16_pair(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__device__ unsigned bf16_of_f16(unsigned pair) {
  float first, second;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(first), "=f"(second)
      : "r"(pair));
  return bf16_pair(first, second);
}
__device__ unsigned product_f16(unsigned a, unsigned b) {
  unsigned pair;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
// Where `which` has ones, bits of `a`, else of `b`: in a register of its own, where a choice between two is made
// in that of one of them, which for an operand of the tensor cores may be the wrong one.
__device__ unsigned chosen(unsigned which, unsigned a, unsigned b) {
  unsigned bits;
  asm volatile("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(bits) : "r"(which), "r"(a), "r"(b));
  return bits;
}
// The larger of each of two bf16; a number rather than NaN.
__device__ unsigned larger_bf16(unsigned a, unsigned b) {
  unsigned pair;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
// Bytes of `a` (0 to 3) and `b` (4 to 7), chosen by the digits of `which`, the last for the first.
template <unsigned WHICH>
__device__ unsigned chosen_bytes(unsigned a, unsigned b) {
  return __byte_perm(a, b, WHICH);
}

__device__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ float log_2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Add to a counter that other programs see; what was stored before is visible to whoever sees the sum.
__device__ int add_and_order(int* counter, int value) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
  return before;
}
__device__ int load_and_order(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// Until as many threads of the program are here; each barrier has a number from 1 on.
template <int NUMBER>
__device__ void meet(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "r"(threads) : "memory");
}

// The same for a number that is known only at run time; and to be counted there without waiting for the others.
__device__ void meet_at(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ void arrive_at(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Whether any of those that meet says so, and how many do.
template <int NUMBER>
__device__ bool any_at(int threads, bool mine) {
  unsigned any;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(any)
      : "n"(NUMBER), "r"(threads), "r"(unsigned(mine))
      : "memory");
  return any;
}
template <int NUMBER>
__device__ int count_at(int threads, bool mine) {
  int count;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; bar.red.popc.u32 %0, %1, %2, p; }"
               : "=r"(count)
               : "n"(NUMBER), "r"(threads), "r"(unsigned(mine))
               : "memory");
  return count;
}

// Give registers back, or take some of those that others of the program gave back: for four warps at once, which all
// have to come here.
template <int COUNT>
__device__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A growing number in shared memory: what was stored before is visible to whoever has waited for it.
__device__ void publish(int* at, int value) {
  asm volatile("st.release.cta.shared.s32 [%0], %1;" ::"r"(shared_address(at)), "r"(value) : "memory");
}
__device__ int wait_for_more(const int* at, int than) {
  while (true) {
    int value;
    asm volatile("ld.acquire.cta.shared.s32 %0, [%1];" : "=r"(value) : "r"(shared_address(at)) : "memory");
    if (value > than) return value;
    asm volatile("nanosleep.u32 40;");
  }
}

// Arrivals and bytes that are waited for in shared memory, in phases.
struct alignas(8) Arrivals {
  unsigned long long state;
};
__device__ void expect_arrivals(Arrivals* at, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(count) : "memory");
}
// What was stored to shared memory before comes before what is copied there in bulk later.
__device__ void order_bulk_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// As `.shared::cluster` it would call a check on sm_120, and a kernel that calls keeps its registers.
__device__ void copy_bulk(void* to, const void* from, unsigned bytes, Arrivals* at) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(at))
               : "memory");
}
// True in one lane of a warp, which all have to ask.
__device__ bool elected() {
  unsigned mine;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(mine));
  return mine;
}
// One arrival, and that as many bytes come in this phase.
__device__ void arrive_with_bytes(Arrivals* at, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes) : "memory");
}
// One arrival when all copies that this thread began before are there.
__device__ void arrive_after_copies(Arrivals* at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(at)) : "memory");
}
// Until a phase is over: the first has parity 0, the next 1.
__device__ void wait_for_phase(Arrivals* at, int parity) {
  unsigned over;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(shared_address(at)), "r"(parity)
        : "memory");
  } while (!over);
}

// For a kernel launched while the one before may still run: nothing of that one is read or overwritten
// before this.
__device__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
