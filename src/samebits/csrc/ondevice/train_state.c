/* The state of a network as bytes, little-endian on every machine, and back. */
#include "real.h"
#include "samebits_bytes.h"
#include "train_scalars.h"

static const uint8_t MAGIC[8] = {'s', 'b', 't', 'r', 'a', 'i', 'n', '1'};

static void put32(uint8_t *to, uint32_t v) {
    int32_t i;
    for (i = 0; i < 4; i++) to[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get32(const uint8_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

static int32_t get16(const uint8_t *from) {
    return (int16_t)(uint16_t)(from[0] | from[1] << 8);
}

/* Numbers of `size` bytes between the order of this machine and little-endian. */
static void ordered(uint8_t *to, const uint8_t *from, uint32_t count, uint32_t size) {
    const uint16_t one = 1;
    uint32_t i, k;
    if (*(const uint8_t *)&one || size == 1) {
        memcpy(to, from, (size_t)count * size);
        return;
    }
    for (i = 0; i < count; i++, to += size, from += size)
        for (k = 0; k < size; k++) to[k] = from[size - 1 - k];
}

/* FNV-1a of 64 bits, Fowler, Noll and Vo. */
static uint64_t hashed(uint64_t hash, const uint8_t *data, size_t size) {
    size_t i;
    for (i = 0; i < size; i++) hash = (hash ^ data[i]) * 1099511628211u;
    return hash;
}

/* Of the header before the checksum, and of what follows it. */
static uint64_t checksum(const uint8_t *bytes, size_t size) {
    const uint64_t hash = hashed(14695981039346656037u, bytes, 16);
    return hashed(hash, bytes + SAMEBITS_TRAIN_HEADER, size - SAMEBITS_TRAIN_HEADER);
}

/* Bytes of the exponents of a parameter: of W and its moments. */
static size_t scale_size(int32_t moments) { return 4 + 4 * (size_t)moments; }

static size_t size_of(const samebits_region *regions, int32_t parameters, int32_t moments) {
    size_t size = SAMEBITS_TRAIN_HEADER + scale_size(moments) * (size_t)parameters;
    for (; regions->count; regions++) size += (size_t)regions->count * regions->size;
    return size;
}

int samebits_train_save(const uint8_t *arena, const samebits_region *regions,
                        const samebits_parameter *p, int32_t parameters, int32_t moments,
                        uint32_t network, uint32_t step, uint8_t *to) {
    const size_t size = size_of(regions, parameters, moments);
    uint8_t *at = to + SAMEBITS_TRAIN_HEADER;
    uint64_t sum;
    int32_t i;
    for (i = 0; i < parameters; i++, at += scale_size(moments)) {
        put32(at, (uint32_t)p[i].s->e_w);
        if (moments > 0) put32(at + 4, (uint32_t)p[i].s->e_v);
        if (moments > 1) put32(at + 8, (uint32_t)p[i].s->e_root);
    }
    for (; regions->count; at += (size_t)regions->count * regions->size, regions++)
        ordered(at, arena + regions->offset, regions->count, regions->size);
    memcpy(to, MAGIC, sizeof MAGIC);
    put32(to + 8, network);
    put32(to + 12, step);
    sum = checksum(to, size);
    put32(to + 16, (uint32_t)sum);
    put32(to + 20, (uint32_t)(sum >> 32));
    return SAMEBITS_TRAIN_OK;
}

static int is_exponent(const uint8_t *from) {
    const int32_t e = samebits_signed32(get32(from));
    return e >= EXPONENT_MIN && e <= EXPONENT_MAX;
}

/* Whether bytes are codes and exponents that a step leaves: of a parameter, W, A and moments. */
static int is_parameter(const uint8_t *scale, const uint8_t *w, uint32_t n, int32_t moments) {
    const uint8_t *a = w + n, *v = a + 2 * (size_t)n;
    uint32_t i;
    int32_t k;
    for (k = 0; k <= moments; k++)
        if (!is_exponent(scale + 4 * (size_t)k)) return 0;
    for (i = 0; i < n; i++)
        if (w[i] == 128 || magnitude32(get16(a + 2 * (size_t)i)) > 16384) return 0;
    for (i = 0; i < n * (uint32_t)moments; i++) {
        const int32_t code = get16(v + 2 * (size_t)i), size = magnitude32(code);
        if (size > 32767 || (size && size < 512) || (code < 0 && i >= n)) return 0;
    }
    return 1;
}

/* Whether bytes are finite numbers of binary64. */
static int is_statistic(const uint8_t *from, uint32_t n) {
    uint32_t i;
    for (i = 0; i < n; i++)
        if ((get32(from + 8 * (size_t)i + 4) & 0x7FF00000) == 0x7FF00000) return 0;
    return 1;
}

static int is_state(const samebits_region *r, int32_t parameters, int32_t moments,
                    const uint8_t *from) {
    const size_t each = scale_size(moments);
    const uint8_t *scale = from + SAMEBITS_TRAIN_HEADER, *at = scale + each * (size_t)parameters;
    int32_t i;
    for (i = 0; i < parameters; i++, scale += each, r += 2 + moments) {
        if (!is_parameter(scale, at, r->count, moments)) return 0;
        at += (3 + 2 * (size_t)moments) * r->count;
    }
    for (; r->count; at += 8 * (size_t)r->count, r++)
        if (!is_statistic(at, r->count)) return 0;
    return 1;
}

int samebits_train_load(uint8_t *arena, const samebits_region *regions, samebits_parameter *p,
                        int32_t parameters, int32_t moments, uint32_t network, uint32_t *step,
                        const uint8_t *from, size_t size) {
    const uint8_t *at = from + SAMEBITS_TRAIN_HEADER;
    uint64_t sum;
    int32_t i, k;
    if (size != size_of(regions, parameters, moments) || memcmp(from, MAGIC, sizeof MAGIC) ||
        get32(from + 8) != network)
        return SAMEBITS_TRAIN_STATE;
    sum = checksum(from, size);
    if (get32(from + 16) != (uint32_t)sum || get32(from + 20) != (uint32_t)(sum >> 32) ||
        !is_state(regions, parameters, moments, from))
        return SAMEBITS_TRAIN_STATE;
    for (i = 0; i < parameters; i++, at += scale_size(moments)) {
        p[i].s->e_w = samebits_signed32(get32(at));
        if (moments > 0) p[i].s->e_v = samebits_signed32(get32(at + 4));
        if (moments > 1) p[i].s->e_root = samebits_signed32(get32(at + 8));
    }
    for (; regions->count; at += (size_t)regions->count * regions->size, regions++)
        ordered(arena + regions->offset, at, regions->count, regions->size);
    for (i = 0; i < parameters; i++) {
        p[i].s->top_v = 0;
        for (k = 0; moments == 1 && k < p[i].n; k++) {
            const int32_t size_k = magnitude32(p[i].v[k]);
            p[i].s->top_v = SAMEBITS_MAX(p[i].s->top_v, size_k);
        }
    }
    *step = get32(from + 12);
    return SAMEBITS_TRAIN_OK;
}
