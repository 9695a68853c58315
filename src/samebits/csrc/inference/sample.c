/* --- sampling ----------------------------------------------------------------------------------
 *
 * docs/spec/sampling.md: the next token of a language model from its logits, in integers. */

static const uint32_t samebits_halves[16] = {
    759250125u,  902905651u,  984625594u,  1028218693u, 1050733751u, 1062175491u,
    1067942999u, 1070838486u, 1072289173u, 1073015252u, 1073378477u, 1073560135u,
    1073650976u, 1073696399u, 1073719111u, 1073730468u};

static uint64_t samebits_weight(const samebits_sampling *s, uint64_t below) {
    const uint64_t d = below > 0xffffffffu ? 0xffffffffu : below;
    const uint64_t t = (d * s->m) >> s->q;
    uint64_t w = (uint64_t)1 << 30;
    int32_t j;
    if (t >> 16 > 30) return 0;
    for (j = 0; j < 16; j++) {
        if (t >> (15 - j) & 1u) w = (w * samebits_halves[j]) >> 30;
    }
    return w >> (t >> 16);
}

/* The first word of Philox4x32-10 of the counter (step, 0, 0, 0). */
static uint32_t samebits_draw(uint64_t seed, uint32_t step) {
    uint32_t words[4];
    words[0] = step;
    words[1] = words[2] = words[3] = 0;
    samebits_rounds(words, (uint32_t)(seed & 0xffffffffu), (uint32_t)(seed >> 32));
    return words[0];
}

int32_t samebits_sample(const samebits_sampling *s, const void *logits, uint8_t type, int32_t n,
                        uint64_t seed, uint32_t step) {
    int64_t top = 0, bound = 0; /* the largest logit, and that of the last candidate, at `last` */
    int32_t last = -1, rank, best, i;
    uint64_t sum = 0, left;
    for (rank = 0; rank < s->k && rank < n; rank++) {
        int64_t most = 0;
        for (best = -1, i = 0; i < n; i++) {
            const int64_t l = samebits_get(logits, type, i);
            if (last >= 0 && (l > bound || (l == bound && i <= last))) continue;
            if (best < 0 || l > most) {
                best = i;
                most = l;
            }
        }
        last = best;
        bound = most;
        if (rank == 0) {
            top = most;
            if (s->k >= n) break; /* all are candidates */
        }
    }
    for (i = 0; i < n; i++) {
        const int64_t l = samebits_get(logits, type, i);
        if (s->k >= n || l > bound || (l == bound && i <= last)) {
            sum += samebits_weight(s, (uint64_t)top - (uint64_t)l);
        }
    }
    left = samebits_draw(seed, step);
    left = left * (sum >> 32) + ((left * (sum & 0xffffffffu)) >> 32);
    for (i = 0; i < n; i++) {
        const int64_t l = samebits_get(logits, type, i);
        if (s->k >= n || l > bound || (l == bound && i <= last)) {
            const uint64_t w = samebits_weight(s, (uint64_t)top - (uint64_t)l);
            if (left < w) return i;
            left -= w;
        }
    }
    return last;
}
