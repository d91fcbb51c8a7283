// What the kernels are made of: they are compiled without CUDA's headers, so what CUDA C would take from those is declared
// here. A warp is the unit of work everywhere.
//
// Data is touched once: its loads and stores are streaming (.cs), so that they do not evict the engine's working set
// from L2; what is read again and again, descriptors, goes through the read-only cache (.nc).
#pragma once

#define INLINE __attribute__((device)) __attribute__((always_inline)) inline
#define DEVICE static INLINE

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum : u32 { LANES = 32, ALL = 0xffffffff };

DEVICE u32 lane_id() { return __nvvm_read_ptx_sreg_tid_x() % LANES; }

// Neighbouring work goes to different thread blocks, so that a small batch too uses the links of several SMs.
DEVICE u64 warp_id() {
    return (u64)(__nvvm_read_ptx_sreg_tid_x() / LANES) * __nvvm_read_ptx_sreg_nctaid_x() + __nvvm_read_ptx_sreg_ctaid_x();
}
DEVICE u64 warp_count() { return (u64)(__nvvm_read_ptx_sreg_ntid_x() / LANES) * __nvvm_read_ptx_sreg_nctaid_x(); }

DEVICE u32 shuffle(u32 v, u32 lane) { return (u32)__nvvm_shfl_sync_idx_i32(ALL, (int)v, (int)lane, LANES - 1); }
DEVICE u64 shuffle(u64 v, u32 lane) { return (u64)shuffle((u32)(v >> 32), lane) << 32 | shuffle((u32)v, lane); }
DEVICE u32 shuffle_xor(u32 v, u32 mask) { return (u32)__nvvm_shfl_sync_bfly_i32(ALL, (int)v, (int)mask, LANES - 1); }
DEVICE u64 shuffle_xor(u64 v, u32 mask) { return (u64)shuffle_xor((u32)(v >> 32), mask) << 32 | shuffle_xor((u32)v, mask); }
DEVICE bool all_lanes(bool v) { return __nvvm_vote_all_sync(ALL, v); }

struct V16 {
    u32 a, b, c, d;
};

// The offsets are immediates of the instructions: left to the compiler, each costs an address in two registers.
template <u32 OFF> DEVICE void load(V16 &v, u64 p) {
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d)
                 : "l"(p), "n"(OFF)
                 : "memory");
}
template <u32 OFF> DEVICE void store(u64 p, const V16 &v) {
    asm volatile("st.global.cs.v4.u32 [%0+%1], {%2, %3, %4, %5};" ::"l"(p), "n"(OFF), "r"(v.a), "r"(v.b), "r"(v.c), "r"(v.d)
                 : "memory");
}
#define ACCESS(TYPE, SUFFIX, CONSTRAINT)                                                                                   \
    template <u32 OFF> DEVICE void load(TYPE &v, u64 p) {                                                                  \
        asm volatile("ld.global.cs." SUFFIX " %0, [%1+%2];" : "=" CONSTRAINT(v) : "l"(p), "n"(OFF) : "memory");            \
    }                                                                                                                      \
    template <u32 OFF> DEVICE void store(u64 p, const TYPE &v) {                                                           \
        asm volatile("st.global.cs." SUFFIX " [%0+%1], %2;" ::"l"(p), "n"(OFF), CONSTRAINT(v) : "memory");                 \
    }
ACCESS(u64, "u64", "l")
ACCESS(u32, "u32", "r")
ACCESS(u16, "u16", "h")
#undef ACCESS
// PTX has no registers of 8 bits: a byte travels in one of 16.
template <u32 OFF> DEVICE void load(u8 &v, u64 p) {
    u16 w;
    asm volatile("ld.global.cs.u8 %0, [%1+%2];" : "=h"(w) : "l"(p), "n"(OFF) : "memory");
    v = (u8)w;
}
template <u32 OFF> DEVICE void store(u64 p, const u8 &v) {
    asm volatile("st.global.cs.u8 [%0+%1], %2;" ::"l"(p), "n"(OFF), "h"((u16)v) : "memory");
}

// Where descriptors are. Those in global memory do not change while a kernel runs, so the read-only cache may hold them.
enum From : u32 { STABLE, SHARED };

template <From FROM = STABLE> DEVICE u64 desc(u64 p) {
    u64 v;
    if (FROM == STABLE)
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(p));
    else
        v = *(const u64 *)p;
    return v;
}
template <From FROM = STABLE> DEVICE u32 desc32(u64 p) {
    u32 v;
    if (FROM == STABLE)
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    else
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// mix64 is device.Mix64.
DEVICE u64 mix64(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}
