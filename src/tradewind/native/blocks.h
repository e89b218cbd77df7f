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
        const TYPE own = (TYPE)add->own, weight = (TYPE)add->weight, scale = (TYPE)add->scale;                      \
        if (own == 1 && weight == 1 && scale == 1)                                                                  \
            ADD_EACH(TYPE, first[i] + came[i]);                                                                     \
        else                                                                                                        \
            ADD_EACH(TYPE, (first[i] * own + came[i] * weight) * scale);                                            \
    } while (0)
#endif

TARGET static void NAME(add_block)(const struct addition *add, const uint8_t *block, size_t start, size_t nbytes) {
    switch (add->kind) {
    case FLOAT32: ADD_FLOATS(f32); break;
    case FLOAT64: ADD_FLOATS(f64); break;
    case INT32: ADD_EACH(u32, first[i] + came[i]); break; /* sums wrap around, as in numpy */
    case INT64: ADD_EACH(u64, first[i] + came[i]); break;
    }
}

/* --- codecs (wire/codecs.py), rounding to the nearest code -------------------------------------------------------- */

#ifndef TW_CODECS
#define TW_CODECS
#define ITEMS 256              /* of a block */
#define MAGNITUDE 0x7FFFFFFFu  /* of the bits of a float */
#define INFINITE 0x7F800000u
#define SMALLEST_SCALE 0x1p-126f
#define ROUNDER 12582912.0f    /* 1.5 x 2^23: the lowest bits of this plus x are those of x, rounded to even */

struct codec {
    int row, scale_bytes, item_bits; /* items that share a scale, its size, and that of a code */
    float limit, marked_limit;       /* what the largest finite code means, also in a row that has others, too */
    float largest;                   /* the largest magnitude that scales are made for */
    uint16_t nan, inf, minus_inf;    /* codes of a row whose scale is negative */
};

static const struct codec CODECS[] = {
    [BF16] = {ITEMS, 0, 16, 0, 0, 0, 0, 0, 0},
    [FP16] = {ITEMS, 4, 16, 0, 0, 0, 0x7E00, 0x7C00, 0xFC00},
    [INT8] = {ITEMS, 4, 8, 127, 126, 0x1.fffff6p+127f, 0x80, 127, 0x81},
    [FP8] = {ITEMS, 4, 8, 448, 256, 0x1.fffff6p+127f, 0x7F, 0x7E, 0xFE},
    [INT4] = {ITEMS, 4, 4, 77, 60, 0x1.fffff6p+127f, 8, 7, 9},
    [INT4_32] = {32, 2, 4, 77, 60, 0x1.fbfffep+127f, 8, 7, 9},
};

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline size_t scales_bytes(const struct codec *codec, size_t items) {
    return codec->scale_bytes * ((items + codec->row - 1) / codec->row);
}

static inline size_t codes_bytes(const struct codec *codec, size_t items) { return (items * codec->item_bits + 7) / 8; }

/* The scale of a row with this largest magnitude, which is finite. */
static inline float scale_of(int kind, uint32_t top, int marked) {
    const struct codec *codec = &CODECS[kind];
    if (kind == FP16) { /* a power of two, so that the largest item is below 2^15; smaller than 2^-126 have no inverse */
        int exponent = top ? (int)(top >> 23) - 126 - 15 : -15;
        return float_of((uint32_t)((exponent < -126 ? -126 : exponent) + 127) << 23);
    }
    float most = float_of(top) < codec->largest ? float_of(top) : codec->largest;
    float scale = most / (marked ? codec->marked_limit : codec->limit);
    scale = scale > SMALLEST_SCALE ? scale : SMALLEST_SCALE;
    return kind == INT4_32 ? float_of((bits_of(scale) + 0xFFFFu) & 0xFFFF0000u) : scale;
}

static inline uint32_t rounded(uint32_t bits, int dropped) {
    return (bits + (bits >> dropped & 1) + ((1u << (dropped - 1)) - 1)) >> dropped;
}

static inline uint16_t half_of(float value) { /* of a magnitude below 2^15 */
    uint32_t bits = bits_of(value), magnitude = bits & MAGNITUDE;
    uint32_t small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f), usual = rounded(magnitude - (112u << 23), 13);
    return (uint16_t)((magnitude < bits_of(0x1p-14f) ? small : usual) | (bits >> 16 & 0x8000));
}

static inline float float_of_half(uint16_t half) {
    uint32_t shifted = (half & 0x7FFFu) << 13, usual = shifted + (112u << 23);
    float small = float_of(shifted + (113u << 23)) - 0x1p-14f;
    uint32_t magnitude = shifted < 0x800000u ? bits_of(small) : shifted >= 0xF800000u ? usual + (112u << 23) : usual;
    return float_of(magnitude | (half & 0x8000u) << 16);
}

static inline uint8_t e4m3_of(float scaled) { /* exponents of e4m3 become those of float32, its subnormals too */
    uint32_t bits = bits_of(scaled * 0x1p-120f);
    return (uint8_t)(rounded(bits & MAGNITUDE, 20) | (bits >> 24 & 0x80));
}

