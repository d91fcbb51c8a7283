// Parts: several paged copies in one launch, one after the other, that tells the host of each as soon as it has landed. A launch
// has to wait for multiprocessors, beside other work for long; what tells of every part by a launch of its own waits as often.
#pragma once

#include "paged.cuh"

enum : u32 { PART = 56, MOST_PARTS = 256 };

// fence has all that this thread has written before seen by the host before what it writes afterwards.
DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

DEVICE void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

// count_in adds one to a word of shared memory and returns what it was.
DEVICE u32 count_in(u32 *word) { return __nvvm_atom_add_gen_i((int *)word, 1); }

// copy_parts copies the shares that this thread block has of nparts parts. SIZE is that of a plane's descriptor. When the last
// warp of the block has copied its share of part p, word p*blocks + block of done becomes 1.
template <bool SUMS, u32 SIZE> DEVICE void copy_parts(u64 parts, u64 nparts, u64 direction, u64 done) {
    static __attribute__((shared)) u32 warps[MOST_PARTS]; // that have copied their share of each part
    const u32 thread = __nvvm_read_ptx_sreg_tid_x(), threads = __nvvm_read_ptx_sreg_ntid_x();
    const u32 block = __nvvm_read_ptx_sreg_ctaid_x(), blocks = __nvvm_read_ptx_sreg_nctaid_x();
    for (u32 i = thread; i < MOST_PARTS; i += threads)
        warps[i] = 0;
    block_barrier();
    for (u32 p = 0; p < nparts; p++) {
        const u64 d = parts + p * PART;
        const auto units = Units<SIZE>::make(desc(d), desc(d + 8), desc(d + 24), lane_id());
        const Paged<SIZE> part{units, desc(d + 16), desc(d + 32), desc(d + 40), direction == 1, SUMS ? desc(d + 48) : 0};
        copy_all<SUMS, UNROLL>(part, units.count(), whole_grid());
        if (done == 0)
            continue;
        fence();
        all_lanes(true);
        if (lane_id() == 0 && count_in(&warps[p]) == threads / LANES - 1) {
            fence();
            store<0>(done + 8 * (p * blocks + block), (u64)1);
        }
    }
}
