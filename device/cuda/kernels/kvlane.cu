// The kernels named in device/kernel.go that every GPU has. clang alone regenerates the PTX (generate.sh).

// 512 threads, and registers for two such thread blocks an SM: beside the kernels of an engine a copy must not need a whole SM.
#define KERNEL extern "C" __attribute__((global)) __attribute__((launch_bounds(512, 2))) void

// Sums take more registers than that: one thread block an SM.
#define KERNEL_SUM extern "C" __attribute__((global)) __attribute__((launch_bounds(512, 1))) void

#include "copy.cuh"
#include "paged.cuh"
#include "parts.cuh"
#include "pattern.cuh"

KERNEL kvlane_copy_list(u64 descs, u64 count) { copy_all<false, UNROLL>(List<STABLE>{descs, 0}, count, whole_grid()); }

KERNEL_SUM kvlane_copy_list_sum(u64 descs, u64 count, u64 sums) { copy_all<true, UNROLL>(List<STABLE>{descs, sums}, count, whole_grid()); }

KERNEL kvlane_copy_paged(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 slots, u64 slot_stride, u64 direction) {
    const auto units = Units<PLANE>::make(planes, nplanes, npairs, lane_id());
    copy_all<false, UNROLL>(Paged<PLANE>{units, pairs, slots, slot_stride, direction == 1, 0}, units.count(), whole_grid());
}

KERNEL_SUM kvlane_copy_paged_sum(u64 planes, u64 nplanes, u64 pairs, u64 npairs, u64 slots, u64 slot_stride, u64 direction, u64 sums) {
    const auto units = Units<PLANE_SUM>::make(planes, nplanes, npairs, lane_id());
    copy_all<true, UNROLL>(Paged<PLANE_SUM>{units, pairs, slots, slot_stride, direction == 1, sums}, units.count(), whole_grid());
}

KERNEL kvlane_copy_parts(u64 parts, u64 nparts, u64 direction, u64 done) { copy_parts<false, PLANE>(parts, nparts, direction, done); }

KERNEL_SUM kvlane_copy_parts_sum(u64 parts, u64 nparts, u64 direction, u64 done) { copy_parts<true, PLANE_SUM>(parts, nparts, direction, done); }
