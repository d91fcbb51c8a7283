// The resident kernel: the protocol is in device/resident.go.
//
// One batch costs: a poll that is on its way when the entry is written, and the one after it, at a round trip of the bus
// each; the reading of what is on the host's side, another; one fence; and the way of the word that says done. So an entry
// is read by one instruction, whose lines are on their way at the same time; it holds as many pieces as there are warps, so
// that none has to ask for descriptors; and the fence is one thread's.
#pragma once

#include "paged.cuh"

// A resident thread block has an SM for itself where others are full: registers are there for the taking.
#define KERNEL_RESIDENT extern "C" __attribute__((global)) __attribute__((launch_bounds(512, 1))) void

enum : u32 { RESIDENT_UNROLL = 8 };
enum : u32 { ENTRY_WORDS = 2 * LANES, ENTRY_BYTES = ENTRY_WORDS * 8 };
enum : u32 { LINE_WORDS = 16, WORD_PIECES = 14, WORD_CHECK = 15, LINE_PIECES = 4, ENTRY_PIECES = 20 };
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

// Pair is what a lane holds of an entry: two words that follow each other, each read in one step, in no order.
struct Pair {
    u64 a, b;

    INLINE void load_acquire(u64 p) { asm volatile("ld.acquire.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory"); }
    // What pair i adds to the check; the check's own word counts as zero.
    INLINE u64 mix(u32 i) const {
        const u64 x = a + (2 * i + 1) * 0x9e3779b97f4a7c15, y = (i == WORD_CHECK / 2 ? 0 : b) ^ 0xbf58476d1ce4e5b9;
        return x * y ^ __nvvm_mulhi_ull(x, y);
    }
};

// entry_pairs is how many pairs count of an entry with so many pieces.
DEVICE u32 entry_pairs(u32 pieces) {
    if (pieces <= LINE_PIECES)
        return LINE_WORDS / 2;
    return pieces < ENTRY_PIECES ? (LINE_WORDS + 3 * (pieces - LINE_PIECES) + 1) / 2 : (u32)LANES;
}

// whole reports whether the entry that the lanes hold fits its check.
DEVICE bool whole(const Pair &mine, u32 lane) {
    const u32 pairs = entry_pairs(shuffle(mine.a < ENTRY_PIECES ? (u32)mine.a : (u32)ENTRY_PIECES, WORD_PIECES / 2));
    u64 sum = lane < pairs ? mine.mix(lane) : 0;
    if (pairs > LINE_WORDS / 2) {
        sum += shuffle_xor(sum, 16);
        sum += shuffle_xor(sum, 8);
    }
    sum += shuffle_xor(sum, 4);
    sum += shuffle_xor(sum, 2);
    sum += shuffle_xor(sum, 1);
    return all_lanes(lane != WORD_CHECK / 2 || sum == mine.b);
}

// Polls is what one warp knows of the time that is left.
struct Polls {
    u64 idle, lease_end;

    INLINE Polls(u64 idle, u64 lease) : idle(idle), lease_end(now() + lease) {}

    // take waits for entry n, at address at, and returns this lane's words of it. It returns false when the worker has to
    // leave. The clock is read while a poll is on its way: at the first, and then every CLOCK_EVERY.
    INLINE bool take(u64 at, u64 n, u32 lane, Pair &mine) {
        // What follows from the lane is not worth registers while entries are carried out: make it look new.
        asm volatile("" : "+r"(lane));
        u64 idle_end = 0;
        for (u32 count = 0;; count++) {
            mine.load_acquire(at + lane * 16);
            u64 t = 0;
            if (count % CLOCK_EVERY == 0) {
                t = shuffle(now(), 0);
                if (count == 0)
                    idle_end = t + idle;
                if (t >= lease_end)
                    return false;
            }
            if (shuffle(mine.a, 0) == n && whole(mine, lane))
                return true;
            if (t >= idle_end)
                return false;
        }
    }
};

// Copies the pieces of an OP_COPY entry, each by as many warps, in whole requests of a warp; pieces beyond the sixteenth
// come second. Divisions, which would take as long as a tenth of the copy, are by powers of two: three pieces leave a
// quarter of the sixteen warps idle.
DEVICE void copy_inline(const u64 *entry, const Team &team, u32 lane) {
    const u32 pieces = (u32)entry[WORD_PIECES], warp = (u32)team.warp;
    const u32 log = pieces == 1 ? 4 : pieces == 2 ? 3 : pieces <= 4 ? 2 : pieces <= 8 ? 1 : 0;
    for (u32 i = warp >> log; i < pieces; i += 16 >> log) {
        const u64 *piece = entry + (i < LINE_PIECES ? 2 : 4) + 3 * i;
        const u64 n = piece[2];
        const u64 share = (((n - 1) >> log) / 512 + 1) * 512; // n is 1 or more, or nothing is below n
        const u64 off = (warp & ((1u << log) - 1)) * share;
        if (off < n)
            copy<RESIDENT_UNROLL>(piece[0] + off, piece[1] + off, n - off < share ? n - off : share, lane);
    }
}

DEVICE bool carry_out(const u64 *entry, const Team &team, u32 lane) {
    switch (entry[1]) {
    case OP_COPY:
        if (entry[WORD_PIECES] < 1 || entry[WORD_PIECES] > ENTRY_PIECES)
            return false;
        copy_inline(entry, team, lane);
        return true;
    case OP_LIST:
        copy_all<false, RESIDENT_UNROLL>(List<CHANGING>{entry[2], 0}, entry[3], team);
        return true;
    case OP_PAGED: {
        const auto units = Units<PLANE, CHANGING>::make(entry[2], entry[3], entry[5], lane);
        copy_all<false, RESIDENT_UNROLL>(Paged<PLANE, CHANGING>{units, entry[4], entry[6], entry[7], entry[8] == 1, 0}, units.count(), team);
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
            Pair mine;
            const bool ok = polls.take(ring + (next & last) * ENTRY_BYTES, next, lane, mine);
            entry[2 * lane] = mine.a;
            entry[2 * lane + 1] = mine.b;
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
