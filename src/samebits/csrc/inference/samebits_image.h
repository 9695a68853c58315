/* The weights of a model as an image beside its code: one block of bytes, used where it lies, that
 * another training of the same network replaces. docs/guide/deploy.md has the format.
 * Written for the C of a model that was compiled with --weights-file. */
#ifndef SAMEBITS_IMAGE_H
#define SAMEBITS_IMAGE_H

#include "samebits.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "an image of weights is little-endian: compile the model without --weights-file"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SAMEBITS_IMAGE_FORMAT 1
#define SAMEBITS_IMAGE_ALIGNMENT 8

/* What is wrong with an image; 0 of one that fits the code. */
#define SAMEBITS_IMAGE_MISALIGNED 1 /* it is null, or at no multiple of 8 */
#define SAMEBITS_IMAGE_FOREIGN 2    /* it does not begin with the magic */
#define SAMEBITS_IMAGE_VERSION 3    /* it is of another format */
#define SAMEBITS_IMAGE_TRUNCATED 4  /* fewer bytes are there than it states */
#define SAMEBITS_IMAGE_STRUCTURE 5  /* it is of another network, or made for other code */
#define SAMEBITS_IMAGE_CORRUPT 6    /* its bytes are not those that were written, or lead outside */

/* The head of an image. Offsets count from its first byte; numbers are int64_t, the directory of
 * arrays are offsets of 32 bits. */
typedef struct {
    uint8_t magic[8];
    uint64_t content; /* samebits_hash of all bytes behind this number */
    uint32_t format, bytes;
    uint64_t structure; /* of the code that it is for */
    uint32_t numbers, arrays;
    uint32_t name, version; /* of the model, as its author has them: texts that end with 0 */
} samebits_image;

static inline int64_t samebits_image_number(const samebits_image *image, uint32_t index) {
    const void *numbers = (const uint8_t *)image + image->numbers;
    return ((const int64_t *)numbers)[index];
}

/* An array; null where its offset is 0. */
static inline const void *samebits_image_array(const samebits_image *image, uint32_t index) {
    const void *arrays = (const uint8_t *)image + image->arrays;
    const uint32_t at = ((const uint32_t *)arrays)[index];
    return at == 0 ? 0 : (const uint8_t *)image + at;
}

static inline const char *samebits_image_text(const samebits_image *image, uint32_t at) {
    const void *text = (const uint8_t *)image + at;
    return (const char *)text;
}

/* Whether all that an image points to lies in it: its parts in their order, texts that end, arrays
 * that begin there. How long an array must be only the code knows. */
static inline int samebits_image_closed(const samebits_image *image) {
    const uint8_t *codes = (const uint8_t *)image;
    const void *arrays;
    uint32_t i;
    if (image->numbers != sizeof *image || image->arrays < image->numbers ||
        image->arrays % 8 != 0 || image->name < image->arrays || image->version <= image->name ||
        image->version >= image->bytes || codes[image->version - 1] != 0) {
        return 0;
    }
    arrays = codes + image->arrays;
    for (i = 0; i < (image->name - image->arrays) / 4; i++) {
        const uint32_t at = ((const uint32_t *)arrays)[i];
        if (at >= image->bytes || at % SAMEBITS_IMAGE_ALIGNMENT != 0) return 0;
    }
    for (i = image->version; i < image->bytes; i++) {
        if (codes[i] == 0) return 1;
    }
    return 0;
}

/* What is wrong with an image for code of a structure, of which `bytes` bytes or more are there; 0
 * of one that fits. It finds damage, not intent: who may write an image decides what the program
 * does, so that who replaces one must be let in elsewhere. */
static inline int samebits_image_check(const void *given, uint32_t bytes, uint64_t structure) {
    static const uint8_t magic[8] = {'s', 'a', 'm', 'e', 'b', 'i', 't', 's'};
    const samebits_image *image = (const samebits_image *)given;
    const uint8_t *codes = (const uint8_t *)given;
    uint32_t i;
    if (given == 0 || (uintptr_t)given % SAMEBITS_IMAGE_ALIGNMENT != 0) {
        return SAMEBITS_IMAGE_MISALIGNED;
    }
    if (bytes < sizeof *image) return SAMEBITS_IMAGE_TRUNCATED;
    for (i = 0; i < 8; i++) {
        if (image->magic[i] != magic[i]) return SAMEBITS_IMAGE_FOREIGN;
    }
    if (image->format != SAMEBITS_IMAGE_FORMAT) return SAMEBITS_IMAGE_VERSION;
    if (image->bytes > bytes || image->bytes < sizeof *image) return SAMEBITS_IMAGE_TRUNCATED;
    if (image->structure != structure) return SAMEBITS_IMAGE_STRUCTURE;
    if (samebits_hash(SAMEBITS_HASH, codes + 16, 1, image->bytes - 16) != image->content) {
        return SAMEBITS_IMAGE_CORRUPT;
    }
    return samebits_image_closed(image) ? 0 : SAMEBITS_IMAGE_CORRUPT;
}

#ifdef __cplusplus
}
#endif

#endif