static inline float float_of_e4m3(uint32_t code) {
    uint32_t magnitude = code & 0x7F, small = bits_of((float)(int)magnitude * 0x1p-9f);
    uint32_t bits = (magnitude < 8 ? small : (magnitude << 20) + (120u << 23)) | (code & 0x80) << 24;
    return float_of(magnitude == 0x7F ? 0x7FC00000u : bits);
}
#endif

#define EACH for (size_t i = 0; i < items; i++)

/* Make the codes of a row whose items are finite. */
TARGET static inline __attribute__((always_inline)) void NAME(quantise)(int kind, const f32 *values, float inverse,
                                                                        size_t items, uint8_t *codes) {
    if (kind == FP16) {
        u16 *halves = (u16 *)codes;
        EACH {
            float scaled = values[i] * inverse;
            scaled = scaled < 32752.0f ? scaled : 32752.0f; /* times the scale, the next one may overflow */
            halves[i] = half_of(scaled > -32752.0f ? scaled : -32752.0f);
        }
    } else if (kind == FP8) {
        EACH codes[i] = e4m3_of(values[i] * inverse);
    } else if (kind == INT8) {
        EACH codes[i] = (uint8_t)bits_of(values[i] * inverse + ROUNDER);
    } else {
        uint8_t wide[ITEMS + 1];
        wide[items] = 0; /* the upper half of the last byte, if their number is odd */
        EACH {
            uint32_t bits = bits_of(values[i] * inverse), sign = 0 - (bits >> 31);
            uint32_t code = bits_of(__builtin_sqrtf(float_of(bits & MAGNITUDE) + 3.75f) + (ROUNDER - 2));
            wide[i] = (uint8_t)((code ^ sign) - sign);
        }
        for (size_t i = 0; i < (items + 1) / 2; i++) {
            unsigned pair = ((u16 *)wide)[i];
            codes[i] = (uint8_t)((pair & 0x0F) | (pair >> 4 & 0xF0));
        }
    }
}

