/* Frames under AES-256-GCM, by the libcrypto that the caller has found (native/aead.py); included by kernels.c.
 *
 * A direction of a connection is a sequence of blocks: up to BLOCK_BYTES of ciphertext and a tag. The number of a block
 * under its key is part of its nonce, so that a block that is changed, left out, repeated or moved does not open. No
 * number is used twice: it is counted before anything else is done, and a direction that has failed is never used
 * again. Plaintext is copied or added only after its tag was verified. */

#define TAG_BYTES 16
#define NONCE_BYTES 12
#define GET_TAG 0x10 /* EVP_CTRL_AEAD_GET_TAG */
#define SET_TAG 0x11 /* EVP_CTRL_AEAD_SET_TAG */

/* Functions of libcrypto: EVP_EncryptInit_ex, EVP_EncryptUpdate, EVP_EncryptFinal_ex, the same for decryption, and
 * EVP_CIPHER_CTX_ctrl. */
struct libcrypto {
    int (*begin_sealing)(void *, const void *, void *, const uint8_t *, const uint8_t *);
    int (*seal)(void *, uint8_t *, int *, const uint8_t *, int);
    int (*end_sealing)(void *, uint8_t *, int *);
    int (*begin_opening)(void *, const void *, void *, const uint8_t *, const uint8_t *);
    int (*open)(void *, uint8_t *, int *, const uint8_t *, int);
    int (*end_opening)(void *, uint8_t *, int *);
    int (*control)(void *, int, int, void *);
};

/* One direction of a connection under one key. */
struct direction {
    const struct libcrypto *functions;
    void *context;       /* EVP_CIPHER_CTX with the key */
    uint64_t used, most; /* blocks under this key: so far, and at most */
    uint8_t iv[NONCE_BYTES];
    int32_t broken;      /* it has failed: nothing is sealed or opened any more */
};

struct part {
    const uint8_t *at;
    size_t nbytes;
};

/* Take the nonce of the next block: the number of the block, added to the IV as TLS 1.3 does. */
static void next_nonce(struct direction *direction, uint8_t *nonce) {
    uint64_t number = __builtin_bswap64(direction->used++), low;
    memcpy(nonce, direction->iv, NONCE_BYTES);
    memcpy(&low, nonce + NONCE_BYTES - sizeof low, sizeof low);
    low ^= number;
    memcpy(nonce + NONCE_BYTES - sizeof low, &low, sizeof low);
}

static int64_t broken(struct direction *direction, int error) {
    direction->broken = 1;
    return -error;
}

/* Seal a block into `out`, which has room for its tag as well; returns whether that succeeded. */
static int seal_block(struct direction *direction, const uint8_t *plain, size_t nbytes, uint8_t *out) {
    const struct libcrypto *functions = direction->functions;
    uint8_t nonce[NONCE_BYTES];
    int count = 0, more = 0;
    next_nonce(direction, nonce);
    return functions->begin_sealing(direction->context, NULL, NULL, NULL, nonce) == 1 &&
           functions->seal(direction->context, out, &count, plain, (int)nbytes) == 1 &&
           functions->end_sealing(direction->context, out + count, &more) == 1 && (size_t)count + (size_t)more == nbytes &&
           functions->control(direction->context, GET_TAG, TAG_BYTES, out + nbytes) == 1;
}

/* Open a block in place; returns whether its tag is right. If it is not, the plaintext must not be used. */
static int open_block(struct direction *direction, uint8_t *block, size_t nbytes) {
    const struct libcrypto *functions = direction->functions;
    uint8_t nonce[NONCE_BYTES];
    int count = 0, more = 0;
    next_nonce(direction, nonce);
    return functions->begin_opening(direction->context, NULL, NULL, NULL, nonce) == 1 &&
           functions->open(direction->context, block, &count, block, (int)nbytes) == 1 &&
           functions->control(direction->context, SET_TAG, TAG_BYTES, block + nbytes) == 1 &&
           functions->end_opening(direction->context, block + count, &more) == 1 && (size_t)count + (size_t)more == nbytes;
}

/* Give a buffer to a blocking socket: 0, or an errno. */
static int drain(int socket, const uint8_t *data, size_t nbytes) {
    while (nbytes) {
        ssize_t count = send(socket, data, nbytes, MSG_NOSIGNAL);
        if (count < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        data += count;
        nbytes -= (size_t)count;
    }
    return 0;
}

/* Send parts, from byte `start` of all of them on, each cut into blocks of its own.
 *
 * `scratch` has `room` bytes, at least BLOCK_BYTES + TAG_BYTES. Returns the position after the last byte that was sent:
 * that of the end, or of the first block that needs another key; or -errno, and the direction is broken. */
EXPORT int64_t tw_send_sealed(struct direction *direction, int socket, const struct part *parts, size_t count,
                              size_t start, uint8_t *scratch, size_t room) {
    size_t position = 0, filled = 0;
    int error;
    if (direction->broken) return -EPIPE;
    for (const struct part *part = parts; part < parts + count; part++)
        for (size_t at = 0; at < part->nbytes;) {
            size_t size = part->nbytes - at < BLOCK_BYTES ? part->nbytes - at : BLOCK_BYTES;
            if (position >= start) {
                if (direction->used >= direction->most) goto out;
                if (filled + size + TAG_BYTES > room) {
                    if ((error = drain(socket, scratch, filled))) return broken(direction, error);
                    filled = 0;
                }
                if (!seal_block(direction, part->at + at, size, scratch + filled)) return broken(direction, EIO);
                filled += size + TAG_BYTES;
            }
            at += size;
            position += size;
        }
out:
    if ((error = drain(socket, scratch, filled))) return broken(direction, error);
    return (int64_t)position;
}

/* Receive `nbytes` from byte `start` on, which begins a block. Each block is received into `scratch`, opened there, and
 * then copied to its place, or added; without `place` and `add` it is dropped. `scratch` has room for a block and its
 * tag. Returns the position after the last block: the end, or the first one that needs another key; or -errno, and the
 * direction is broken: -EBADMSG if a block does not open. */
EXPORT int64_t tw_receive_sealed(struct direction *direction, int socket, uint8_t *place, size_t start, size_t nbytes,
                                 uint8_t *scratch, const struct addition *add) {
    if (direction->broken) return -EPIPE;
    while (start < nbytes && direction->used < direction->most) {
        size_t count = nbytes - start < BLOCK_BYTES ? nbytes - start : BLOCK_BYTES;
        int error = fill(socket, scratch, count + TAG_BYTES);
        if (error) return broken(direction, -error);
        if (!open_block(direction, scratch, count)) return broken(direction, EBADMSG);
        if (add)
            PICK(add_block)(add, scratch, start, count);
        else if (place)
            memcpy(place + start, scratch, count);
        start += count;
    }
    return (int64_t)start;
}
