// The kernels named in device/kernel.go. They are compiled without CUDA's headers, so that clang alone regenerates the
// PTX (generate.sh): what CUDA C would take from them is declared here.
//
// Pieces are copied by warps, directly between GPU memory and pinned host memory: what limits a copy over PCIe is the
// number of bytes in flight, so a warp issues UNROLL independent loads of 16 bytes a lane before it stores the first.
// Data is touched once: its loads and stores are streaming (.cs), so that they do not evict the engine's working set
// from L2; what is read again and again, descriptors, goes through the read-only cache (.nc).

// 512 threads, and registers for two such thread blocks an SM: beside the kernels of an engine a copy must not need a whole SM.
#define KERNEL extern "C" __attribute__((global)) __attribute__((launch_bounds(512, 2))) void
#define INLINE __attribute__((device)) __attribute__((always_inline)) inline
#define DEVICE static INLINE

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum : u32 { LANES = 32, UNROLL = 8 };
enum : u64 { UNIT = 16 << 10 }; // the most bytes of a plane that a warp takes at a time: large planes are shared
enum : u32 { ALL = 0xffffffff };

DEVICE u32 lane_id() { return __nvvm_read_ptx_sreg_tid_x() % LANES; }

// Neighbouring work goes to different thread blocks, so that a small batch too uses the links of several SMs.
DEVICE u64 warp_id() {
    return (u64)(__nvvm_read_ptx_sreg_tid_x() / LANES) * __nvvm_read_ptx_sreg_nctaid_x() + __nvvm_read_ptx_sreg_ctaid_x();
}
DEVICE u64 warp_count() { return (u64)(__nvvm_read_ptx_sreg_ntid_x() / LANES) * __nvvm_read_ptx_sreg_nctaid_x(); }

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

// Round is UNROLL accesses of each lane, LANES values apart; K counts down to the first.
template <class V, u32 K = UNROLL> struct Round {
    enum : u32 { OFF = (K - 1) * LANES * sizeof(V) };
    INLINE static void load_all(V *v, u64 p) {
        Round<V, K - 1>::load_all(v, p);
        load<OFF>(v[K - 1], p);
    }
    INLINE static void store_all(u64 p, const V *v) {
        Round<V, K - 1>::store_all(p, v);
        store<OFF>(p, v[K - 1]);
    }
    // The first `left` of the lane's values, and no more, counted in steps of LANES.
    INLINE static void load_some(V *v, u64 p, u32 left) {
        Round<V, K - 1>::load_some(v, p, left);
        if ((K - 1) * LANES < left)
            load<OFF>(v[K - 1], p);
    }
    INLINE static void store_some(u64 p, const V *v, u32 left) {
        Round<V, K - 1>::store_some(p, v, left);
        if ((K - 1) * LANES < left)
            store<OFF>(p, v[K - 1]);
    }
};
template <class V> struct Round<V, 0> {
    INLINE static void load_all(V *, u64) {}
    INLINE static void store_all(u64, const V *) {}
    INLINE static void load_some(V *, u64, u32) {}
    INLINE static void store_some(u64, const V *, u32) {}
};