TARGET static inline __attribute__((always_inline)) uint32_t NAME(largest)(const f32 *values, size_t items) {
    uint32_t top = 0;
    EACH {
        uint32_t magnitude = bits_of(values[i]) & MAGNITUDE;
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

static inline void NAME(set_code)(int kind, uint8_t *codes, size_t i, unsigned code) {
    if (kind == FP16)
        ((u16 *)codes)[i] = (uint16_t)code;
    else if (CODECS[kind].item_bits == 8)
        codes[i] = (uint8_t)code;
    else
        codes[i / 2] = (uint8_t)(i % 2 ? (codes[i / 2] & 0x0F) | code << 4 : (codes[i / 2] & 0xF0) | code);
}

/* Encode a row; returns its scale, which is negative if an item is not finite. */
TARGET static inline __attribute__((always_inline)) float NAME(encode_row)(int kind, const f32 *values, size_t items,
                                                                           uint8_t *codes) {
    uint32_t top = NAME(largest)(values, items);
    if (top < INFINITE) {
        float scale = scale_of(kind, top, 0);
        NAME(quantise)(kind, values, 1.0f / scale, items, codes);
        return scale;
    }
    float finite[ITEMS];
    EACH finite[i] = (bits_of(values[i]) & MAGNITUDE) < INFINITE ? values[i] : 0;
    float scale = scale_of(kind, NAME(largest)(finite, items), 1);
    NAME(quantise)(kind, finite, 1.0f / scale, items, codes);
    EACH {
        uint32_t bits = bits_of(values[i]);
        if ((bits & MAGNITUDE) < INFINITE) continue;
        unsigned nan = (bits & MAGNITUDE) > INFINITE;
        const struct codec *codec = &CODECS[kind];
        NAME(set_code)(kind, codes, i, nan ? codec->nan : bits >> 31 ? codec->minus_inf : codec->inf);
    }
    return -scale;
}

TARGET static inline __attribute__((always_inline)) void NAME(decode_row)(int kind, float scale, const uint8_t *codes,
                                                                          size_t items, f32 *out) {
    const struct codec *codec = &CODECS[kind];
    float factor = scale < 0 ? -scale : scale;
    if (kind == FP16) {
        const u16 *halves = (const u16 *)codes;
        EACH out[i] = float_of_half(halves[i]) * factor;
        if (scale < 0) EACH {
                unsigned half = halves[i] & 0x7FFFu;
                if (half >= 0x7C00) out[i] = half > 0x7C00 ? NAN : halves[i] >> 15 ? -INFINITY : INFINITY;
            }
        return;
    }
    if (kind == FP8)
        EACH out[i] = float_of_e4m3(codes[i]) * factor;
    else if (kind == INT8)
        EACH out[i] = (float)(int8_t)codes[i] * factor;
    else {
        uint8_t wide[ITEMS + 1];
        for (size_t i = 0; i < (items + 1) / 2; i++) ((u16 *)wide)[i] = (uint16_t)((codes[i] | codes[i] << 4) & 0x0F0F);
        EACH {
            int code = (int8_t)(wide[i] << 4) >> 4;
            out[i] = (float)(code * ((code < 0 ? -code : code) + 4)) * factor;
        }
    }
    if (scale < 0) EACH {
            unsigned code = codec->item_bits == 8 ? codes[i] : codes[i / 2] >> 4 * (i % 2) & 0x0F;
            if (code == codec->nan || (kind == FP8 && code == 0xFF))
                out[i] = NAN;
            else if (code == codec->inf)
                out[i] = INFINITY;
            else if (code == codec->minus_inf)
                out[i] = -INFINITY;
        }
}

/* Encode `items` items, at most a block, from the item `start` on, of a chunk of `total` items. */
TARGET static inline __attribute__((always_inline)) void NAME(encode_items)(int kind, const f32 *values, size_t items,
                                                                            uint8_t *chunk, size_t start,
                                                                            size_t total) {
    const struct codec *codec = &CODECS[kind];
    uint8_t *scales = chunk + scales_bytes(codec, start);
    uint8_t *codes = chunk + scales_bytes(codec, total) + codes_bytes(codec, start);
    if (kind == BF16) {
        u16 *upper = (u16 *)codes;
        EACH {
            uint32_t bits = bits_of(values[i]); /* rounding must not turn NaN into infinity */
            upper[i] = (uint16_t)((bits & MAGNITUDE) > INFINITE ? bits >> 16 | 0x40 : rounded(bits, 16));
        }
        return;
    }
    for (size_t at = 0; at < items; at += codec->row, scales += codec->scale_bytes) {
        size_t left = items - at, row = codec->row;
        uint8_t *place = codes + codes_bytes(codec, at);
        float scale = left >= row ? NAME(encode_row)(kind, values + at, row, place)
                                  : NAME(encode_row)(kind, values + at, left, place);
        uint32_t bits = kind == INT4_32 ? bits_of(scale) >> 16 : bits_of(scale);
        memcpy(scales, &bits, codec->scale_bytes);
    }
}

TARGET static inline __attribute__((always_inline)) void NAME(decode_items)(int kind, const uint8_t *chunk,
                                                                            size_t start, size_t total, size_t items,
                                                                            f32 *out) {
    const struct codec *codec = &CODECS[kind];
    const uint8_t *scales = chunk + scales_bytes(codec, start);
    const uint8_t *codes = chunk + scales_bytes(codec, total) + codes_bytes(codec, start);
    if (kind == BF16) {
        EACH out[i] = float_of((uint32_t)((const u16 *)codes)[i] << 16);
        return;
    }
    for (size_t at = 0; at < items; at += codec->row, scales += codec->scale_bytes) {
        size_t left = items - at, row = codec->row;
        uint32_t bits = 0;
        memcpy(&bits, scales, codec->scale_bytes);
        float scale = float_of(kind == INT4_32 ? bits << 16 : bits);
        if (left >= row)
            NAME(decode_row)(kind, scale, codes + codes_bytes(codec, at), row, out + at);
        else
            NAME(decode_row)(kind, scale, codes + codes_bytes(codec, at), left, out + at);
    }
}

/* Carry out a fold, or a step of it, block by block: everything about a block happens in the first-level cache. */
TARGET static inline __attribute__((always_inline)) void NAME(fold_blocks)(int kind, const struct fold *fold) {
    float total[ITEMS], came[ITEMS];
    for (size_t done = 0; done < fold->count; done += ITEMS) {
        size_t items = fold->count - done < ITEMS ? fold->count - done : ITEMS, start = fold->start + done;
        const f32 *value = fold->first ? fold->first + done : NULL;
        if (value && fold->weight != 1) {
            EACH total[i] = value[i] * fold->weight;
            value = total;
        }
        for (int64_t n = 0; n < fold->parts_count; n++) {
            NAME(decode_items)(kind, fold->parts[n], start, fold->items, items, value ? came : total);
            if (value) EACH total[i] = value[i] + came[i];
            value = total;
        }
        if (fold->scale != 1) {
            EACH total[i] = value[i] * fold->scale;
            value = total;
        }
        if (fold->encoded) {
            NAME(encode_items)(kind, value, items, fold->encoded, start, fold->items);
            if (fold->out || fold->residual) NAME(decode_items)(kind, fold->encoded, start, fold->items, items, came);
            if (fold->residual) EACH {
                    float lost = (value[i] - came[i]) / fold->factor;
                    fold->residual[done + i] = (bits_of(lost) & MAGNITUDE) < INFINITE ? lost : 0;
                }
            value = came;
        }
        if (fold->out) memmove(fold->out + done, value, items * sizeof(float));
    }
}

TARGET static void NAME(fold)(const struct fold *fold) {
    switch (fold->kind) { /* a kind that the compiler knows makes the loops above short */
    case BF16: NAME(fold_blocks)(BF16, fold); break;
    case FP16: NAME(fold_blocks)(FP16, fold); break;
    case INT8: NAME(fold_blocks)(INT8, fold); break;
    case FP8: NAME(fold_blocks)(FP8, fold); break;
    case INT4: NAME(fold_blocks)(INT4, fold); break;
    case INT4_32: NAME(fold_blocks)(INT4_32, fold); break;
    }
}
#undef EACH
