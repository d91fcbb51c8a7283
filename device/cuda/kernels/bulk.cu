// The bulk kernels of device/kernel.go, for compute capability 9.0: global memory -> shared memory -> global memory, both
// ways by the bulk copy engine (PTX ISA, "cp.async.bulk"), one thread a warp giving the orders.
//
// Bytes in flight lie in shared memory and cost no registers, so a warp keeps STAGES chunks of CHUNK bytes under way. A
// thread block is one warp: a launch's size is then its bytes in flight, in steps of 32 KiB.

#include "paged.cuh"

enum : u32 {
    STAGES = 8,
    PENDING = 2,  // stores that a warp does not wait for before it loads again: the other stages are loads on the way
    CHUNK = LEAF, // so that a chunk can be a leaf
};

#define KERNEL extern "C" __attribute__((global)) __attribute__((launch_bounds(32))) void
#define SHARED __attribute__((shared))

DEVICE u32 shared_address(const void *p) { return (u32)(u64)(const __attribute__((address_space(3))) void *)p; }

DEVICE void barrier_init(u32 bar) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar) : "memory"); }
DEVICE void barrier_wait(u32 bar, u32 parity) {
    u32 over;
    do {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (over == 0);
}
DEVICE void bulk_load(u32 to, u64 from, u32 n, u32 bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(n) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(n), "r"(bar)
                 : "memory");
}
DEVICE void bulk_store(u64 to, u32 from, u32 n) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(n) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all stores but the last N have read their shared memory.
template <u32 N> DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
// Waits until all stores are done.
DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
DEVICE void warp_sync() { asm volatile("bar.warp.sync -1;" ::: "memory"); }

template <u32 OFF> DEVICE void load_shared(V16 &v, u32 p) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4+%5];"
                 : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d)
                 : "r"(p), "n"(OFF)
                 : "memory");
}
template <u32 H> DEVICE void half_shared_leaf(u32 p, LeafSum &sum, u32 lane) {
    V16 v[4];
    load_shared<H * LEAF / 2>(v[0], p + lane * 16);
    load_shared<H * LEAF / 2 + LANES * 16>(v[1], p + lane * 16);
    load_shared<H * LEAF / 2 + LANES * 32>(v[2], p + lane * 16);
    load_shared<H * LEAF / 2 + LANES * 48>(v[3], p + lane * 16);
    sum.add<H>(v, lane);
}

// Pipe is a warp's chunks under way: chunk q is in stage q % STAGES. Lane s remembers where the chunk of stage s goes, and
// with SUMS where its sum does.
template <bool SUMS> struct Pipe {
    u32 data, bars, lane;
    u32 issued, stored;
    u64 dst, sums;
    u32 n;

    INLINE Pipe(u32 data, u32 bars, u32 lane) : data(data), bars(bars), lane(lane), issued(0), stored(0), dst(0), sums(0), n(0) {
        if (lane == 0) {
            for (u32 s = 0; s < STAGES; s++)
                barrier_init(bars + 8 * s);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // the copy engine sees the barriers
        }
        warp_sync();
    }
    // The oldest chunk not yet stored: waits for it and stores it.
    INLINE void retire() {
        const u32 s = stored % STAGES, at = data + s * CHUNK;
        const u64 to = shuffle(dst, s), sum_at = SUMS ? shuffle(sums, s) : 0;
        const u32 bytes = shuffle(n, s);
        if (lane == 0 || sum_at != 0)
            barrier_wait(bars + 8 * s, (stored / STAGES) & 1);
        if (lane == 0)
            bulk_store(to, at, bytes);
        if (sum_at != 0) {
            u32 fresh = lane;
            asm volatile("" : "+r"(fresh)); // see copy_leaves
            LeafSum sum;
            half_shared_leaf<0>(at, sum, fresh);
            half_shared_leaf<1>(at, sum, fresh);
            const u64 v = sum.finish(fresh);
            if (lane == 0)
                store<0>(sum_at, v);
            warp_sync(); // the stage is read: lane 0 may load into it
        }
        stored++;
    }
    // Loads a chunk. Its stage was that of chunk issued-STAGES, whose store has been read: of those since, only PENDING
    // are not waited for.
    INLINE void push(u64 to, u64 from, u32 bytes, u64 sum_at) {
        if (issued - stored == STAGES - PENDING)
            retire();
        const u32 s = issued % STAGES;
        if (lane == s) {
            dst = to;
            n = bytes;
            sums = sum_at;
        }
        if (lane == 0) {
            bulk_wait_read<PENDING>();
            bulk_load(data + s * CHUNK, from, bytes, bars + 8 * s);
        }
        issued++;
    }
    INLINE void flush() {
        while (stored != issued)
            retire();
        if (lane == 0)
            bulk_wait();
    }
};

template <bool SUMS, class Source> DEVICE void bulk_all(const Source &source, u64 count) {
    SHARED static __attribute__((aligned(128))) u8 data[STAGES * CHUNK];
    SHARED static u64 bars[STAGES];
    Groups<Source> groups(source, count, whole_grid());
    const u32 lane = groups.lane;
    Pipe<SUMS> pipe(shared_address(data), shared_address(bars), lane);
    Piece mine;
    for (u32 here; (here = groups.advance(mine)) != 0;) {
        for (u32 j = 0; j < here; j++) {
            Piece p = mine.of<SUMS>(j);
            if (!p.aligned()) {
                if (SUMS && p.sums != 0 && ((p.dst | p.src) & 15) == 0)
                    copy_leaves(p, lane); // a plane that ends oddly
                copy<1>(p.dst, p.src, p.n, lane);
                continue;
            }
            while (p.n > 0) {
                const u32 n = p.n < CHUNK ? (u32)p.n : (u32)CHUNK;
                pipe.push(p.dst, p.src, n, SUMS && n == LEAF ? p.sums : 0);
                p.dst += n;
                p.src += n;
                p.n -= n;
                p.sums += SUMS && p.sums != 0 ? 8 : 0;
            }
        }
    }
    pipe.flush();
}

KERNEL kvlane_bulk_list(u64 descs, u64 count) { bulk_all<false>(List<true>{descs, 0}, count); }

KERNEL kvlane_bulk_list_sum(u64 descs, u64 count, u64 sums) { bulk_all<true>(List<true>{descs, sums}, count); }

KERNEL kvlane_bulk_paged(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 slots, u64 slot_stride, u64 direction) {
    const auto units = Units<PLANE>::make(planes, nplanes, npairs, lane_id());
    bulk_all<false>(Paged<PLANE>{units, pairs, slots, slot_stride, direction == 1, 0}, units.count());
}

KERNEL kvlane_bulk_paged_sum(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 slots, u64 slot_stride, u64 direction, u64 sums) {
    const auto units = Units<PLANE_SUM>::make(planes, nplanes, npairs, lane_id());
    bulk_all<true>(Paged<PLANE_SUM>{units, pairs, slots, slot_stride, direction == 1, sums}, units.count());
}