DEVICE u64 desc(u64 p) {
    u64 v;
    asm("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(p));
    return v;
}
DEVICE u32 desc32(u64 p) {
    u32 v;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// copy_as copies n bytes with accesses of the width of V; dst and src are equal modulo that width. The bytes before the
// first and after the last whole V are fewer than lanes: one each.
template <class V> DEVICE void copy_as(u64 dst, u64 src, u64 n, u32 lane) {
    const u64 width = sizeof(V);
    u64 head = -dst & (width - 1);
    if (head > n)
        head = n;
    const u64 body = (n - head) / width;
    const u64 tail = head + body * width;
    if (width > 1) {
        u8 b;
        if (lane < head) {
            load<0>(b, src + lane);
            store<0>(dst + lane, b);
        }
        if (lane < n - tail) {
            load<0>(b, src + tail + lane);
            store<0>(dst + tail + lane, b);
        }
    }
    src += head + lane * width;
    dst += head + lane * width;
    u64 left = body;
    for (; left >= LANES * UNROLL; left -= LANES * UNROLL) {
        V v[UNROLL];
        Round<V>::load_all(v, src);
        Round<V>::store_all(dst, v);
        src += LANES * UNROLL * width;
        dst += LANES * UNROLL * width;
    }
    if (lane < left) {
        // Set first: values that only some paths define would be live, in registers, over the whole kernel.
        V v[UNROLL] = {};
        Round<V>::load_some(v, src, (u32)left - lane);
        Round<V>::store_some(dst, v, (u32)left - lane);
    }
}

// copy copies n bytes by one warp, with the widest accesses that the alignment of dst and src to each other allows.
DEVICE void copy(u64 dst, u64 src, u64 n, u32 lane) {
    const u64 skew = dst ^ src;
    if ((skew & 15) == 0)
        copy_as<V16>(dst, src, n, lane);
    else if ((skew & 7) == 0)
        copy_as<u64>(dst, src, n, lane);
    else if ((skew & 3) == 0)
        copy_as<u32>(dst, src, n, lane);
    else if ((skew & 1) == 0)
        copy_as<u16>(dst, src, n, lane);
    else
        copy_as<u8>(dst, src, n, lane);
}

KERNEL kvlane_copy_list(u64 descs, u64 count) {
    const u32 lane = lane_id();
    for (u64 i = warp_id(); i < count; i += warp_count()) {
        const u64 d = descs + i * 24;
        copy(desc(d), desc(d + 8), desc(d + 16), lane);
    }
}

struct Plane {
    u64 base, stride, bytes, slot_off;
};

DEVICE Plane plane_at(u64 planes, u64 p) {
    const u64 d = planes + p * 32;
    return Plane{desc(d), desc(d + 8), desc(d + 16), desc(d + 24)};
}

// Unit is at most UNIT bytes of one plane of one page.
struct Unit {
    u64 plane, pair, off, bytes;
};

// Units numbers the units of planes x pairs. Every plane counts as many as the largest: shorter ones leave some empty,
// which costs a descriptor's look and keeps the numbering a division.
struct Units {
    u64 planes, nplanes, npairs;
    u32 chunks;

    INLINE static Units make(u64 planes, u64 nplanes, u64 npairs, u32 lane) {
        u32 chunks = 0;
        for (u64 p = lane; p < nplanes; p += LANES) {
            const u32 c = (u32)((desc(planes + p * 32 + 16) + UNIT - 1) / UNIT);
            chunks = c > chunks ? c : chunks;
        }
        for (u32 step = LANES / 2; step > 0; step /= 2) {
            const u32 c = (u32)__nvvm_shfl_sync_bfly_i32(ALL, (int)chunks, (int)step, LANES - 1);
            chunks = c > chunks ? c : chunks;
        }
        return Units{planes, nplanes, npairs, chunks};
    }
    INLINE u64 count() const { return npairs * nplanes * chunks; }
    INLINE bool at(u64 u, Unit &unit, Plane &pl) const {
        const u64 q = u / chunks;
        unit.off = (u % chunks) * UNIT;
        unit.pair = q / nplanes;
        unit.plane = q % nplanes;
        pl = plane_at(planes, unit.plane);
        if (unit.off >= pl.bytes)
            return false;
        unit.bytes = pl.bytes - unit.off < UNIT ? pl.bytes - unit.off : (u64)UNIT;
        return true;
    }
};

KERNEL kvlane_copy_paged(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 slots, u64 slot_stride, u64 to_slots) {
    const u32 lane = lane_id();
    const Units units = Units::make(planes, nplanes, npairs, lane);
    for (u64 u = warp_id(); u < units.count(); u += warp_count()) {
        Unit unit;
        Plane pl;
        if (!units.at(u, unit, pl))
            continue;
        const u64 page = pl.base + desc32(pairs + unit.pair * 8) * pl.stride + unit.off;
        const u64 slot = slots + desc32(pairs + unit.pair * 8 + 4) * slot_stride + pl.slot_off + unit.off;
        copy(to_slots == 1 ? slot : page, to_slots == 1 ? page : slot, unit.bytes, lane);
    }
}

// mix64 is device.Mix64.
DEVICE u64 mix64(u64 x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Pattern is the page and the first word of the pattern that a unit stands for.
struct Pattern {
    u64 page, word;
    u32 index;
};

DEVICE Pattern pattern_at(const Unit &unit, const Plane &pl, u64 pairs, u64 seeds) {
    Pattern t;
    t.page = pl.base + desc32(pairs + unit.pair * 8) * pl.stride + unit.off;
    t.index = desc32(pairs + unit.pair * 8 + 4);
    t.word = desc(seeds + (u64)t.index * 8) + (unit.plane << 40) + unit.off / 8;
    return t;
}

KERNEL kvlane_pattern_fill(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 seeds) {
    const u32 lane = lane_id();
    const Units units = Units::make(planes, nplanes, npairs, lane);
    for (u64 u = warp_id(); u < units.count(); u += warp_count()) {
        Unit unit;
        Plane pl;
        if (!units.at(u, unit, pl))
            continue;
        const Pattern t = pattern_at(unit, pl, pairs, seeds);
        for (u64 o = lane * 8; o < unit.bytes; o += LANES * 8) {
            u64 w = mix64(t.word + o / 8);
            const u64 left = unit.bytes - o;
            if (left >= 8 && (t.page & 7) == 0) {
                store<0>(t.page + o, w);
                continue;
            }
            for (u64 b = 0; b < 8 && b < left; b++, w >>= 8)
                store<0>(t.page + o + b, (u8)w);
        }
    }
}

KERNEL kvlane_pattern_check(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 seeds, u64 counts) {
    const u32 lane = lane_id();
    const Units units = Units::make(planes, nplanes, npairs, lane);
    for (u64 u = warp_id(); u < units.count(); u += warp_count()) {
        Unit unit;
        Plane pl;
        if (!units.at(u, unit, pl))
            continue;
        const Pattern t = pattern_at(unit, pl, pairs, seeds);
        u32 wrong = 0;
        for (u64 o = lane * 8; o < unit.bytes; o += LANES * 8) {
            u64 want = mix64(t.word + o / 8);
            const u64 left = unit.bytes - o;
            if (left >= 8 && (t.page & 7) == 0) {
                u64 got;
                load<0>(got, t.page + o);
                for (u64 diff = got ^ want; diff != 0; diff >>= 8)
                    wrong += (diff & 0xff) != 0;
                continue;
            }
            for (u64 b = 0; b < 8 && b < left; b++, want >>= 8) {
                u8 got;
                load<0>(got, t.page + o + b);
                wrong += got != (u8)want;
            }
        }
        for (u32 step = LANES / 2; step > 0; step /= 2)
            wrong += (u32)__nvvm_shfl_sync_bfly_i32(ALL, (int)wrong, (int)step, LANES - 1);
        // The counters are in host memory, where this is atomic among the GPU's threads only: the host looks later.
        if (lane == 0 && wrong != 0)
            asm volatile("red.global.add.u64 [%0], %1;" ::"l"(counts + (u64)t.index * 8), "l"((u64)wrong) : "memory");
    }
}
