/* Computations on one block; included by kernels.c once for each set of instructions, as TARGET and NAME say. */

/* --- XXH3-64 of more than 240 bytes, without a seed, by the specification of xxHash 0.8 ---------------------------- */

#ifndef TW_XXH3
#define TW_XXH3
#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define STRIPE_BYTES 64
#define ROUND_STRIPES 16 /* after so many stripes, the accumulators are scrambled */

static const uint8_t SECRET[192] __attribute__((aligned(64))) = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t read64(const void *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
#endif

#ifdef VECTOR_BYTES /* the eight accumulators stay in registers */
#define PARTS (STRIPE_BYTES / VECTOR_BYTES)
TARGET static inline __attribute__((always_inline)) void NAME(add_stripe)(VECTOR *acc, const uint8_t *data,
                                                                          const uint8_t *secret) {
    for (int i = 0; i < PARTS; i++) {
        __builtin_prefetch(data + 1024 + i * VECTOR_BYTES);
        VECTOR value = LOAD(data + i * VECTOR_BYTES), key = value ^ LOAD(secret + i * VECTOR_BYTES);
        acc[i] += SWAP(value) + MULTIPLY_LOW(key, key >> 32);
    }
}

TARGET static inline void NAME(accumulate)(uint64_t *sums, const uint8_t *data, size_t stripes) {
    VECTOR acc[PARTS], prime = SET(PRIME32_1);
    for (int i = 0; i < PARTS; i++) acc[i] = LOAD((uint8_t *)sums + i * VECTOR_BYTES);
    for (; stripes >= ROUND_STRIPES; stripes -= ROUND_STRIPES) {
#pragma GCC unroll 4
        for (int n = 0; n < ROUND_STRIPES; n++, data += STRIPE_BYTES) NAME(add_stripe)(acc, data, SECRET + 8 * n);
        for (int i = 0; i < PARTS; i++) {
            VECTOR mixed = acc[i] ^ acc[i] >> 47 ^ LOAD(SECRET + 128 + i * VECTOR_BYTES);
            acc[i] = MULTIPLY_LOW(mixed, prime) + (MULTIPLY_LOW(mixed >> 32, prime) << 32);
        }
    }
    for (size_t n = 0; n < stripes; n++, data += STRIPE_BYTES) NAME(add_stripe)(acc, data, SECRET + 8 * n);
    memcpy(sums, acc, sizeof acc);
}
#undef PARTS
#else
static inline void NAME(accumulate)(uint64_t *acc, const uint8_t *data, size_t stripes) {
    for (size_t n = 0; n < stripes; n++, data += STRIPE_BYTES) {
        const uint8_t *secret = SECRET + 8 * (n % ROUND_STRIPES);
        for (int i = 0; i < 8; i++) {
            uint64_t key = read64(data + 8 * i) ^ read64(secret + 8 * i);
            acc[i] += read64(data + 8 * (i ^ 1)) + (key & 0xFFFFFFFFu) * (key >> 32);
        }
        if (n % ROUND_STRIPES == ROUND_STRIPES - 1)
            for (int i = 0; i < 8; i++) acc[i] = (acc[i] ^ acc[i] >> 47 ^ read64(SECRET + 128 + 8 * i)) * PRIME32_1;
    }
}
#endif

TARGET static uint64_t NAME(hash_long)(const uint8_t *data, size_t nbytes) {
    uint64_t acc[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const uint8_t *last = data + nbytes - STRIPE_BYTES; /* it may overlap the stripe before it */
    NAME(accumulate)(acc, data, (nbytes - 1) / STRIPE_BYTES);
    for (int i = 0; i < 8; i++) {
        uint64_t key = read64(last + 8 * i) ^ read64(SECRET + 121 + 8 * i);
        acc[i] += read64(last + 8 * (i ^ 1)) + (key & 0xFFFFFFFFu) * (key >> 32);
    }
    uint64_t hash = nbytes * PRIME64_1;
    for (int i = 0; i < 4; i++)
        hash += multiply_fold(acc[2 * i] ^ read64(SECRET + 11 + 16 * i), acc[2 * i + 1] ^ read64(SECRET + 19 + 16 * i));
    hash = (hash ^ hash >> 37) * 0x165667919E3779F9u;
    return hash ^ hash >> 32;
}

/* --- sums ---------------------------------------------------------------------------------------------------------- */

#ifndef TW_ADD
#define TW_ADD
#define ADD_EACH(TYPE, SUM)                                                                                         \
    do {                                                                                                            \
        const TYPE *first = (const TYPE *)(add->first + start), *came = (const TYPE *)block;                        \
        TYPE *out = (TYPE *)(add->out + start);                                                                     \
        INDEPENDENT for (size_t i = 0; i < nbytes / sizeof(TYPE); i++) out[i] = SUM;                                \
    } while (0)

#define ADD_FLOATS(TYPE)                                                                                            \
    do {                                                                                                            \
        TYPE own = (TYPE)add->own, weight = (TYPE)add->weight, scale = (TYPE)add->scale;                            \
        if (own == 1 && weight == 1 && scale == 1)                                                                  \
            ADD_EACH(TYPE, first[i] + came[i]);                                                                     \
        else                                                                                                        \
            ADD_EACH(TYPE, (first[i] * own + came[i] * weight) * scale);                                            \
    } while (0)
#endif

TARGET static void NAME(add_block)(const struct addition *add, const uint8_t *block, size_t start, size_t nbytes) {
    switch (add->kind) {
    case FLOAT32: ADD_FLOATS(float); break;
    case FLOAT64: ADD_FLOATS(double); break;
    case INT32: ADD_EACH(uint32_t, first[i] + came[i]); break; /* sums wrap around, as in numpy */
    case INT64: ADD_EACH(uint64_t, first[i] + came[i]); break;
    }
}
