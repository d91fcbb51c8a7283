// Copying by a warp, directly between GPU memory and pinned host memory. What limits a copy over PCIe is the number of
// bytes in flight, so a warp issues several independent loads of 16 bytes a lane before it stores the first.
#pragma once

#include "warp.cuh"
#include "xxh3.cuh"

enum : u32 { UNROLL = 4 };

// Round is N accesses of each lane, LANES values apart; K counts down to the first.
template <class V, u32 K> struct Round {
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

// copy_as copies n bytes with accesses of the width of V, N a lane at a time; dst and src are equal modulo that width. The
// bytes before the first and after the last whole V are fewer than lanes: one each.
template <class V, u32 N> DEVICE void copy_as(u64 dst, u64 src, u64 n, u32 lane) {
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
    for (; left >= LANES * N; left -= LANES * N) {
        V v[N];
        Round<V, N>::load_all(v, src);
        Round<V, N>::store_all(dst, v);
        src += LANES * N * width;
        dst += LANES * N * width;
    }
    if (lane < left) {
        // Set first: values that only some paths define would be live, in registers, over the whole kernel.
        V v[N] = {};
        Round<V, N>::load_some(v, src, (u32)left - lane);
        Round<V, N>::store_some(dst, v, (u32)left - lane);
    }
}

// copy copies n bytes by one warp, with the widest accesses that the alignment of dst and src to each other allows.
template <u32 N> DEVICE void copy(u64 dst, u64 src, u64 n, u32 lane) {
    const u64 skew = dst ^ src;
    if ((skew & 15) == 0)
        copy_as<V16, N>(dst, src, n, lane);
    else if ((skew & 7) == 0)
        copy_as<u64, N>(dst, src, n, lane);
    else if ((skew & 3) == 0)
        copy_as<u32, N>(dst, src, n, lane);
    else if ((skew & 1) == 0)
        copy_as<u16, N>(dst, src, n, lane);
    else
        copy_as<u8, N>(dst, src, n, lane);
}

// Piece is n bytes to copy, and where the sums of its leaves go. Each lane of a warp holds one, of a group of up to LANES.
struct Piece {
    u64 dst, src, n, sums;
    template <bool SUMS> INLINE Piece of(u32 lane) const {
        return Piece{shuffle(dst, lane), shuffle(src, lane), shuffle(n, lane), SUMS ? shuffle(sums, lane) : 0};
    }
    INLINE bool aligned() const { return ((dst | src | n) & 15) == 0; }
};

// Half H of a leaf of p.
template <u32 H> DEVICE void half_leaf(const Piece &p, LeafSum &sum, u32 lane) {
    enum : u32 { N = LEAF_ROUNDS / 2, AT = H * LEAF / 2 };
    V16 v[N];
    Round<V16, N>::load_all(v, p.src + AT + lane * 16);
    Round<V16, N>::store_all(p.dst + AT + lane * 16, v);
    sum.add<H>(v, lane);
}

// copy_leaves copies the whole leaves of a piece aligned to 16, and stores their sums; it moves the piece on to what is left.
DEVICE void copy_leaves(Piece &p, u32 lane) {
    for (; p.n >= LEAF; p.n -= LEAF) {
        // What the sum derives from the lane is not worth registers over the whole loop: make it look new.
        asm volatile("" : "+r"(lane));
        LeafSum sum;
        half_leaf<0>(p, sum, lane);
        half_leaf<1>(p, sum, lane);
        const u64 s = sum.finish(lane);
        if (lane == 0)
            store<0>(p.sums, s);
        p.dst += LEAF;
        p.src += LEAF;
        p.sums += 8;
    }
}

// copy_packed copies the pieces of lanes 0 to count-1, all of 16*width bytes and aligned to 16: as if they were one, so
// that pieces shorter than a warp's round leave no lane idle.
template <u32 N> DEVICE void copy_packed(const Piece &mine, u32 count, u32 width, u32 lane) {
    const u32 total = count * width;
    // u / width for u < 2^16, by the reciprocal rounded up.
    const u32 reciprocal = (u32)(0xffffffffu / width) + 1;
    for (u32 base = 0; base < total; base += LANES * N) {
        V16 v[N] = {};
        u64 to[N];
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            const u32 u = base + k * LANES + lane;
            const u32 p = width == 1 ? u : (u32)(((u64)u * reciprocal) >> 32);
            const u64 off = (u64)(u - p * width) * 16;
            to[k] = shuffle(mine.dst, p) + off;
            const u64 from = shuffle(mine.src, p) + off;
            if (u < total)
                load<0>(v[k], from);
        }
#pragma unroll
        for (u32 k = 0; k < N; k++)
            if (base + k * LANES + lane < total)
                store<0>(to[k], v[k]);
    }
}

// Team is the warps that share a list, in equal shares, and which of them this is.
struct Team {
    u64 warp, warps;
    INLINE u64 begin(u32 size) const { return warp * size; }
    INLINE u64 after(u64 first, u32 size) const { return first + warps * size; }
};

