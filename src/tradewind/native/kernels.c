/* Kernels of the data plane: checksums, sums of received blocks, and whole frames from blocking sockets.
 *
 * The functions are called through ctypes (`tradewind/native/__init__.py`), which releases the interpreter's lock
 * during every call. They know nothing of Python, keep no state of their own and allocate nothing. Each computes
 * exactly what the Python code beside it computes, and the tests compare the two; encrypted frames have none beside
 * them. A change of a signature or of a codec needs another TW_ABI. */

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define TW_ABI 3
#define BLOCK_BYTES (256 * 1024) /* wire.frames.BLOCK_BYTES */
#define EXPORT __attribute__((visibility("default")))

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames and codecs are read in place, in little-endian order"
#endif

#if defined(__clang__) /* results are written over operands at the same place, or elsewhere */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* The best instructions that may be used: 0 portable, 1 AVX2, 2 AVX-512. Tests set it before the first call. */
EXPORT int tw_most_instructions = 2;

enum { FLOAT32, FLOAT64, INT32, INT64 };

/* How a received block is added: out = (first * own + came * weight) * scale, each operation rounded, in the type of
 * the items; factors of 1 are left out. Whole numbers have no factors. */
struct addition {
    const uint8_t *first;
    uint8_t *out;
    double own, weight, scale;
    int64_t kind;
};

enum { BF16, FP16, INT8, FP8, INT4, INT4_32 };

/* Memory of callers may begin anywhere. */
typedef float f32 __attribute__((aligned(1), may_alias));
typedef double f64 __attribute__((aligned(1), may_alias));
typedef uint64_t u64 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));
typedef uint16_t u16 __attribute__((aligned(1), may_alias));

/* A step of an encoded chunk (node/coded_payload.py), from item `start` on, which begins a block: encoded parts are
 * added to first * weight, in order, and the sum is multiplied by `scale`. If `encoded` is given, the sum is encoded
 * there, and `out` gets what that decodes to; `residual` gets what was lost, divided by `factor`. The pointers are
 * NULL where there is no such array; `first`, `out` and `residual` begin with the step, encoded chunks with item 0.
 * `encoded` may be one of the parts. Without `first` there is a part. */
struct fold {
    const f32 *first;
    f32 *out, *residual;
    uint8_t *encoded;
    const uint8_t *const *parts;
    int64_t parts_count, kind;
    size_t start, count, items; /* of the chunk */
    float weight, scale, factor;
};

/* The same source for every set of instructions: the best one that the processor has is chosen at run time. */
#define TARGET
#define NAME(name) name##_portable
#include "blocks.h"
#undef TARGET
#undef NAME

#if defined(__x86_64__)
#define SWAP(value) (VECTOR)SHUFFLE(value, 0x4E)

#define TARGET __attribute__((target("avx2,bmi,bmi2")))
#define NAME(name) name##_avx2
#define VECTOR_BYTES 32
typedef uint64_t vector4 __attribute__((vector_size(32)));
#define VECTOR vector4
#define LOAD(at) (VECTOR) _mm256_loadu_si256((const __m256i *)(at))
#define SHUFFLE(value, order) _mm256_shuffle_epi32((__m256i)(value), order)
#define MULTIPLY_LOW(a, b) (VECTOR) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define SET(number) (VECTOR) _mm256_set1_epi64x(number)
#include "blocks.h"
#undef TARGET
#undef NAME
#undef VECTOR_BYTES
#undef VECTOR
#undef LOAD
#undef SHUFFLE
#undef MULTIPLY_LOW
#undef SET

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2")))
#define NAME(name) name##_avx512
#define VECTOR_BYTES 64
typedef uint64_t vector8 __attribute__((vector_size(64)));
#define VECTOR vector8
#define LOAD(at) (VECTOR) _mm512_loadu_si512(at)
#define SHUFFLE(value, order) _mm512_shuffle_epi32((__m512i)(value), order)
#define MULTIPLY_LOW(a, b) (VECTOR) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define SET(number) (VECTOR) _mm512_set1_epi64(number)
#include "blocks.h"

