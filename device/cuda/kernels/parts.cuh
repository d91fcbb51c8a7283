// Parts: several paged copies in one launch, one after the other, that tells the host of each as soon as it has landed. A launch
// has to wait for multiprocessors, beside other work for long; what tells of every part by a launch of its own waits as often.
#pragma once

#include "paged.cuh"

// What is read for a part before its first byte is on its way would keep the bus idle, so all parts and planes are read at the start.
enum : u32 { PART = 56, MOST_PARTS = 256, MOST_PLANES = 512 };

// host_fence has all that this thread has written before, and has seen written, seen by the host before what it writes afterwards. It
// waits for what is on the bus already: it is for one thread of a block.
DEVICE void host_fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// block_fence is the same for the threads of the block, and costs next to nothing.
DEVICE void block_fence() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

DEVICE void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }
DEVICE void warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// count_in adds one to a word of shared memory and returns what it was.
DEVICE u32 count_in(u32 *word) { return __nvvm_atom_add_gen_i((int *)word, 1); }

// Block is the warps of a thread block that take groups of its share of a part as they come to them: who tells the host of a part, which
// takes microseconds, leaves more of the next to the others.
struct Block {
    u64 warps; // of all blocks
    u32 *taken;
    INLINE u64 begin(u32 size) const {
        const u32 n = lane_id() == 0 ? count_in(taken) : 0;
        return ((u64)shuffle(n, 0) * __nvvm_read_ptx_sreg_nctaid_x() + __nvvm_read_ptx_sreg_ctaid_x()) * size;
    }
    INLINE u64 after(u64, u32 size) const { return begin(size); }
};

// part_source is what a part's descriptor d stands for.
template <u32 SIZE> DEVICE Paged<SIZE, SHARED> part_source(const u64 *d, const u64 *planes, bool to_slots) {
    return Paged<SIZE, SHARED>{Units<SIZE, SHARED>::make((u64)planes, d[1], d[3], lane_id()), d[2], d[4], d[5], to_slots,
                               SIZE == PLANE_SUM ? d[6] : 0};
}

// copy_parts copies the shares that this thread block has of nparts parts. SIZE is that of a plane's descriptor. When the last
// warp of the block has copied its share of part p, word p*blocks + block of done becomes 1.
template <bool SUMS, u32 SIZE> DEVICE void copy_parts(u64 parts, u64 nparts, u64 direction, u64 done) {
    static __attribute__((shared)) u64 part[MOST_PARTS][PART / 8];
    static __attribute__((shared)) u64 planes[MOST_PLANES * (PLANE_SUM / 8)]; // of all parts
    static __attribute__((shared)) u32 at[MOST_PARTS];                        // words of planes before those of each part
    static __attribute__((shared)) u32 taken[MOST_PARTS];                     // groups of each part
    static __attribute__((shared)) u32 warps[MOST_PARTS];                     // that have nothing left to do of each part
    const u32 thread = __nvvm_read_ptx_sreg_tid_x(), threads = __nvvm_read_ptx_sreg_ntid_x();
    const u32 block = __nvvm_read_ptx_sreg_ctaid_x(), blocks = __nvvm_read_ptx_sreg_nctaid_x();
    for (u32 i = thread; i < nparts * (PART / 8); i += threads)
        part[0][i] = desc(parts + i * 8);
    for (u32 i = thread; i < MOST_PARTS; i += threads)
        warps[i] = taken[i] = 0;
    block_barrier();
    if (thread == 0) { // parts that follow each other often have the same planes
        u32 used = 0;
        for (u32 p = 0; p < nparts; p++) {
            const bool same = p > 0 && part[p][0] == part[p - 1][0];
            at[p] = same ? at[p - 1] : used;
            used += same ? 0 : (u32)part[p][1] * (SIZE / 8);
        }
    }
    block_barrier();
    for (u32 p = thread / LANES; p < nparts; p += threads / LANES)
        for (u32 i = lane_id(); i < part[p][1] * (SIZE / 8); i += LANES)
            planes[at[p] + i] = desc(part[p][0] + i * 8);
    block_barrier();
    typedef Paged<SIZE, SHARED> Source;
    u64 next = 0;
    typename Source::Asked asked = {};
    // What a warp begins the next part with is on its way while it copies this one: else the bus is idle between parts.
    for (u32 p = 0; p < nparts; p++) {
        const Source source = part_source<SIZE>(part[p], &planes[at[p]], direction == 1);
        const Block team{warp_count(), &taken[p]};
        Groups<Source, Block> groups(source, source.units.count(), team);
        if (p == 0)
            groups.start();
        else
            groups.resume(next, asked);
        if (p + 1 < nparts) {
            const Source after = part_source<SIZE>(part[p + 1], &planes[at[p + 1]], direction == 1);
            const Block others{warp_count(), &taken[p + 1]};
            Groups<Source, Block> ahead(after, after.units.count(), others);
            ahead.start();
            next = ahead.first;
            asked = ahead.asked;
        }
        copy_groups<SUMS, UNROLL>(groups);
        if (done == 0)
            continue;
        warp_barrier();
        if (lane_id() != 0)
            continue;
        block_fence();
        if (count_in(&warps[p]) == threads / LANES - 1) {
            host_fence();
            store<0>(done + 8 * (p * blocks + block), (u64)1);
        }
    }
}
