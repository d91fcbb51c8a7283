// The resident kernel: the protocol is in device/resident.go.
//
// One batch costs: a poll that is on its way when the entry is written, and the one after it, at a round trip of the bus
// each; the reading of what is on the host's side, another; one fence; and the way of the word that says done. So an entry
// is read by one instruction, whose lines are on their way at the same time; it holds as many pieces as there are warps, so
// that none has to ask for descriptors; several polls are on their way, so that the next one is never a whole round trip
// away; and the fence is one thread's.
#pragma once

#include "paged.cuh"

// A resident thread block has an SM for itself where others are full: registers are there for the taking. Sixteen warps copy;
// the others poll, as an acquire holds up a warp until its poll is back.
#define KERNEL_RESIDENT extern "C" __attribute__((global)) __attribute__((launch_bounds(640, 1))) void
enum : u32 { COPY_WARPS = 16, COPY_THREADS = COPY_WARPS * LANES, POLL_WARPS = 4 };

enum : u32 { RESIDENT_UNROLL = 8 };
enum : u32 { ENTRY_WORDS = 2 * LANES, ENTRY_BYTES = ENTRY_WORDS * 8 };
enum : u32 { LINE_WORDS = 16, WORD_PIECES = 14, WORD_CHECK = 15, LINE_PIECES = 4, ENTRY_PIECES = 20 };
enum : u64 { OP_COPY = 1, OP_LIST = 2, OP_PAGED = 3, OP_STOP = 4 };
enum : u32 { CONTROL_NEXT = 0, CONTROL_RING = 8, CONTROL_DEPTH = 16, CONTROL_DONE = 128, CONTROL_EXITED = 136 };
enum : u32 { CLOCK_EVERY = 8 };      // polls between two looks at the clock
enum : u32 { LONGEST_TRIP = 1 << 14 }; // clocks: a poll that took longer says nothing of the next

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
DEVICE u32 clock() {
    u32 t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
    return t;
}

// The barriers of the thread block: ENTRY, where copying warps wait for a polling one that has something for them; COPIED,
// where they wait for each other; ALL_LEFT, where everybody comes in the end.
enum : u32 { ALL_LEFT = 0, ENTRY = 1, COPIED = 2 };
template <u32 WHICH> DEVICE void all_threads() { asm volatile("bar.sync %0;" ::"n"(WHICH) : "memory"); }
template <u32 WHICH, u32 THREADS> DEVICE void wait_for() { asm volatile("bar.sync %0, %1;" ::"n"(WHICH), "n"(THREADS) : "memory"); }
template <u32 WHICH, u32 THREADS> DEVICE void arrive() { asm volatile("bar.arrive %0, %1;" ::"n"(WHICH), "n"(THREADS) : "memory"); }

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

// Desk is where polling warps and copying ones meet, in shared memory. taken is the last entry that a polling warp took, or
// LEAVING; finished is the last that was carried out. While they differ nobody polls: what is asked of the bus then would
// only hold up the copy.
enum : u64 { LEAVING = ~0ull };
struct Desk {
    u64 entry[ENTRY_WORDS];
    u64 taken, finished;
};
DEVICE u32 shared(const u64 &word) { return (u32)(u64)(__attribute__((address_space(3))) const u64 *)&word; }
DEVICE u64 look(const u64 &word) {
    u64 v;
    asm volatile("ld.acquire.cta.shared.u64 %0, [%1];" : "=l"(v) : "r"(shared(word)) : "memory");
    return v;
}
DEVICE void set(u64 &word, u64 v) { asm volatile("st.release.cta.shared.u64 [%0], %1;" ::"r"(shared(word)), "l"(v) : "memory"); }

// swap makes taken next if it is last, for the warp, and reports whether it did.
DEVICE bool swap(Desk &desk, u64 last, u64 next, u32 lane) {
    u64 was = 0;
    if (lane == 0)
        asm volatile("atom.acq_rel.cta.shared.cas.b64 %0, [%1], %2, %3;" : "=l"(was) : "r"(shared(desk.taken)), "l"(last), "l"(next) : "memory");
    return shuffle(was, 0) == last;
}

// Polls is what a polling warp knows of the ring and of the time that is left.
struct Polls {
    u64 ring, last; // the ring's address, and the last of its places
    u64 idle, lease_end;
    u32 mine, all; // which polling warp this is, of how many

    // until_finished waits until nobody copies, and returns the entry that is next, or zero when the worker leaves.
    INLINE u64 until_finished(const Desk &desk) const {
        for (;;) {
            const u64 finished = look(desk.finished), taken = look(desk.taken);
            if (taken == LEAVING)
                return 0;
            if (taken == finished)
                return finished + 1;
        }
    }