// Groups are what a warp takes at a time: many pieces, so that small ones can be packed and descriptors are read by whole
// lines (one by one they take 3% of the bus away from blocks of 4 KiB); but four rounds for every warp at least, and as
// many pieces in the last as in the others: a few warps that have one more group to copy than all others do not fill the bus.
DEVICE u32 group_size(u64 pieces, u64 warps) {
    if (pieces < 8 * warps)
        return 1; // small batches do without the divisions
    u64 rounds = (pieces + LANES * warps - 1) / (LANES * warps);
    if (rounds < 4)
        rounds = 4;
    return (u32)((pieces + rounds * warps - 1) / (rounds * warps));
}

// Groups walks through the groups of one warp, from the first, which is asked for before. What a source is asked for is on the way while
// the group before is copied, and is looked at only when its turn has come.
template <class Source, class Shared = Team> struct Groups {
    const Source &source;
    const Shared &team;
    u64 count, first;
    u32 size, lane;
    typename Source::Asked asked;

    INLINE Groups(const Source &source, u64 count, const Shared &team) : source(source), team(team), count(count), lane(lane_id()) {
        size = group_size(count, team.warps);
    }
    // start asks for the first group. Or the first is one that was asked for by another such walk of the same.
    INLINE void start() {
        first = team.begin(size);
        ask();
    }
    INLINE void resume(u64 at, const typename Source::Asked &what) {
        first = at;
        asked = what;
    }
    INLINE u32 here() const { return first >= count ? 0 : count - first < size ? (u32)(count - first) : size; }
    INLINE void ask() { asked = source.ask(first, here(), lane); }
    // Makes the next group the current one: its piece of this lane. It returns how many there are, none at the end.
    INLINE u32 advance(Piece &mine) {
        const u32 n = here();
        if (n != 0) {
            mine = source.piece(asked, first, n, lane);
            first = team.after(first, size);
            ask();
        }
        return n;
    }
};

// copy_groups copies the groups of a warp, whose first has been asked for, N accesses a lane at a time, PACK where pieces are packed,
// and with SUMS makes the sums of the leaves.
template <bool SUMS, u32 N, u32 PACK = N, class Source, class Shared> DEVICE void copy_groups(Groups<Source, Shared> &groups) {
    const u32 lane = groups.lane;
    Piece mine;
    for (u32 here; (here = groups.advance(mine)) != 0;) {
        const u64 n = shuffle(mine.n, 0);
        if (!SUMS && here > 1 && n != 0 && n < PACK * LANES * 16 && all_lanes(lane >= here || (mine.n == n && mine.aligned()))) {
            copy_packed<PACK>(mine, here, (u32)n / 16, lane);
            continue;
        }
        for (u32 j = 0; j < here; j++) {
            Piece p = mine.template of<SUMS>(j);
            if (SUMS && p.sums != 0 && ((p.dst | p.src) & 15) == 0)
                copy_leaves(p, lane);
            if (!SUMS || p.n != 0)
                copy<SUMS ? 1 : N>(p.dst, p.src, p.n, lane);
        }
    }
}

// copy_all copies what source says.
template <bool SUMS, u32 N, u32 PACK = N, class Source> DEVICE void copy_all(const Source &source, u64 count, const Team &team) {
    Groups<Source> groups(source, count, team);
    groups.start();
    copy_groups<SUMS, N, PACK>(groups);
}

DEVICE Team whole_grid() { return Team{warp_id(), warp_count()}; }

// List is a list of descriptors of 24 bytes; sums is zero where none are wanted.
template <From FROM> struct List {
    u64 descs, sums;

    // Words of descriptors in the order they lie in, so that a request to host memory is a whole line.
    struct Asked {
        u64 word[3];
    };
    INLINE Asked ask(u64 first, u32 n, u32 lane) const {
        const u64 at = descs + first * 24 + lane * 8;
        Asked a = {};
#pragma unroll
        for (u32 k = 0; k < 3; k++)
            if (k * LANES + lane < 3 * n)
                a.word[k] = desc<FROM>(at + k * LANES * 8);
        return a;
    }
    // Deals the words out: lane j gets 3j to 3j+2.
    INLINE Piece piece(const Asked &a, u64 first, u32 n, u32 lane) const {
        u64 word[3];
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            const u32 w = 3 * lane + i;
            const u64 v0 = shuffle(a.word[0], w % LANES), v1 = shuffle(a.word[1], w % LANES), v2 = shuffle(a.word[2], w % LANES);
            word[i] = w < LANES ? v0 : w < 2 * LANES ? v1 : v2;
        }
        if (lane >= n)
            return Piece{};
        return Piece{word[0], word[1], word[2], sums != 0 && word[2] == LEAF ? sums + (first + lane) * 8 : 0};
    }
};
