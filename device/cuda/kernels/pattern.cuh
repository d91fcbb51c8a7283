// The kernels that fill pages with a test pattern and check it.
#pragma once

#include "paged.cuh"

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
    const Units<PLANE> units = Units<PLANE>::make(planes, nplanes, npairs, lane);
    for (u64 u = warp_id(); u < units.count(); u += warp_count()) {
        const Unit unit = units.at(u);
        const Plane pl = units.plane(unit);
        const u64 bytes = pl.part(unit);
        if (bytes == 0)
            continue;
        const Pattern t = pattern_at(unit, pl, pairs, seeds);
        for (u64 o = lane * 8; o < bytes; o += LANES * 8) {
            u64 w = mix64(t.word + o / 8);
            const u64 left = bytes - o;
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
    const Units<PLANE> units = Units<PLANE>::make(planes, nplanes, npairs, lane);
    for (u64 u = warp_id(); u < units.count(); u += warp_count()) {
        const Unit unit = units.at(u);
        const Plane pl = units.plane(unit);
        const u64 bytes = pl.part(unit);
        if (bytes == 0)
            continue;
        const Pattern t = pattern_at(unit, pl, pairs, seeds);
        u32 wrong = 0;
        for (u64 o = lane * 8; o < bytes; o += LANES * 8) {
            u64 want = mix64(t.word + o / 8);
            const u64 left = bytes - o;
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
            wrong += shuffle_xor(wrong, step);
        // The counters are in host memory, where this is atomic among the GPU's threads only: the host looks later.
        if (lane == 0 && wrong != 0)
            asm volatile("red.global.add.u64 [%0], %1;" ::"l"(counts + (u64)t.index * 8), "l"((u64)wrong) : "memory");
    }
}