    // run takes entries until the worker leaves. The clock is read while a poll is on its way: at the first for an entry, and
    // then every CLOCK_EVERY. The polls of all warps are spread over the time that one takes.
    INLINE void run(Desk &desk, u32 lane) const {
        u32 trip = 0; // clocks that a poll takes
        for (;;) {
            const u64 n = shuffle(until_finished(desk), 0);
            if (n == 0)
                return;
            const u32 begun = clock();
            while (clock() - begun < trip * mine / all) {
            }
            const u64 at = ring + (n & last) * ENTRY_BYTES + lane * 16;
            u64 idle_end = 0;
            for (u32 count = 0; shuffle(look(desk.taken), 0) == n - 1; count++) {
                const u32 sent = clock();
                Pair pair;
                pair.load_acquire(at);
                u64 t = 0;
                if (count % CLOCK_EVERY == 0) {
                    t = shuffle(now(), 0);
                    if (count == 0)
                        idle_end = t + idle;
                }
                const bool here = shuffle(pair.a, 0) == n && whole(pair, lane);
                const u32 took = clock() - sent;
                trip = took < LONGEST_TRIP ? took : (u32)LONGEST_TRIP;
                const bool leave = t >= lease_end || (!here && t >= idle_end);
                if (!leave && !here)
                    continue;
                if (swap(desk, n - 1, leave ? (u64)LEAVING : n, lane)) {
                    desk.entry[2 * lane] = pair.a;
                    desk.entry[2 * lane + 1] = pair.b;
                    arrive<ENTRY, COPY_THREADS + LANES>();
                }
                break;
            }
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
        copy_all<false, RESIDENT_UNROLL, UNROLL>(List<false>{entry[2], 0}, entry[3], team);
        return true;
    case OP_PAGED: {
        const auto units = Units<PLANE, false>::make(entry[2], entry[3], entry[5], lane);
        copy_all<false, RESIDENT_UNROLL, UNROLL>(Paged<PLANE, false>{units, entry[4], entry[6], entry[7], entry[8] == 1, 0}, units.count(), team);
        return true;
    }
    case OP_STOP:
        return true;
    }
    return false;
}

// carry_out_all does what polling warps take, from entry next on.
DEVICE void carry_out_all(Desk &desk, u64 control, u64 next, u32 lane) {
    const u32 thread = __nvvm_read_ptx_sreg_tid_x();
    const Team team{thread / LANES, COPY_WARPS};
    for (;; next++) {
        wait_for<ENTRY, COPY_THREADS + LANES>();
        if (look(desk.taken) == LEAVING)
            return;
        const bool known = carry_out(desk.entry, team, lane);
        const bool stay = known && desk.entry[1] != OP_STOP;
        wait_for<COPIED, COPY_THREADS>();
        if (thread == 0) {
            // One fence for all that the thread block wrote: the barrier puts their writes before this thread's release.
            if (known)
                store_release(control + CONTROL_DONE, next);
            if (stay)
                set(desk.finished, next);
            else
                set(desk.taken, LEAVING);
        }
        if (!stay)
            return;
    }
}

KERNEL_RESIDENT kvlane_resident(u64 control, u64 stride, u64 generation, u64 idle, u64 lease, u64 polls) {
    static __attribute__((shared)) Desk desk;
    const u32 lane = lane_id(), thread = __nvvm_read_ptx_sreg_tid_x(), warp = thread / LANES;
    const u64 lease_end = now() + lease;
    const u32 all = polls < 1 ? 1 : polls < POLL_WARPS ? (u32)polls : (u32)POLL_WARPS;
    const u64 mine = control + __nvvm_read_ptx_sreg_ctaid_x() * stride;
    const u64 next = load_acquire(mine + CONTROL_NEXT);
    if (thread == 0)
        desk.taken = desk.finished = next - 1;
    all_threads<ALL_LEFT>();
    if (warp < COPY_WARPS) {
        carry_out_all(desk, mine, next, lane);
    } else if (warp - COPY_WARPS < all) {
        const u64 ring = load_acquire(mine + CONTROL_RING), last = load_acquire(mine + CONTROL_DEPTH) - 1;
        Polls{ring, last, idle, lease_end, warp - COPY_WARPS, all}.run(desk, lane);
    }
    all_threads<ALL_LEFT>();
    if (thread == 0)
        store_release(mine + CONTROL_EXITED, generation);
}
