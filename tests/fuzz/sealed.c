/* Fuzzes the kernels that send and receive encrypted blocks: `make fuzz-sealed` (libFuzzer, OpenSSL's headers).
 *
 * Parts are sent through tw_send_sealed, the bytes on the way are changed, removed, repeated or cut as the input says,
 * and tw_receive_sealed must store only whole blocks that were sent, in their place, from bytes that were not changed;
 * a direction that has failed must refuse, and no key may be used for more blocks than it has. Memory has exactly the
 * size that is asked for, so that AddressSanitizer sees a byte too many. */

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../src/tradewind/native/kernels.c"

#define MOST_BYTES (4 * (BLOCK_BYTES + 8192))
#define MOST_PARTS 3
#define MUST(condition) \
    do { \
        if (!(condition)) abort(); \
    } while (0)

static const struct libcrypto FUNCTIONS = {
    (int (*)(void *, const void *, void *, const uint8_t *, const uint8_t *))EVP_EncryptInit_ex,
    (int (*)(void *, uint8_t *, int *, const uint8_t *, int))EVP_EncryptUpdate,
    (int (*)(void *, uint8_t *, int *))EVP_EncryptFinal_ex,
    (int (*)(void *, const void *, void *, const uint8_t *, const uint8_t *))EVP_DecryptInit_ex,
    (int (*)(void *, uint8_t *, int *, const uint8_t *, int))EVP_DecryptUpdate,
    (int (*)(void *, uint8_t *, int *))EVP_DecryptFinal_ex,
    (int (*)(void *, int, int, void *))EVP_CIPHER_CTX_ctrl,
};

struct input {
    const uint8_t *at;
    size_t left;
};

/* The next number of the input, below `most`. */
static size_t take(struct input *input, size_t most) {
    size_t value = 0;
    for (int i = 0; i < 3 && input->left; i++, input->at++, input->left--) value = value << 8 | *input->at;
    return most ? value % most : 0;
}

static struct direction direction(int seals, uint64_t most) {
    static const uint8_t KEY[32] = {7}, IV[NONCE_BYTES] = {9};
    struct direction made = {.functions = &FUNCTIONS, .context = EVP_CIPHER_CTX_new(), .most = most};
    memcpy(made.iv, IV, sizeof IV);
    int ok = seals ? EVP_EncryptInit_ex(made.context, EVP_aes_256_gcm(), NULL, KEY, NULL)
                   : EVP_DecryptInit_ex(made.context, EVP_aes_256_gcm(), NULL, KEY, NULL);
    MUST(ok == 1);
    return made;
}

/* Two connected sockets, of which the first takes all that a run sends. */
static void connect_both(int *ends) {
    int room = MOST_BYTES;
    MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
}

/* Change the bytes on the way as an attacker may; returns how many there are then. */
static size_t attacked(struct input *input, uint8_t *way, size_t nbytes) {
    for (size_t edits = take(input, 4); edits && nbytes; edits--) {
        size_t at = take(input, nbytes), count = take(input, 64), left = nbytes - at;
        switch (take(input, 5)) {
        case 0: way[at] ^= (uint8_t)(1u << (count & 7)); break;
        case 1:
            if (count > left) count = left;
            memmove(way + at, way + at + count, left - count);
            nbytes -= count;
            break;
        case 2:
            if (nbytes + count > MOST_BYTES) break;
            memmove(way + at + count, way + at, left);
            memset(way + at, 0x5A, count);
            nbytes += count;
            break;
        case 3: nbytes = at; break;
        default:
            if (at >= count) memmove(way, way + at - count, count);
        }
    }
    return nbytes;
}

/* Check what was stored of a part: whole blocks as they were sent; returns their bytes. No byte that is sent is 0. */
static size_t checked(const uint8_t *place, const uint8_t *plain, size_t nbytes) {
    size_t stored = 0;
    for (size_t at = 0; at < nbytes; at += BLOCK_BYTES) {
        size_t count = nbytes - at < BLOCK_BYTES ? nbytes - at : BLOCK_BYTES;
        size_t zeros = 0;
        for (size_t i = 0; i < count; i++) zeros += !place[at + i];
        MUST(zeros == count || !memcmp(place + at, plain + at, count));
        if (!zeros) stored += count;
    }
    return stored;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static uint8_t way[MOST_BYTES], sent_bytes[MOST_BYTES];
    struct input input = {data, nbytes};
    struct part parts[MOST_PARTS];
    uint8_t *plain[MOST_PARTS], *scratch = malloc(BLOCK_BYTES + TAG_BYTES);
    size_t count = 1 + take(&input, MOST_PARTS), total = 0, length = 0, good = 0, used = 0;
    for (size_t n = 0; n < count; n++) {
        size_t size = 1 + (take(&input, 8) == 7 ? BLOCK_BYTES - 100 + take(&input, 4000) : take(&input, 3000));
        plain[n] = malloc(size);
        for (size_t i = 0; i < size; i++) plain[n][i] = (uint8_t)(1 + (31 * i + 7 * n) % 255);
        parts[n] = (struct part){plain[n], size};
        total += size;
    }
    uint64_t most = take(&input, 8);
    int near[2], far[2];
    connect_both(near);
    connect_both(far);

    struct direction sending = direction(1, most), receiving = direction(0, most);
    int64_t sent = tw_send_sealed(&sending, near[0], parts, count, 0, scratch, BLOCK_BYTES + TAG_BYTES);
    MUST(sent >= 0 && (size_t)sent <= total && sending.used <= most);
    shutdown(near[0], SHUT_WR);
    for (ssize_t got; (got = read(near[1], way + length, MOST_BYTES - length)) > 0;) length += (size_t)got;
    MUST(length == (size_t)sent + TAG_BYTES * sending.used);
    memcpy(sent_bytes, way, length);
    size_t left = attacked(&input, way, length);
    while (good < left && good < length && way[good] == sent_bytes[good]) good++;
    for (size_t at = 0; at < left;) {
        ssize_t put = write(far[0], way + at, left - at);
        MUST(put > 0);
        at += (size_t)put;
    }
    shutdown(far[0], SHUT_WR);

    for (size_t n = 0, goes_on = 1; n < count && goes_on; n++) {
        size_t size = parts[n].nbytes;
        uint8_t *place = calloc(1, size), *zeros = calloc(1, size);
        struct addition add = {zeros, place, 1, 1, 1, INT32};
        const struct addition *how = take(&input, 2) && size % 4 == 0 ? &add : NULL;
        int64_t done = tw_receive_sealed(&receiving, far[1], how ? NULL : place, 0, size, scratch, how);
        size_t stored = checked(place, plain[n], size);
        used += stored + TAG_BYTES * ((stored + BLOCK_BYTES - 1) / BLOCK_BYTES);
        MUST(used <= good && receiving.used <= most && (done < 0 || (size_t)done == stored));
        int64_t again = done < 0 ? tw_receive_sealed(&receiving, far[1], NULL, 0, 5, scratch, NULL) : 0;
        MUST(done >= 0 || (receiving.broken && again == -EPIPE));
        goes_on = done == (int64_t)size;
        free(place);
        free(zeros);
    }

    for (int i = 0; i < 2; i++) close(near[i]), close(far[i]);
    for (size_t n = 0; n < count; n++) free(plain[n]);
    free(scratch);
    EVP_CIPHER_CTX_free(sending.context);
    EVP_CIPHER_CTX_free(receiving.context);
    return 0;
}