/* What the processor has and the system saves between threads. */
static int found_instructions(void) {
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    unsigned avx2 = bit_AVX2 | bit_BMI | bit_BMI2, avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((b & avx2) != avx2) return 0;
    return (saved & 0xE6) == 0xE6 && (b & avx512) == avx512 ? 2 : 1;
}

static int instructions(void) {
    static int known = -1; /* asking takes microseconds on a virtual machine; two threads find the same */
    int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found < 0) {
        found = found_instructions();
        if (found > tw_most_instructions) found = tw_most_instructions;
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found;
}
#define PICK(name) (instructions() == 2 ? name##_avx512 : instructions() ? name##_avx2 : name##_portable)
#else
static int instructions(void) { return 0; }
#define PICK(name) name##_portable
#endif

EXPORT int tw_abi(void) { return TW_ABI; }

/* The name of the instructions in use. */
EXPORT const char *tw_instructions(void) {
    static const char *const NAMES[] = {"portable", "AVX2", "AVX-512"};
    return NAMES[instructions()];
}

/* --- checksums ------------------------------------------------------------------------------------------------- */

static void store_sum(uint8_t *out, uint64_t sum) {
    sum = __builtin_bswap64(sum); /* digests are big-endian */
    memcpy(out, &sum, sizeof sum);
}

/* The checksums of the blocks of a payload, 8 bytes each. No block may have fewer than 241 bytes. */
EXPORT void tw_sums(const uint8_t *data, size_t nbytes, uint8_t *out) {
    for (size_t at = 0; at < nbytes; at += BLOCK_BYTES, out += 8)
        store_sum(out, PICK(hash_long)(data + at, nbytes - at < BLOCK_BYTES ? nbytes - at : BLOCK_BYTES));
}

/* --- frames ---------------------------------------------------------------------------------------------------- */

/* Fill a buffer from a blocking socket: 0, or -errno; -ECONNRESET if the other side closed the connection. */
static int fill(int socket, uint8_t *place, size_t nbytes) {
    while (nbytes) {
        ssize_t count = recv(socket, place, nbytes, MSG_WAITALL);
        if (count == 0) return -ECONNRESET;
        if (count < 0) {
            if (errno == EINTR) continue;
            return -errno;
        }
        place += count;
        nbytes -= (size_t)count;
    }
    return 0;
}

/* Receive a payload from byte `start` on, which begins a block, and verify each block while it is in the cache.
 *
 * Without `add` it is received into `place`, which has room for all of it. With `add` each block is received into
 * `place`, which has room for one, and added after it was verified. `sums`: the checksums of all blocks, or NULL.
 * Returns the size of the payload; or -errno; or the first byte of a block that does not match its checksum: it is in
 * its place, and was not added. */
EXPORT int64_t tw_receive(int socket, uint8_t *place, size_t start, size_t nbytes, const uint8_t *sums,
                          const struct addition *add) {
    while (start < nbytes) {
        size_t count = nbytes - start < BLOCK_BYTES ? nbytes - start : BLOCK_BYTES;
        uint8_t *block = add ? place : place + start, sum[8];
        int error = fill(socket, block, count);
        if (error) return error;
        if (sums) {
            store_sum(sum, PICK(hash_long)(block, count));
            if (memcmp(sum, sums + start / BLOCK_BYTES * 8, sizeof sum)) return (int64_t)start;
        }
        if (add) PICK(add_block)(add, block, start, count);
        start += count;
    }
    return (int64_t)nbytes;
}

/* Add a block of a payload, from byte `start` on. */
EXPORT void tw_add(const struct addition *add, const uint8_t *block, size_t start, size_t nbytes) {
    PICK(add_block)(add, block, start, nbytes);
}

/* --- encrypted frames ------------------------------------------------------------------------------------------ */

#include "aead.h"

/* --- codecs ---------------------------------------------------------------------------------------------------- */

EXPORT void tw_fold(const struct fold *fold) { PICK(fold)(fold); }
