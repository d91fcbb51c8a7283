// Planes, pages and slots.
#pragma once

#include "copy.cuh"

enum : u64 { UNIT = 16 << 10 }; // the most bytes of a plane that a warp takes at a time: large planes are shared

// The sizes of a plane's descriptor, without and with where its sums go.
enum : u32 { PLANE = 32, PLANE_SUM = 48 };

// Unit is at most UNIT bytes of one plane of one page, from byte off on.
struct Unit {
    u64 plane, pair, off;
};

struct Plane {
    u64 at; // of its descriptor
    u64 base, stride, bytes, slot_off;

    // The bytes of a unit of it; none if the plane is shorter.
    INLINE u64 part(const Unit &unit) const {
        if (unit.off >= bytes)
            return 0;
        return bytes - unit.off < UNIT ? bytes - unit.off : (u64)UNIT;
    }
};

// Units numbers the units of planes x pairs. Every plane counts as many as the largest: shorter ones leave some empty,
// which costs a descriptor's look and keeps the numbering a division. SIZE is that of a plane's descriptor.
template <u32 SIZE, From FROM = STABLE> struct Units {
    u64 planes, nplanes, npairs;
    u32 chunks;

    INLINE static Units make(u64 planes, u64 nplanes, u64 npairs, u32 lane) {
        u32 chunks = 0;
        for (u64 p = lane; p < nplanes; p += LANES) {
            const u32 c = (u32)((desc<FROM>(planes + p * SIZE + 16) + UNIT - 1) / UNIT);
            chunks = c > chunks ? c : chunks;
        }
        for (u32 step = LANES / 2; step > 0; step /= 2) {
            const u32 c = shuffle_xor(chunks, step);
            chunks = c > chunks ? c : chunks;
        }
        return Units{planes, nplanes, npairs, chunks};
    }
    INLINE u64 count() const { return npairs * nplanes * chunks; }
    INLINE Unit at(u64 u) const {
        const u64 q = u / chunks;
        return Unit{q % nplanes, q / nplanes, (u % chunks) * UNIT};
    }
    INLINE Plane plane(const Unit &unit) const {
        const u64 d = planes + unit.plane * SIZE;
        return Plane{d, desc<FROM>(d), desc<FROM>(d + 8), desc<FROM>(d + 16), desc<FROM>(d + 24)};
    }
};

// Paged is what a paged copy stands for; sums counts only where planes say where theirs go.
template <u32 SIZE, From FROM = STABLE> struct Paged {
    Units<SIZE, FROM> units;
    u64 pairs, slots, slot_stride;
    bool to_slots;
    u64 sums;

    // A pair's page and slot come from host memory; planes are few and soon in the cache.
    struct Asked {
        u64 pair;
    };
    INLINE Asked ask(u64 first, u32 n, u32 lane) const {
        if (lane >= n)
            return Asked{};
        return Asked{desc<FROM == SHARED ? STABLE : FROM>(pairs + units.at(first + lane).pair * 8)};
    }
    INLINE Piece piece(const Asked &a, u64 first, u32 n, u32 lane) const {
        if (lane >= n)
            return Piece{};
        const Unit unit = units.at(first + lane);
        const Plane pl = units.plane(unit);
        const u64 page = pl.base + (u32)a.pair * pl.stride + unit.off;
        const u64 slot = slots + (a.pair >> 32) * slot_stride + pl.slot_off + unit.off;
        Piece p{to_slots ? slot : page, to_slots ? page : slot, pl.part(unit), 0};
        if (SIZE == PLANE_SUM)
            p.sums = sums + 8 * (unit.pair * desc<FROM>(pl.at + 40) + desc<FROM>(pl.at + 32) + unit.off / LEAF);
        return p;
    }
};
