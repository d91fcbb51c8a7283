// XXH3-64 (Collet; xxHash 0.8, doc/xxhash_spec.md), seed 0 and the default secret, of a leaf of 4096 bytes, by the warp that
// copies it. A leaf is four blocks of sixteen stripes of 64 bytes. What a stripe adds to the eight accumulators does not
// depend on them, so lanes take what they have in hand and the sums over a block are made by shuffles; only the scramble
// between blocks is one after the other, on eight lanes.
#pragma once

#include "warp.cuh"

enum : u32 { LEAF = 4096, LEAF_ROUNDS = LEAF / (LANES * 16) };
enum : u64 { PRIME32_1 = 0x9e3779b1, PRIME64_1 = 0x9e3779b185ebca87, PRIME_AVALANCHE = 0x165667919e3779f9 };

// The default secret as words from byte 0 on, from byte 121 on (the last stripe's), from byte 11 on (the merge's), and the
// accumulators' start.
enum : u32 { SECRET_SCRAMBLE = 16, SECRET_LAST = 24, SECRET_MERGE = 32, ACC_START = 40 };
static __attribute__((device)) const u64 xxh3_words[48] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull,
    0xea647378d9c97e9full, 0xc5c3ebd33483acc5ull, 0x17eb6313faffa081ull, 0xd349daf0b751dd0dull,
    0x2b9e68d429265516ull, 0x8ffca1477d58be16ull, 0x45ce31d07ad1b8f8ull, 0xaf280416958f3acbull,
    0x6dd4de1cad21f72cull, 0xa44072db979083e9ull, 0xe679cb1f67b3b7a4ull, 0xd05a8278e5c0cc4eull,
    0x4608b82172ffcc7dull, 0x9035e08e2443f774ull, 0x52283c4c263a81e6ull, 0x65d088cb00c391bbull,
    0x00000000c2b2ae3dull, 0x9e3779b185ebca87ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull,
    0x85ebca77c2b2ae63ull, 0x0000000085ebca77ull, 0x27d4eb2f165667c5ull, 0x000000009e3779b1ull,
};

DEVICE u64 xxh3_word(u32 i) { return desc((u64)&xxh3_words[i]); }

// LeafSum is a lane's share of a leaf's sum. Round k of a leaf brings a lane the 16 bytes at 512*k + 16*lane: of stripe
// 8*(k%2) + lane/4 of block k/2, those for accumulators 2*(lane%4) and the next.
struct LeafSum {
    u64 half[2]; // of two blocks each: lane's bits 4 and 3 say which block and whether the even accumulator or the odd

    INLINE static u64 product(u64 key) { return (u64)(u32)key * (u32)(key >> 32); }

    // What 16 bytes of a stripe add; word is that of the secret, which moves on by one a stripe.
    INLINE static void stripe(const V16 &v, u32 word, u64 &even, u64 &odd) {
        const u64 x = (u64)v.b << 32 | v.a, y = (u64)v.d << 32 | v.c;
        even += product(x ^ xxh3_word(word)) + y;
        odd += product(y ^ xxh3_word(word + 1)) + x;
    }
    // Sums two lanes' values of two kinds: the lane with the bit of mask set gets the second kind.
    INLINE static u64 exchange(u64 first, u64 second, u32 mask, u32 lane) {
        const bool up = (lane & mask) != 0;
        return (up ? second : first) + shuffle_xor(up ? first : second, mask);
    }

    // Adds rounds 4*H to 4*H+3.
    template <u32 H> INLINE void add(const V16 *v, u32 lane) {
        const u32 word = lane / 4 + 2 * (lane % 4);
        const u32 last = H == 1 && lane >= 28 ? SECRET_LAST + 2 * (lane % 4) : word + 8;
        u64 even[2] = {}, odd[2] = {};
        stripe(v[0], word, even[0], odd[0]);
        stripe(v[1], word + 8, even[0], odd[0]);
        stripe(v[2], word, even[1], odd[1]);
        stripe(v[3], last, even[1], odd[1]);
        const u64 a = exchange(even[0], even[1], 16, lane), b = exchange(odd[0], odd[1], 16, lane);
        const u64 c = exchange(a, b, 8, lane);
        half[H] = c + shuffle_xor(c, 4);
    }

    // The sum, in every lane.
    INLINE u64 finish(u32 lane) const {
        const u32 i = lane % 8; // this lane's accumulator
        const u32 from = 8 * (i % 2) + i / 2;
        const u64 scramble = xxh3_word(SECRET_SCRAMBLE + i);
        u64 acc = xxh3_word(ACC_START + i) + shuffle(half[0], from);
        acc = (acc ^ acc >> 47 ^ scramble) * PRIME32_1 + shuffle(half[0], from + 16);
        acc = (acc ^ acc >> 47 ^ scramble) * PRIME32_1 + shuffle(half[1], from);
        acc = (acc ^ acc >> 47 ^ scramble) * PRIME32_1 + shuffle(half[1], from + 16);
        const u64 x = acc ^ xxh3_word(SECRET_MERGE + i), y = shuffle_xor(x, 1);
        u64 sum = x * y ^ __nvvm_mulhi_ull(x, y); // equal in both lanes of a pair
        sum += shuffle_xor(sum, 2);
        sum += shuffle_xor(sum, 4);
        sum += LEAF * PRIME64_1;
        sum = (sum ^ sum >> 37) * PRIME_AVALANCHE;
        return sum ^ sum >> 32;
    }
};
