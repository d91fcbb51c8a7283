// The resident kernel: the protocol is in device/resident.go.
//
// One batch costs: a poll that is on its way when the entry is written, and the one after it, at a round trip of the bus
// each; the reading of what is on the host's side, another; one fence; and the way of the word that says done. So an entry
// is one request, and the fence is one thread's.
#pragma once

#include "paged.cuh"

// A resident thread block has an SM for itself where others are full: registers are there for the taking.
#define KERNEL_RESIDENT extern "C" __attribute__((global)) __attribute__((launch_bounds(512, 1))) void

enum : u32 { RESIDENT_UNROLL = 8 };
enum : u32 { ENTRY_WORDS = 16, ENTRY_BYTES = 128 };
enum : u64 { OP_COPY = 1, OP_LIST = 2, OP_PAGED = 3, OP_STOP = 4 };
enum : u32 { CONTROL_NEXT = 0, CONTROL_RING = 8, CONTROL_DEPTH = 16, CONTROL_DONE = 128, CONTROL_EXITED = 136 };
enum : u32 { CLOCK_EVERY = 8 }; // polls between two looks at the clock

DEVICE u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
// An acquire also drops what the SM has cached of memory that others write.
DEVICE u64 load_acquire(u64 p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void store_release(u64 p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEVICE void all_threads() { asm volatile("bar.sync 0;" ::: "memory"); }

// Polls is what one warp knows of the time that is left.
struct Polls {
    u64 idle, lease_end;

    INLINE Polls(u64 idle, u64 lease) : idle(idle), lease_end(now() + lease) {}

    // take waits for entry n, at address at, and returns its word of this lane. It returns false when the worker has to
    // leave. The clock is read while a poll is on its way: at the first, and then every CLOCK_EVERY.
    INLINE bool take(u64 at, u64 n, u32 lane, u64 &word) {
        u64 idle_end = 0;
        for (u32 count = 0;; count++) {
            word = 0;
            if (lane < ENTRY_WORDS)
                word = load_acquire(at + lane * 8);
            u64 t = 0;
            if (count % CLOCK_EVERY == 0) {
                t = shuffle(now(), 0);
                if (count == 0)
                    idle_end = t + idle;
                if (t >= lease_end)
                    return false;
            }
            if (shuffle(word, 0) == n) {
                u64 sum = lane < ENTRY_WORDS - 1 ? mix64(word + 16 * n + lane) : 0;
                for (u32 step = ENTRY_WORDS / 2; step > 0; step /= 2)
                    sum += shuffle_xor(sum, step);
                if (shuffle(sum, 0) == shuffle(word, ENTRY_WORDS - 1))
                    return true;
            }
            if (t >= idle_end)
                return false;
        }
    }
};

// Copies the pieces of an OP_COPY entry, each by as many warps, in whole requests of a warp. Divisions, which would take
// as long as a tenth of the copy, are by powers of two: three pieces leave a quarter of the sixteen warps idle.
DEVICE void copy_inline(const u64 *entry, const Team &team, u32 lane) {
    const u32 pieces = (u32)entry[14], warp = (u32)team.warp;
    const u32 log = pieces == 1 ? 4 : pieces == 2 ? 3 : 2;
    const u32 i = warp >> log, part = warp - (i << log);
    if (i >= pieces)
        return;
    const u64 n = entry[4 + 3 * i];
    const u64 share = (((n - 1) >> log) / 512 + 1) * 512; // n is 1 or more, or nothing is below n
    const u64 off = part * share;
    if (off < n)
        copy<RESIDENT_UNROLL>(entry[2 + 3 * i] + off, entry[3 + 3 * i] + off, n - off < share ? n - off : share, lane);
}

DEVICE bool carry_out(const u64 *entry, const Team &team, u32 lane) {
    switch (entry[1]) {
    case OP_COPY:
        if (entry[14] < 1 || entry[14] > 4)
            return false;
        copy_inline(entry, team, lane);
        return true;
    case OP_LIST:
        copy_all<false, RESIDENT_UNROLL>(List<false>{entry[2], 0}, entry[3], team);
        return true;
    case OP_PAGED: {
        const auto units = Units<PLANE, false>::make(entry[2], entry[3], entry[5], lane);
        copy_all<false, RESIDENT_UNROLL>(Paged<PLANE, false>{units, entry[4], entry[6], entry[7], entry[8] == 1, 0}, units.count(), team);
        return true;
    }
    case OP_STOP:
        return true;
    }
    return false;
}

KERNEL_RESIDENT kvlane_resident(u64 control, u64 stride, u64 generation, u64 idle, u64 lease) {
    static __attribute__((shared)) u64 entry[ENTRY_WORDS];
    static __attribute__((shared)) u32 taken;
    const u32 lane = lane_id(), thread = __nvvm_read_ptx_sreg_tid_x();
    const Team team{thread / LANES, __nvvm_read_ptx_sreg_ntid_x() / LANES};
    const u64 mine = control + __nvvm_read_ptx_sreg_ctaid_x() * stride;
    Polls polls(idle, lease);
    u64 next = load_acquire(mine + CONTROL_NEXT);
    const u64 ring = load_acquire(mine + CONTROL_RING), last = load_acquire(mine + CONTROL_DEPTH) - 1;
    for (;;) {
        if (team.warp == 0) {
            u64 word;
            const bool ok = polls.take(ring + (next & last) * ENTRY_BYTES, next, lane, word);
            if (lane < ENTRY_WORDS)
                entry[lane] = word;
            if (lane == 0)
                taken = ok;
        }
        all_threads();
        const bool stay = taken && carry_out(entry, team, lane);
        const bool stop = entry[1] == OP_STOP;
        all_threads();
        // One fence for all that the thread block wrote: the barrier puts their writes before this thread's release.
        if (stay && thread == 0)
            store_release(mine + CONTROL_DONE, next);
        if (!stay || stop)
            break;
        next++;
    }
    if (thread == 0)
        store_release(mine + CONTROL_EXITED, generation);
}
